"""A gateway for testing workers: real sockets, no Redis, no queues.

    async with FakeGateway() as gateway:
        worker = Worker(gateway=gateway.url)
        ...
        outcome = await gateway.run("openaiLike", {"messages": []}, model="m", stream=True)
        assert outcome.text == "hello"

It speaks both versions of the protocol on one port and checks each frame of a worker. All waits have a
deadline.
"""

import asyncio
import contextlib
import http
import itertools
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import msgspec
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from fairlane.workers import protocol

TIMEOUT_S = 10.0
_PASSED_THROUGH = ("usage", "extra", "toolCalls")


@dataclass(slots=True)
class Outcome:
    """The outcome of a task.

    `deltas` are the worker's deltas as sent, `chunks` the number of deltas in each chunk frame. `error` is None for success.
    `rejected` is the reason if the worker rejected the task. `sent`: it reported that its request has left.
    """

    task_id: str
    deltas: list[dict[str, Any]] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    progress: list[dict[str, Any]] = field(default_factory=list)
    result: Any = None
    error: str | None = None
    error_info: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None
    rejected: str | None = None
    sent: bool = False
    last_seq: int = 0

    @property
    def text(self) -> str:
        """The contents of all deltas of the first choice, joined."""
        return "".join(d.get("content") or "" for d in self.deltas if d.get("index", 0) == 0)


@dataclass(frozen=True, slots=True)
class Frame:
    """One recorded frame: its connection (from 1), its sender, and its message."""

    connection: int
    from_worker: bool
    message: dict[str, Any]


class ProtocolViolationError(AssertionError):
    """A worker sent something that the protocol does not allow."""


class Given:
    """A task that was given to a worker. `acknowledged`, `sent`, `first_output` and `ended` are set as it progresses."""

    def __init__(self, link: "Link", task_id: str, attempt: int) -> None:
        self.task_id = task_id
        self.attempt = attempt
        self.link = link
        self.tell_sent = False
        self.acknowledged = asyncio.Event()
        self.sent = asyncio.Event()
        self.first_output = asyncio.Event()
        self.ended = asyncio.Event()
        self._outcome = Outcome(task_id)
        self._lost: str | None = None

    async def outcome(self, timeout_s: float = TIMEOUT_S) -> Outcome:
        """Wait for the end. Raise `ConnectionError` when the worker was lost, `TimeoutError`."""
        async with asyncio.timeout(timeout_s):
            await self.ended.wait()
        if self._lost is not None:
            raise ConnectionError(self._lost)
        return self._outcome

    @property
    def so_far(self) -> Outcome:
        """What has come until now."""
        return self._outcome

    async def cancel(self, reason: str = "client", grace_ms: int = 5000) -> None:
        """Send `cancel`; nothing to a version 1 worker, which has no such message."""
        await self.link.send(
            {
                "type": "cancel",
                "taskId": self.task_id,
                "attempt": self.attempt,
                "reason": reason,
                "graceMs": grace_ms,
            }
        )


class Link:
    """One worker's connection, as the gateway sees it."""

    def __init__(self, number: int, socket: ServerConnection, on_send: Callable[[Frame], None]) -> None:
        self.number = number
        self.register: dict[str, Any] | None = None
        """The last `register`; None for a version 1 worker."""
        self.tasks: dict[str, Given] = {}
        self.draining = False
        self.close_code: int | None = None
        """How the connection ended, once it has."""
        self._socket = socket
        self._on_send = on_send

    @property
    def version(self) -> int:
        return 1 if self.register is None else 2

    @property
    def slots(self) -> int:
        return 1 if self.register is None else int(self.register.get("slots", 1))

    def serves(self, model: str) -> bool:
        """Whether the worker offers this model; version 1 offers any."""
        models = ["*"] if self.register is None else self.register["models"]
        return model in models or "*" in models

    async def send(self, message: dict[str, Any]) -> None:
        """Send any message; version 1 workers are sent tasks only."""
        if self.version == 1 and message["type"] != "task":
            return
        self._on_send(Frame(self.number, False, message))
        with contextlib.suppress(ConnectionClosed):
            await self._socket.send(msgspec.json.encode(message), text=True)

    async def drain(self, *, reconnect: bool, grace_ms: int = 5000) -> None:
        """Announce to the worker that this gateway shuts down."""
        self.draining = True
        await self.send({"type": "drain", "graceMs": grace_ms, "reconnect": reconnect})

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close in good order, with any code."""
        await self._socket.close(code, reason)

    def drop(self) -> None:
        """Break the connection, as a cut cable would."""
        self._socket.transport.abort()

    def pause_reading(self) -> None:
        """Stop taking data off the socket, so that the worker's sends back up."""
        self._socket.transport.pause_reading()

    def resume_reading(self) -> None:
        self._socket.transport.resume_reading()


