"""Workers' connections: uvicorn's WebSockets, with fewer system calls, bounded, and without patience for a dead peer."""

import asyncio
from typing import Any, Literal

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from fairlane.workers.server.signals import Signal


class OneWrite:
    """A transport that joins all frames of a tick of the event loop: one system call costs more than the copy."""

    __slots__ = ("_held", "_loop", "_transport", "abort")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        self.abort = transport.abort

    def write(self, data: bytes) -> None:
        held = self._held
        if not held:
            self._loop.call_soon(self.flush)
        held.append(data)

    def flush(self) -> None:
        """Write what was held back; nothing when the peer has gone meanwhile."""
        held = self._held
        if held:
            if not self._transport.is_closing():
                self._transport.write(held[0] if len(held) == 1 else b"".join(held))
            held.clear()

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


SLICE = 4096
"""Bytes that are parsed at once: at most 700 frames, so some milliseconds."""
FRAMES_AT_ONCE = 64
"""Frames after which others may run before the next slice is parsed."""


class _Inbox:
    """What the application has not received yet: a list, as it is mostly empty, with asyncio.Queue's names."""

    __slots__ = ("events", "news")

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.news = Signal()

    def empty(self) -> bool:
        return not self.events

    def put_nowait(self, event: Any) -> None:
        self.events.append(event)
        self.news.set()


class WorkerProtocol(WebSocketsSansIOProtocol):
    """A worker's WebSocket: bounded in what it costs at a time, and in what it keeps.

    What comes is parsed in slices, the next one when the application has received what the last one brought and others have
    run. The parts of a message are joined as they come. Frames that are no message yet, and control frames, are told to the
    application as `websocket.frames` {frames, size}: they count for its limits like messages; of a message that came in parts
    `size` says what was not told before. A peer that is silent is cut off: waiting for its buffer to drain would take for ever.
    """

    # as slots, so that uvicorn's own attributes stay few enough to share their names between instances
    __slots__ = ("_ahead", "_ended", "_message", "_parsing", "_part_bytes", "_parts", "_running")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.queue = _Inbox()  # type: ignore[assignment]
        self.writable = Signal(is_set=True)  # type: ignore[assignment]
        self._ahead: memoryview | None = None
        self._parsing = False
        self._message: bytearray | None = None
        self._parts = 0
        self._part_bytes = 0
        self._ended: int | None = None
        """The close code of a connection that is lost, until all that had come before is received."""
        self._running = False

    # ---- reading ----------

    def data_received(self, data: bytes) -> None:
        self._ahead = memoryview(data if self._ahead is None else bytes(self._ahead) + data)
        if not self._parsing and self._may_parse:
            self._parse()
        elif not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def _parse(self) -> None:
        """Parse slices until the application has something to receive, or others should run."""
        self._parsing = False
        frames = 0
        while self._ahead is not None and frames < FRAMES_AT_ONCE and self._may_parse:
            piece, rest = self._ahead[:SLICE], self._ahead[SLICE:]
            self._ahead = rest if rest else None
            self.conn.receive_data(piece)  # type: ignore[arg-type]
            if self.conn.parser_exc is not None:
                self._ahead = None
                self.handle_parser_exception()
                break
            frames += len(self.conn.events)
            self.handle_events()
        if self._parts and not self.close_sent:
            told: Any = {"type": "websocket.frames", "frames": self._parts, "size": self._part_bytes}
            self.queue.put_nowait(told)
        self._parts = self._part_bytes = 0
        if self._ahead is None and self._may_parse:
            self._read_on()
        elif not self.read_paused and not self.disconnected:
            self.read_paused = True
            self.transport.pause_reading()
        if self._ahead is not None and self._may_parse:
            self._parse_soon()

    @property
    def _may_parse(self) -> bool:
        """The application waits for something, or for nothing more: then only the peer's close is to be found."""
        return self.queue.empty() or self.close_sent

    def _parse_soon(self) -> None:
        if not self._parsing:
            self._parsing = True
            self.loop.call_soon(self._parse)

    def _read_on(self) -> None:
        """Nothing is left of what has come."""
        if self._ended is not None:
            self.queue.put_nowait({"type": "websocket.disconnect", "code": self._ended})
            self._ended = None
        elif self.read_paused and not self.disconnected:
            self.read_paused = False
            self.transport.resume_reading()

    async def receive(self) -> Any:
        inbox = self.queue
        while inbox.empty():
            inbox.news.clear()  # type: ignore[attr-defined]
            if self._ahead is not None:
                self._parse_soon()
            else:
                self._read_on()
            await inbox.news.wait()  # type: ignore[attr-defined]
        return inbox.events.pop(0)  # type: ignore[attr-defined]

    def connection_lost(self, exc: Exception | None) -> None:
        """What had come before is still received."""
        before = len(self.queue.events)  # type: ignore[attr-defined]
        super().connection_lost(exc)
        if not self._running:
            self._let_go()
        elif self._ahead is not None:
            self._ended = self.queue.events.pop(before)["code"]  # type: ignore[attr-defined]
            self._parse_soon()

    # ---- frames ----------

    def handle_text(self, event: Frame) -> None:
        self._begin("text", event)

    def handle_bytes(self, event: Frame) -> None:
        self._begin("bytes", event)

    def _begin(self, kind: Literal["text", "bytes"], event: Frame) -> None:
        self.curr_msg_data_type = kind
        if event.fin:
            self._deliver(event.data, len(event.data))
        else:
            self._message = bytearray(event.data)
            self._part(event)

    def handle_cont(self, event: Frame) -> None:
        message = self._message
        assert message is not None
        message += event.data
        if event.fin:
            self._message = None
            self._deliver(message, len(event.data))
        else:
            self._part(event)

    def _part(self, event: Frame) -> None:
        self._parts += 1
        self._part_bytes += len(event.data)

    def _deliver(self, data: Any, size: int) -> None:
        if self.close_sent:
            return
        if self.curr_msg_data_type == "text":
            try:
                message = {"type": "websocket.receive", "text": data.decode(), "size": size}
            except UnicodeDecodeError:
                self.conn.fail(1007, "text frames hold UTF-8")
                self._ahead = None
                self.handle_parser_exception()
                return
        else:
            message = {"type": "websocket.receive", "bytes": bytes(data), "size": size}
        self.queue.put_nowait(message)  # type: ignore[arg-type]

    def handle_ping(self) -> None:
        self._parts += 1
        if not self.disconnected:
            super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        self._parts += 1
        super().handle_pong(event)

    # ---- the beginning and the end ----------

    async def send(self, message: Any) -> None:
        await super().send(message)
        kind = message["type"]
        if kind == "websocket.accept":
            del self.request, self.response
        elif kind == "websocket.http.response.body":
            self.handshake_complete = True
        elif kind == "websocket.close" and self._ahead is not None:
            self._parse_soon()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        if hasattr(self.transport, "abort"):
            self.transport.abort()

    async def run_asgi(self) -> None:
        self._running = True
        await super().run_asgi()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        super().on_task_complete(task)
        self._running = False
        if self.disconnected:
            self._let_go()

    def _let_go(self) -> None:
        """Nothing comes any more and nobody receives: the parser, which knows its connection, would keep both."""
        self._ahead = None
        self.conn.parser = None  # type: ignore[assignment]
