"""As much of a WebSocket client as a worker needs, at the least cost: it must not be what is measured.

Masks with zeros, which leaves the bytes as they are. Understands whole text frames, ping and close.
"""

import asyncio
import base64
import os
from typing import cast

_TEXT, _CLOSE, _PING, _PONG = 0x1, 0x8, 0x9, 0xA
_FINAL = 0x80
_MASKED = 0x80
_NO_MASK = b"\0\0\0\0"


def frame(payload: bytes, opcode: int = _TEXT) -> bytes:
    """One masked frame."""
    size = len(payload)
    if size < 126:
        return bytes((_FINAL | opcode, _MASKED | size)) + _NO_MASK + payload
    if size < 65_536:
        return bytes((_FINAL | opcode, _MASKED | 126)) + size.to_bytes(2, "big") + _NO_MASK + payload
    return bytes((_FINAL | opcode, _MASKED | 127)) + size.to_bytes(8, "big") + _NO_MASK + payload


class WebSocket(asyncio.Protocol):
    """A client connection. Subclasses take `on_open` and `on_message`."""

    def __init__(self, host: str, path: str, subprotocol: str, token: str = "") -> None:
        self._head = (
            f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\n"
            "Sec-WebSocket-Version: 13\r\n"
            + (f"Authorization: Bearer {token}\r\n" if token else "")
            + (f"Sec-WebSocket-Protocol: {subprotocol}\r\n" if subprotocol else "")
            + "\r\n"
        ).encode()
        self._buffer = bytearray()
        self._open = False
        self.transport: asyncio.Transport
        self.paused = False
        """The gateway does not read as fast as this worker writes."""
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why the connection ended."""

    def on_open(self) -> None:
        """The handshake is done."""

    def on_message(self, data: bytes) -> None:
        """A text message has come."""

    def send(self, payload: bytes) -> None:
        """Write one text message immediately."""
        self.transport.write(frame(payload))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._head)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(f"connection lost: {exc}" if exc else "connection lost")

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        if not self._open:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            if not buffer.startswith(b"HTTP/1.1 101"):
                self.closed.set_result(bytes(buffer[:200]).decode("latin-1"))
                self.transport.abort()
                return
            self._open = True
            del buffer[: end + 4]
            self.on_open()
        at, available = 0, len(buffer)
        while available - at >= 2:
            size, start = buffer[at + 1] & 0x7F, at + 2
            if size == 126:
                size, start = int.from_bytes(buffer[at + 2 : at + 4], "big"), at + 4
            elif size == 127:
                size, start = int.from_bytes(buffer[at + 2 : at + 10], "big"), at + 10
            if available - start < size:
                break
            self._take(buffer[at] & 0x0F, bytes(buffer[start : start + size]))
            at = start + size
        del buffer[:at]

    def _take(self, opcode: int, payload: bytes) -> None:
        if opcode == _TEXT:
            self.on_message(payload)
        elif opcode == _PING:
            self.transport.write(frame(payload, _PONG))
        elif opcode == _CLOSE:
            if not self.closed.done():
                self.closed.set_result(f"closed: {payload[2:].decode('utf-8', 'replace')}")
            self.transport.close()
