"""Keep-alive HTTP/1.1 connections that parse only what they must: they must not be what is measured."""

import asyncio
from typing import cast


def authorization(key: str) -> bytes:
    """The header line that shows a key; nothing without one."""
    return b"Authorization: Bearer %b\r\n" % key.encode() if key else b""


def post(path: str, body: bytes, key: str = "") -> bytes:
    """The bytes of a POST of JSON."""
    head = b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\n%bContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (path.encode(), authorization(key), len(body)) + body


def get(path: str, key: str = "") -> bytes:
    """The bytes of a GET."""
    return b"GET %b HTTP/1.1\r\nHost: 127.0.0.1\r\n%b\r\n" % (path.encode(), authorization(key))


class Calls(asyncio.Protocol):
    """One connection with one call under way at a time; `on_answer(status, body)` for each. Bodies have a length."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self._buffer = b""
        self.closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closing:
            self.on_lost(f"connection lost: {exc}")

    def close(self) -> None:
        """End the connection; `on_lost` is not called."""
        self.closing = True
        self.transport.abort()

    def on_answer(self, status: int, body: bytes) -> None:
        """An answer has come."""

    def on_lost(self, why: str) -> None:
        """The gateway ended the connection."""

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        end = data.find(b"\r\n\r\n")
        at = data.find(b"content-length: ")
        if end < 0 or not 0 < at < end:
            self._buffer = data
            return
        size = int(data[at + 16 : data.index(b"\r", at)])
        if len(data) < end + 4 + size:
            self._buffer = data
            return
        self._buffer = data[end + 4 + size :]
        self.on_answer(int(data[9:12]), data[end + 4 : end + 4 + size])


class Stream(asyncio.Protocol):
    """One connection that reads server-sent events, one stream at a time. Subclasses take `on_bytes` and `on_end`."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.closing = False
        self._fresh = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closing:
            self.on_end(f"connection lost: {exc}")

    def close(self) -> None:
        """End the connection; `on_end` is not called."""
        self.closing = True
        self.transport.abort()

    def ask(self, request: bytes) -> None:
        """Begin a stream."""
        self._fresh = True
        self.transport.write(request)

    def on_bytes(self, data: bytes) -> None:
        """A part of the answer as it came, chunk lengths of the transfer included."""

    def on_end(self, error: str) -> None:
        """The stream has ended; `error` empty when it ended well."""

    def data_received(self, data: bytes) -> None:
        if self._fresh:
            self._fresh = False
            if not data.startswith(b"HTTP/1.1 200"):
                self.closing = True
                self.transport.abort()
                self.on_end(data[:600].decode("utf-8", "replace"))
                return
        self.on_bytes(data)
        if data.endswith(b"\r\n0\r\n\r\n") or data == b"0\r\n\r\n":
            self.on_end("")
