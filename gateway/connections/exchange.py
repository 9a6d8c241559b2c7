"""One request and its answer, as the application sees them (ASGI's `receive` and `send`)."""

import asyncio
import http
import operator
import re
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Protocol

import structlog

from fairlane.gateway.errors import Headers
from fairlane.gateway.http.request import AnswerBroken, DirectExchange

log = structlog.get_logger("fairlane.gateway")

Scope = dict[str, Any]
Message = MutableMapping[str, Any]
Application = Callable[..., Awaitable[None]]

UNREAD_BYTES = 64 * 1024
"""Of a body that waits to be read; beyond it, the connection is not read."""

_value = operator.itemgetter(1)
_UNFIT = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def _status_lines() -> dict[int, bytes]:
    phrases = {status.value: status.phrase.encode() for status in http.HTTPStatus}
    return {code: b"HTTP/1.1 %d %b\r\n" % (code, phrases.get(code, b"")) for code in range(200, 600)}


STATUS_LINES = _status_lines()


class Wire(Protocol):
    """The connection of an exchange: see `HttpConnection`."""

    loop: asyncio.AbstractEventLoop
    write_paused: bool
    read_paused: bool

    def write(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...
    def pace(self) -> None: ...
    def rest(self) -> None: ...
    def over(self, task: asyncio.Task[None]) -> None: ...
    def answered(self, exchange: "Exchange") -> None: ...
    def broken(self, exchange: "Exchange") -> None: ...
    def default_lines(self) -> bytes: ...


class Exchange(DirectExchange):
    """A request that arrives and the answer to it. The head of the answer waits for the first of its body, at most until the end
    of the event loop's tick: one system call costs more than the copy.

    Once the answer begins, the rest of the body is dropped.
    """

    def __init__(self, wire: Wire, scope: Scope, keep_alive: bool, expects_continue: bool) -> None:
        self._wire = wire
        self.scope = scope
        self._method: str = scope["method"]
        self._path: str = scope["path"]
        self.keep_alive = keep_alive
        self.more = True
        """Whether more of the body is to come."""
        self.unread = 0
        """Bytes that have come and wait to be read."""
        self.started = False
        self.complete = False
        self.disconnected = False
        self._continue = expects_continue
        self._parts: list[bytes] = []
        self._end_read = False
        self._waiter: asyncio.Future[None] | None = None
        self._head = b""
        self._chunked = False
        self._left: int | None = None
        """Bytes of the answer that its content-length promises still; None: it promises nothing."""

    # ---- from the connection ----------

    def start(self, application: Application, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        """Start the application."""
        task: asyncio.Task[None] = loop.create_task(application(self.scope, self.receive, self.send))  # type: ignore[arg-type]
        task.add_done_callback(self._over)
        return task

    def add(self, part: bytes) -> None:
        """More of the body."""
        if not self.started:
            self._parts.append(part)
            self.unread += len(part)
            if self._waiter is not None:
                self._wake()

    def end_body(self) -> None:
        """The body is whole."""
        self.more = False
        if self._waiter is not None:
            self._wake()

    def disconnect(self) -> None:
        """Stop the exchange: the client is gone, or gets no answer."""
        if not self.complete:
            self.disconnected = True
        self._drop_body()
        self._wake()

    # ---- ASGI ----------

    async def receive(self) -> Message:
        """The next part of the body, or, when there is none to come, the end of the exchange."""
        while True:
            if self.disconnected or self.complete:
                return {"type": "http.disconnect"}
            if self._continue and not self.started:
                self._continue = False
                self._wire.write(_CONTINUE)
            if self._parts or not (self.more or self._end_read or self.started):
                body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
                self._drop_body()
                self._end_read = not self.more
                return {"type": "http.request", "body": body, "more_body": self.more}
            waiter = self._waiter = asyncio.get_running_loop().create_future()
            try:
                await waiter
            finally:
                self._waiter = None

    def take_body(self) -> bytes | None:
        if self.more or self._end_read or self.started or self.disconnected:
            return None
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._drop_body()
        self._end_read = True
        return body

    def respond(self, status: int, headers: Headers, body: bytes) -> bool:
        wire = self._wire
        if wire.write_paused or self.started or self.disconnected:
            return False
        whole = self._head_of(status, headers) + self._framed(body, more=False)
        if self._left:
            raise RuntimeError("the answer is shorter than its content-length")
        self.started = self.complete = True
        if self._parts:
            self._drop_body()
        wire.write(whole)
        if self._waiter is not None:
            self._wake()
        wire.answered(self)
        return True

    def begin(self, status: int, headers: Headers) -> bool:
        if self._wire.write_paused or self.started or self.disconnected:
            return False
        self._head = self._head_of(status, headers)
        self.started = True
        self._drop_body()
        return True

    def forget_head(self) -> None:
        self.scope.clear()
        self._wire.rest()

    @property
    def may_write(self) -> bool:
        return self.started and not (self.complete or self.disconnected or self._wire.write_paused)

    def write_more(self, body: bytes) -> None:
        data = self._head + self._framed(body, more=True) if self._head else self._framed(body, more=True)
        self._head = b""
        if data:
            self._wire.write(data)

    async def send(self, message: Message) -> None:
        """Write the next part of the answer; return immediately when the client is gone."""
        wire = self._wire
        if wire.write_paused and not self.disconnected:
            await wire.drain()
        if self.disconnected:
            return
        if self.complete:
            raise RuntimeError(f"{message['type']} after the end of the answer")
        if not self.started:
            self._begin(message)
            return
        if message["type"] != "http.response.body":
            raise RuntimeError(f"expected http.response.body, not {message['type']}")
        more: bool = message.get("more_body", False)
        if more:
            self.write_more(message.get("body", b""))
        else:
            data = self._head + self._framed(message.get("body", b""), more=False)
            self._head = b""
            if data:
                wire.write(data)
            if self._left:
                raise RuntimeError("the answer is shorter than its content-length")
            self.complete = True
            self._wake()
            wire.answered(self)

    # ---- the answer ----------

    def _begin(self, message: Message) -> None:
        if message["type"] != "http.response.start":
            raise RuntimeError(f"expected http.response.start, not {message['type']}")
        self._head = self._head_of(message["status"], message.get("headers", ()))
        self.started = True
        self._drop_body()
        self._wire.loop.call_soon(self._flush)

    def _head_of(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
        """Return the head of the answer, and decide the framing of its body."""
        lines = [STATUS_LINES[status], self._wire.default_lines()]
        closes = False
        measured = status in (204, 304)
        for name, value in headers:
            lines.append(b"%b: %b\r\n" % (name, value))
            name = name.lower()
            if name == b"content-length":
                measured = True
                self._left = int(value)
            elif name == b"connection":
                closes = b"close" in value.lower()
        if _UNFIT.search(b"".join(map(_value, headers))):
            raise RuntimeError("a header cannot be sent: it holds a control character")
        head = self._method == "HEAD"
        if head or status in (204, 304):
            self._left = 0
        elif not measured:
            if self.scope["http_version"] == "1.0":
                self.keep_alive = False  # the end of the connection ends the body
            else:
                self._chunked = True
                lines.append(b"transfer-encoding: chunked\r\n")
        if self.more:
            self.keep_alive = False
        if closes:
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)

    def _framed(self, body: bytes, more: bool) -> bytes:
        if self._chunked:
            end = b"" if more else b"0\r\n\r\n"
            return b"%x\r\n%b\r\n%b" % (len(body), body, end) if body else end
        if self._method == "HEAD":
            return b""
        if self._left is not None:
            if len(body) > self._left:
                raise RuntimeError("the answer is longer than its content-length")
            self._left -= len(body)
        return body

    def _flush(self) -> None:
        if self._head and not self.disconnected:
            head, self._head = self._head, b""
            self._wire.write(head)

    # ---- inside ----------

    def _drop_body(self) -> None:
        if self._parts:
            self._parts = []
            self.unread = 0
            if self._wire.read_paused:
                self._wire.pace()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _over(self, task: asyncio.Task[None]) -> None:
        """The application has returned; an answer that is not whole then never will be."""
        self._wire.over(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            whose = {"request_id": error.request_id} if isinstance(error, AnswerBroken) else {}
            log.error("an answer broke off", path=self._path, **whose, exc_info=error)
        if not self.complete and not self.disconnected:
            self._wire.broken(self)
