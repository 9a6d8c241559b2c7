"""One request and its answer over a connection: HTTP/1.1 by h11, with a bound for everything that the server may send."""

from collections.abc import Callable
from dataclasses import dataclass

import h11

from fairlane.workers.adapters.endpoints.wire import READ_BYTES, AnyWire
from fairlane.workers.sdk.errors import TaskError

MAX_HEAD_BYTES = 32 * 1024
"""Of an answer's head, with all interim answers before it; and of its trailers."""
MOST_INTERIM = 16
"""Answers 1xx before the one that counts."""
AROUND_BYTES = 64 * 1024
"""What may come around a body, beyond as many bytes as it has: where its chunks begin and end, and trailers."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said, as it said it."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    reusable: bool
    """Whether the connection may be used for another call."""


class Exchange:
    """One of them. `began`: whether anything of the answer had come, for whoever has to tell what broke."""

    def __init__(self, wire: AnyWire, max_body: int, on_first_byte: Callable[[], None]) -> None:
        self.began = False
        self._wire = wire
        self._max_body = max_body
        self._on_first_byte = on_first_byte
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._came = 0
        self._may_come = MAX_HEAD_BYTES + READ_BYTES  # the last of it may hold the beginning of the body
        self._method = b""

    def send(self, method: bytes, target: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Send the request. `headers` tell the body's length. Raises h11.LocalProtocolError for what is no request."""
        self._method = method
        request = h11.Request(method=method, target=target, headers=headers)
        parts = [self._http.send(request)]
        if body:
            parts.append(self._http.send(h11.Data(data=body)))
        parts.append(self._http.send(h11.EndOfMessage()))
        self._wire.write(b"".join(parts))

    async def answer(self) -> Answer:
        """The answer, whole. Raises OSError and h11.RemoteProtocolError for one that breaks off or is none, and TaskError for one
        that is larger than it may be.
        """
        head = await self._head()
        self._came, self._may_come = 0, AROUND_BYTES
        if self._told(head) > self._max_body:
            raise too_large(self._max_body)
        body = bytearray()
        while not isinstance(event := await self._next(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                body += event.data
                if len(body) > self._max_body:
                    raise too_large(self._max_body)
                self._may_come = 2 * len(body) + AROUND_BYTES
            else:
                raise h11.RemoteProtocolError("the server ended the connection")
        http = self._http
        done = http.our_state is h11.DONE and http.their_state is h11.DONE
        reusable = done and not http.trailing_data[0] and self._wire.quiet and self._wire.written
        return Answer(head.status_code, list(head.headers.raw_items()), bytes(body), reusable)

    def _told(self, head: h11.Response) -> int:
        """How large a body is to come, as far as the head tells."""
        if self._method == b"HEAD" or head.status_code in (204, 304):
            return 0
        told = next((value for name, value in head.headers if name == b"content-length"), b"0")
        return int(told[:20])

    async def _head(self) -> h11.Response:
        for _ in range(MOST_INTERIM):
            event = await self._next()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse) or event.status_code == 101:
                raise h11.RemoteProtocolError("the server sent no answer")
        raise _too_much()

    async def _next(self) -> h11.Event:
        """The next part of the answer."""
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                if error.error_status_hint == 431:  # a head, or trailers, or a line
                    raise _too_much() from error
                raise
            if event is h11.PAUSED:
                raise h11.RemoteProtocolError("the server ended the connection")
            if event is not h11.NEED_DATA:
                assert not isinstance(event, type)
                return event
            data = await self._wire.read()
            if data and not self.began:
                self.began = True
                self._on_first_byte()
            self._came += len(data)
            if self._came > self._may_come:
                raise _too_much()
            self._http.receive_data(data)


def too_large(limit: int) -> TaskError:
    """The failure for an answer that is larger than its endpoint's may be."""
    return TaskError("RESPONSE_TOO_LARGE", f"The endpoint's answer has more than {limit} bytes.")


def _too_much() -> TaskError:
    return TaskError(
        "RESPONSE_TOO_LARGE",
        "The endpoint's answer has more before its body, or around it, than an answer may have.",
    )
