"""Workers' connections: uvicorn makes the handshake, then frames go straight to and from a session.

A frame costs no message, no task and no timer: it is parsed where it arrives and passed on, and all frames of a tick of the event
loop leave in one write. Control frames, errors and the close are websockets' (`ServerProtocol`).
"""

import asyncio
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import ProtocolError
from websockets.frames import Frame, Opcode

from fairlane.workers.server.sessions.socket import SOCKET, Receiver

try:
    from websockets.speedups import apply_mask
except ImportError:  # no compiled wheel for this platform
    from websockets.utils import apply_mask


class Signal:
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
        """Write the held frames; drop them if the peer is gone."""
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


REFUSALS = ("websocket.close", "websocket.http.response.body")
_TEXT, _CONTROL, _FIN, _RESERVED = 0x81, 0x08, 0x80, 0x70


class WorkerProtocol(WebSocketsSansIOProtocol):
    """A worker's WebSocket. A message has a maximum size, and the session's rate limit pauses the reading.

    The parts of a message are joined as they arrive. A peer that is silent, or does not read what is sent, is disconnected: its
    buffer would never drain.
    """

    # as slots, so that uvicorn's own attributes stay few enough to share their names between instances
    __slots__ = (
        "_ahead",
        "_asked",
        "_deaf",
        "_ended",
        "_message",
        "_most",
        "_mute",
        "_need",
        "_over",
        "_receiver",
        "_running",
        "_stuck",
        "_stuck_s",
        "_turn",
        "closed_by_peer",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.writable = Signal(is_set=True)  # type: ignore[assignment]
        self._asked = False
        """The application has been notified of the connection."""
        self._receiver: Receiver | None = None
        self._over: asyncio.Future[tuple[int, str]] | None = None
        self._ended: tuple[int, str] | None = None
        """How the connection ended: code and reason."""
        self.closed_by_peer = False
        """The peer's close ended it."""
        self._mute = False
        """Nothing more is sent."""
        self._ahead: bytes | bytearray = b""
        """Bytes that are not parsed yet; they begin with a frame's head."""
        self._need = 2
        """Bytes that must be there before another frame can be parsed."""
        self._turn: asyncio.Handle | None = None
        """Continues parsing after a pause."""
        self._deaf = False
        """Bytes that arrive are dropped."""
        self._message: bytearray | None = None
        """The parts of a message so far, after a byte that means text or binary."""
        self._most = self.config.ws_max_size
        """Bytes that a frame may have: less behind parts of a message."""
        self._stuck: asyncio.TimerHandle | None = None
        self._stuck_s = 5.0
        self._running = False

    # ---- for the session ----------

    async def serve(self, receiver: Receiver | None, stuck_s: float) -> tuple[int, str]:
        """Pass messages to `receiver` until the connection ends. Return the close code and the reason.

        A peer that reads nothing of what it is sent for `stuck_s` is disconnected.
        """
        if self._ended is not None:
            return self._ended
        self._receiver, self._stuck_s = receiver, stuck_s
        over: asyncio.Future[tuple[int, str]] = self.loop.create_future()
        self._over = over
        try:
            if self._ahead:
                self._parse()
            return await over
        finally:
            self._receiver = self._over = None

    def say(self, text: bytes) -> None:
        """Send a text message; nothing when the connection is over."""
        if self._mute:
            return
        size = len(text)
        if size < 126:
            self.transport.write(b"\x81%c%b" % (size, text))
        elif size < 65536:
            self.transport.write(b"\x81\x7e%b%b" % (size.to_bytes(2, "big"), text))
        else:
            self.transport.write(b"\x81\x7f" + size.to_bytes(8, "big"))
            self.transport.write(text)

    def hang_up(self, code: int, reason: str) -> None:
        """End the connection from this side, once, after the frames that were sent before."""
        if self._mute:
            return
        self.stop_keepalive()
        self.conn.send_close(code, reason)
        self._write_control()
        self.close_sent = True
        self._not_stuck()
        self.close_timer = self.loop.call_later(self.close_timeout, self._cut_off)
        self._end(code, reason)
        if self._turn is None:
            self._read_on()  # for the peer's close, and nothing else

    # ---- reading ----------

    def data_received(self, data: bytes) -> None:
        if not self.handshake_initiated:
            super().data_received(data)
            return
        if self._deaf:
            return
        if not self._ahead:
            self._ahead = data
        else:
            if isinstance(self._ahead, bytes):
                self._ahead = bytearray(self._ahead)
            self._ahead += data
        if self._turn is not None or (self._over is None and not self.close_sent):
            self._read_no_further()
        elif len(self._ahead) >= self._need:
            self._parse()

    def _parse(self, *, to_end: bool = False) -> None:
        """Parse the frames that have arrived, until the session wants a pause. `to_end`: without pauses, the peer is gone."""
        self._turn = None
        self._need = 2
        data, at, pause = self._ahead, 0, 0.0
        while not self._deaf and (to_end or not pause):
            left = len(data) - at
            if left < 2:
                break
            first, size = data[at], data[at + 1]
            if not size & 0x80:
                self._fail(1002, "incorrect masking")
                break
            size &= 0x7F
            head = 6 if size < 126 else 8 if size == 126 else 14
            if left < head:
                self._need = head
                break
            if head > 6:
                size = int.from_bytes(data[at + 2 : at + head - 4], "big")
            if size > self._most:
                self._fail(1009, "the message is too large")
                break
            if left < head + size:
                self._need = head + size
                break
            body = at + head
            at = body + size
            payload = apply_mask(data[body:at], data[body - 4 : body])
            pause = (
                self._deliver(payload, text=True)
                if first == _TEXT and self._message is None
                else self._other(first, payload)
            )
        if self._deaf or to_end:
            self._ahead = b""
            return
        self._ahead = b"" if at == len(data) else data[at:] if at else data
        if pause:
            self._turn = self.loop.call_later(pause, self._parse)
            self._read_no_further()
        elif self.read_paused:
            self._read_on()

    def _other(self, first: int, payload: bytes) -> float:
        """Take a frame that is no whole text. Return the seconds until the next one may be parsed."""
        opcode = first & 0x0F
        if first & _RESERVED or opcode not in (0, 1, 2, 8, 9, 10):
            self._fail(1002, "a frame of no known kind")
        elif opcode & _CONTROL:
            if not first & _FIN or len(payload) > 125:
                self._fail(1002, "a control frame is too long, or in parts")
            else:
                self._control(Frame(Opcode(opcode), payload))
        elif (opcode == 0) == (self._message is None):
            self._fail(1002, "the parts of a message out of order")
        elif first & _FIN and self._message is None:
            return self._deliver(payload, text=False)
        else:
            message = self._message
            if message is None:
                message = self._message = bytearray((opcode,))
            message += payload
            if first & _FIN:
                self._message, self._most = None, self.config.ws_max_size
                return self._deliver(bytes(message[1:]), text=message[0] == 1)
            self._most -= len(payload)
        return 0.0

    def _deliver(self, payload: bytes, *, text: bool) -> float:
        if self.close_sent or self._receiver is None:
            return 0.0
        if not text:
            return self._receiver.received(payload, len(payload))
        try:
            message = payload.decode()
        except UnicodeDecodeError:
            self._fail(1007, "text frames hold UTF-8")
            return 0.0
        return self._receiver.received(message, len(payload))

    def _control(self, frame: Frame) -> None:
        try:
            self.conn.recv_frame(frame)
        except ProtocolError as error:
            self._fail(1002, str(error))
            return
        except UnicodeDecodeError:
            self._fail(1007, "the reason of a close is UTF-8")
            return
        self.conn.events.clear()
        if frame.opcode is Opcode.CLOSE:
            self.closed_by_peer = self._ended is None
            self._deaf = self._mute = True
            self.conn.parser = None  # type: ignore[assignment]
            self.handle_close(frame)
        elif frame.opcode is Opcode.PONG:
            self.handle_pong(frame)
        else:
            self._write_control()

    def _write_control(self) -> None:
        output = self.conn.data_to_send()
        if not self.disconnected:
            self.transport.write(b"".join(output))

    def _fail(self, code: int, reason: str) -> None:
        """Close the connection of a peer whose bytes break the protocol."""
        self._deaf = self._mute = True
        self.conn.fail(code, reason)
        self.conn.parser = None  # type: ignore[assignment]
        if self.disconnected:
            self._end(code, reason)
        else:
            self.handle_parser_exception()

    def _read_no_further(self) -> None:
        if not self.read_paused and not self.disconnected:
            self.read_paused = True
            self.transport.pause_reading()

    def _read_on(self) -> None:
        """Resume reading: nothing is left that can be parsed."""
        if self.read_paused and not self.disconnected and self._turn is None:
            self.read_paused = False
            self.transport.resume_reading()

    # ---- writing ----------

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stuck is None and not self.close_sent:
            self._stuck = self.loop.call_later(self._stuck_s, self._give_up)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._not_stuck()

    def _not_stuck(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _give_up(self) -> None:
        self._not_stuck()
        self.hang_up(1011, "the peer does not read")

    def _cut_off(self) -> None:
        """Close the connection of a peer that had its time to close it."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def keepalive_timeout(self) -> None:
        self._end(1011, f"no answer to a ping for {self.ping_timeout:g} s: it hangs, or cannot be reached")
        super().keepalive_timeout()
        if hasattr(self.transport, "abort"):
            self.transport.abort()

    # ---- the beginning and the end ----------

    @property
    def queue(self) -> Any:
        """The queue to which uvicorn reports events: this object, see `put_nowait`."""
        return self

    @queue.setter
    def queue(self, _: Any) -> None: ...

    def put_nowait(self, event: Any) -> None:
        """Take the end of the connection from uvicorn's events; the others are not needed."""
        if event["type"] == "websocket.disconnect":
            self._end(event["code"], event.get("reason") or "")

    def _end(self, code: int, reason: str) -> None:
        self._mute = True
        if self._ended is None:
            self._ended = (code, reason)
        if self._over is not None and not self._over.done():
            self._over.set_result(self._ended)

    async def receive(self) -> Any:
        """Return ASGI's events for the handshake: first the connection, then its end."""
        if not self._asked:
            self._asked = True
            return {"type": "websocket.connect"}
        code, reason = await self.serve(None, self._stuck_s)
        return {"type": "websocket.disconnect", "code": code, "reason": reason}

    async def send(self, message: Any) -> None:
        kind = message["type"]
        if kind in REFUSALS and not self.handshake_complete and self.conn.eof_sent:
            self.handshake_complete = True  # the rejected client has left
            return
        await super().send(message)
        if kind == "websocket.accept":
            del self.request, self.response
            self.scope[SOCKET] = self  # type: ignore[literal-required]
            self.conn.parser = None  # type: ignore[assignment]
        elif kind == "websocket.http.response.body":
            self.handshake_complete = True

    def shutdown(self) -> None:
        if self.handshake_complete and not self.close_sent:
            self.hang_up(1012, "")
            self.transport.close()
        else:
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """Deliver the frames that arrived before the end."""
        self._not_stuck()
        if self._turn is not None:
            self._turn.cancel()
        if self._ahead and self._over is not None and not self._mute:
            self._parse(to_end=True)
            if (frame := self.conn.close_rcvd) is not None:
                self._end(frame.code, frame.reason)
        super().connection_lost(exc)
        if not self._running:
            self._let_go()

    async def run_asgi(self) -> None:
        self._running = True
        await super().run_asgi()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        super().on_task_complete(task)
        self._running = False
        if self.disconnected:
            self._let_go()

    def _let_go(self) -> None:
        """Break the reference cycle of the parser and its connection: nothing arrives any more."""
        self._ahead = b""
        self._deaf = True
        self._turn = None
        self.conn.parser = None  # type: ignore[assignment]
