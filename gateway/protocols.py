"""uvicorn's connections with the limits it lacks: how long and how large a request head may be, how long a dead peer is kept."""

import asyncio
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from fairlane.gateway.http import CONNECTION

HEAD_S = 10.0
"""A connection that has not sent a whole request head by then is closed."""
STALL_S = 30.0
"""A client that reads nothing for so long while something waits for it is cut off; a stream it had can be resumed."""
MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 100

_TOO_LARGE = b'{"error":"The request head is too large","code":"HEAD_TOO_LARGE"}'


_HTTP = b"HTTP/1."


class OneWrite:
    """A transport that joins what belongs together: one system call costs more than the copy.

    The head of an HTTP answer waits for the first of its body, at most until the end of the event loop's tick. On a WebSocket all
    frames of a tick go together.
    """

    __slots__ = ("_held", "_loop", "_transport", "abort", "every_write")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        self.abort = transport.abort
        self.every_write = False

    def write(self, data: bytes) -> None:
        held = self._held
        if self.every_write:
            if not held:
                self._loop.call_soon(self.flush)
            held.append(data)
        elif held:
            held.append(data)
            self.flush()
        elif data.startswith(_HTTP):
            held.append(data)
            self._loop.call_soon(self.flush)
        else:
            self._transport.write(data)

    def flush(self) -> None:
        """Write what was held back."""
        held = self._held
        if held:
            self._transport.write(held[0] if len(held) == 1 else b"".join(held))
            held.clear()

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _Signal:
    """An asyncio.Event for one waiter, a twentieth of its size: a gateway holds thousands of quiet connections."""

    __slots__ = ("_is_set", "_waiter")

    def __init__(self, is_set: bool = False) -> None:
        self._is_set = is_set
        self._waiter: asyncio.Future[None] | None = None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear(self) -> None:
        self._is_set = False

    async def wait(self) -> bool:
        if not self._is_set:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return True


class _Flow(FlowControl):
    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.read_paused = False
        self.write_paused = False
        self._is_writable_event = _Signal(is_set=True)  # type: ignore[assignment]


class _Pipeline(list[Any]):
    """Requests that wait for the one before; a deque would take its space when it is empty, too."""

    __slots__ = ()

    def appendleft(self, item: Any) -> None:
        self.insert(0, item)


class HttpProtocol(HttpToolsProtocol):
    """HTTP with a bounded head. Costs nothing where a request comes in one piece."""

    # as slots, so that uvicorn's own attributes stay few enough to share their names between instances
    __slots__ = ("_head_bytes", "_head_timer", "_in_head", "_on_lost", "_stall_timer")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pipeline = _Pipeline()  # type: ignore[assignment]
        self._in_head = True
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._on_lost: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(OneWrite(transport, self.loop))  # type: ignore[arg-type]
        self.flow = _Flow(self.transport)
        self._head_timer = self.loop.call_later(HEAD_S, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_stall_timer()
        super().connection_lost(exc)
        on_lost, self._on_lost = self._on_lost, None
        if on_lost:
            on_lost()

    def watch(self, on_lost: Callable[[], None] | None) -> bool:
        """Call `on_lost` when the client is gone; False when it is gone already. None: stop."""
        self._on_lost = on_lost
        return self.parser is not None

    def handle_websocket_upgrade(self) -> None:
        self._stop_timer()
        self.transport.every_write = True  # type: ignore[attr-defined]
        super().handle_websocket_upgrade()

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
        self.scope[CONNECTION] = self  # type: ignore[literal-required]
        self._in_head = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        if len(self.headers) > MAX_HEADERS or sum(len(n) + len(v) for n, v in self.headers) > MAX_HEAD_BYTES:
            self._refuse_head()
            raise httptools.HttpParserError("the request head is too large")
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:
            self.cycle.message_event = _Signal()  # type: ignore[assignment]

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