class FakeGateway:
    """An async context manager that listens on a free port of 127.0.0.1; `url` is its address.

    `token`: the worker token it asks for (None: none). `heartbeat_ms` and `max_message_bytes` go into
    `registered`. While `acks` is cleared, results are not acknowledged until it is set again. `refusals`
    holds (status, headers) of handshakes to refuse, first come first served. `violations` lists what workers
    did against the protocol, and leaving the context raises the first one unless `strict` is false.
    """

    def __init__(
        self,
        *,
        token: str | None = None,
        heartbeat_ms: int = 10_000,
        max_message_bytes: int = 16 * 1024 * 1024,
        strict: bool = True,
    ) -> None:
        self.token = token
        self.heartbeat_ms = heartbeat_ms
        self.max_message_bytes = max_message_bytes
        self.strict = strict
        self.acks = asyncio.Event()
        self.acks.set()
        self.links: list[Link] = []
        """Open connections, oldest first."""
        self.frames: list[Frame] = []
        self.refusals: list[tuple[int, dict[str, str]]] = []
        self.violations: list[ProtocolViolationError] = []
        self.url = ""
        self._server: Server | None = None
        self._numbers = itertools.count(1)
        self._attempts = itertools.count(1_790_000_000_000_000)
        self._changed = asyncio.Event()
        self._finished: set[tuple[str, int]] = set()

    async def __aenter__(self) -> "FakeGateway":
        self._server = await serve(
            self._on_connection,
            "127.0.0.1",
            0,
            process_request=self._admit,
            subprotocols=[Subprotocol(protocol.SUBPROTOCOL)],
            select_subprotocol=_select,
            compression=None,
            max_size=64 * 1024 * 1024,
            close_timeout=2,
        )
        self.url = f"ws://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/ws"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.acks.set()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        if kind is None and self.strict and self.violations:
            raise self.violations[0]

    # ---- what a test does ------------------------------------------------------------------------

    async def until(self, is_so: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
        """Wait until something holds; looks again after every frame and connection. Raise `TimeoutError`."""
        async with asyncio.timeout(timeout_s):
            while not is_so():
                self._changed.clear()
                await self._changed.wait()

    async def worker(self, model: str = "default", timeout_s: float = TIMEOUT_S) -> Link:
        """Wait for a worker that offers the model and has a free slot; the newest one that does."""
        await self.until(lambda: self._free(model) is not None, timeout_s)
        link = self._free(model)
        assert link is not None
        return link

    async def give(
        self,
        task_type: str,
        payload: Any,
        *,
        model: str = "default",
        stream: bool = False,
        attempt: int | None = None,
        timeout_ms: int = 60_000,
        task_id: str | None = None,
        link: Link | None = None,
        tell_sent: bool = False,
    ) -> Given:
        """Give a task to a worker (`link`: to this one, even without a free slot) and return immediately.

        `attempt`: opaque, as a gateway makes it, unless you name one. `tell_sent`: ask for `taskSent`.
        """
        link = link or await self.worker(model)
        if attempt is None:
            attempt = next(self._attempts)
        given = Given(link, task_id or str(uuid.uuid4()), attempt)
        given.tell_sent = tell_sent
        link.tasks[given.task_id] = given
        message = {"type": "task", "taskType": task_type, "taskId": given.task_id, "payload": payload}
        if link.version == 2:
            message |= {"attempt": attempt, "model": model, "stream": stream, "timeoutMs": timeout_ms}
            if tell_sent:
                message["tellSent"] = True
        await link.send(message)
        return given

    async def run(
        self,
        task_type: str,
        payload: Any,
        *,
        model: str = "default",
        stream: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> Outcome:
        """Give a task to a free worker and wait for its end."""
        given = await self.give(
            task_type, payload, model=model, stream=stream, timeout_ms=int(timeout_s * 1000)
        )
        return await given.outcome(timeout_s)

    async def cancel(self, given: Given, reason: str = "client", grace_ms: int = 5000) -> Outcome:
        """Cancel a task and wait for the worker's answer."""
        await given.cancel(reason, grace_ms)
        return await given.outcome()

    def from_workers(self, type: str) -> list[dict[str, Any]]:
        """The recorded messages of one type that workers have sent."""
        return [f.message for f in self.frames if f.from_worker and f.message.get("type") == type]

    # ---- what workers do -------------------------------------------------------------------------

    def _admit(self, socket: ServerConnection, request: Request) -> Response | None:
        if self.refusals:
            status, headers = self.refusals.pop(0)
            response = socket.respond(http.HTTPStatus(status), "refused\n")
            response.headers.update(headers)
            return response
        if request.path != "/ws":
            return socket.respond(http.HTTPStatus.NOT_FOUND, "workers connect to /ws\n")
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return socket.respond(http.HTTPStatus.UNAUTHORIZED, "wrong worker token\n")
        return None

    async def _on_connection(self, socket: ServerConnection) -> None:
        link = Link(next(self._numbers), socket, self._record)
        is_version_2 = socket.subprotocol == protocol.SUBPROTOCOL
        if not is_version_2:
            self._join(link)
        try:
            async for data in socket:
                await self._on_frame(link, data)
        except ConnectionClosed:
            pass  # the end is noted below, in good order or not
        finally:
            link.close_code = socket.close_code
            if link in self.links:
                self.links.remove(link)
            for given in link.tasks.values():
                given._lost = "The worker disconnected."
                given.ended.set()
            self._changed.set()

    async def _on_frame(self, link: Link, data: str | bytes) -> None:
        try:
            message = _checked(data)
        except (msgspec.DecodeError, UnicodeDecodeError, TypeError) as error:
            self._blame(f"{error} in {data[:200]!r}")
            return
        self._record(Frame(link.number, True, message))
        if message["type"] == "register":
            link.register = message
            self._join(link)
            await link.send(
                {
                    "type": "registered",
                    "workerId": f"w{link.number}",
                    "protocol": 2,
                    "heartbeatMs": self.heartbeat_ms,
                    "deadAfterMs": 3 * self.heartbeat_ms,
                    "limits": {"maxMessageBytes": self.max_message_bytes},
                }
            )
        elif message["type"] == "draining":
            link.draining = True
        elif message["type"] != "heartbeat":
            await self._on_task_message(link, message)
        self._changed.set()

    async def _on_task_message(self, link: Link, message: dict[str, Any]) -> None:
        given = link.tasks.get(message["taskId"])
        key = (message["taskId"], message.get("attempt", 0 if given is None else given.attempt))
        known = given is not None and given.attempt == key[1]
        if message["type"] == "taskResult":
            if known and given is not None:
                _finish(given, message, self._blame)
                del link.tasks[given.task_id]
            status = "accepted" if known else "duplicate" if key in self._finished else "unknown"
            self._finished.add(key)
            await self._acknowledge(link, key, status)
        elif given is None or not known:
            self._blame(f"{message['type']} for a task that the worker does not hold")
        elif message["type"] == "taskChunk":
            _add_chunk(given, message, self._blame)
        elif message["type"] == "taskAck":
            given.acknowledged.set()
        elif message["type"] == "taskSent":
            if not given.tell_sent or given.sent.is_set():
                self._blame("taskSent without a request for it")
            given.acknowledged.set()
            given._outcome.sent = True
            given.sent.set()
        elif message["type"] == "taskProgress":
            given._outcome.progress.append(message)
        elif message["type"] == "taskReject":
            given._outcome.rejected = message["reason"]
            given.ended.set()
            del link.tasks[given.task_id]

    async def _acknowledge(self, link: Link, key: tuple[str, int], status: str) -> None:
        """Answer a result; while `acks` is cleared, the answer and all frames after it wait."""
        self._changed.set()
        await self.acks.wait()
        await link.send({"type": "resultAck", "taskId": key[0], "attempt": key[1], "status": status})

    def _free(self, model: str) -> Link | None:
        for link in reversed(self.links):
            if not link.draining and link.serves(model) and len(link.tasks) < link.slots:
                return link
        return None

    def _join(self, link: Link) -> None:
        if link not in self.links:
            self.links.append(link)
        self._changed.set()

    def _record(self, frame: Frame) -> None:
        self.frames.append(frame)
        self._changed.set()

    def _blame(self, what: str) -> None:
        self.violations.append(ProtocolViolationError(what))
        self._changed.set()


def _select(_: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    return Subprotocol(protocol.SUBPROTOCOL) if protocol.SUBPROTOCOL in offered else None


def _checked(data: str | bytes) -> dict[str, Any]:
    """The message as plain values, after a check against the protocol's types.

    JSON that the protocol passes through as it is, is left out of the check.
    """
    message = msgspec.json.decode(data)
    if not isinstance(message, dict):
        raise TypeError("a frame is a JSON object")
    shape = {name: value for name, value in message.items() if name not in _PASSED_THROUGH}
    if isinstance(shape.get("deltas"), list):
        shape["deltas"] = [
            {name: value for name, value in delta.items() if name not in _PASSED_THROUGH}
            for delta in shape["deltas"]
        ]
    protocol.from_worker.decode(msgspec.json.encode(shape))
    return message


def _add_chunk(given: Given, message: dict[str, Any], blame: Callable[[str], None]) -> None:
    outcome = given._outcome
    if given.link.version == 1:
        deltas = [{"content": message.get("delta", "")}]
    else:
        deltas = message.get("deltas", [])
        if message.get("seq") != outcome.last_seq + 1:
            blame(f"seq {message.get('seq')} after {outcome.last_seq}")
        outcome.last_seq = message.get("seq", 0)
    outcome.deltas += deltas
    outcome.chunks.append(len(deltas))
    given.first_output.set()


def _finish(given: Given, message: dict[str, Any], blame: Callable[[str], None]) -> None:
    outcome = given._outcome
    if given.link.version == 2 and message.get("lastSeq", 0) != outcome.last_seq:
        blame(f"lastSeq {message.get('lastSeq', 0)} after {outcome.last_seq} chunk frames")
    outcome.result = message.get("result")
    outcome.error = message.get("error") or None
    outcome.error_info = message.get("errorInfo")
    outcome.usage = message.get("usage")
    outcome.timings = message.get("timings")
    given.ended.set()
