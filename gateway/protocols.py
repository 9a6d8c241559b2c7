"""uvicorn's connections with the limits it lacks: how long and how large a request's head may be, how long a dead peer is kept."""

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

HEAD_S = 10.0
"""A connection that has not sent a whole request head by then is closed."""
STALL_S = 30.0
"""A client that reads nothing for so long while something waits for it is cut off; a stream it had can be resumed."""
MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 100

_TOO_LARGE = b'{"error":"The request head is too large","code":"HEAD_TOO_LARGE"}'


class HttpProtocol(HttpToolsProtocol):
    """HTTP with a bounded head. Costs nothing where a request comes in one piece."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_S, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_stall_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(STALL_S, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_stall_timer()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if not self._in_head:
            self._stop_timer()
        elif self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_head()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self._head_is_late)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        if len(self.headers) > MAX_HEADERS or sum(len(n) + len(v) for n, v in self.headers) > MAX_HEAD_BYTES:
            self._refuse_head()
            raise httptools.HttpParserError("the request head is too large")
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._in_head and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()

    def _refuse_head(self) -> None:
        if not self.transport.is_closing():
            head = (
                b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n"
                b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(_TOO_LARGE)
            )
            self.transport.write(head + _TOO_LARGE)
            self.transport.close()

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class WorkerProtocol(WebSocketsSansIOProtocol):
    """A worker's WebSocket, cut off when the peer is silent: waiting for its buffer to drain would take for ever."""

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        if hasattr(self.transport, "abort"):
            self.transport.abort()
