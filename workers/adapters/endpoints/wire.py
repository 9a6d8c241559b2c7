"""One connection to a server: bytes out and in, as it is or through TLS. It is reached by its address, and by nothing else."""

import asyncio
import fcntl
import socket
import ssl
import struct
import termios
from ipaddress import IPv6Address
from typing import cast

from fairlane.workers.adapters.endpoints.addresses import Address

READ_BYTES = 16 * 1024
"""At a time, so that others have their turn between."""
MOST_BUFFERED = 64 * 1024
"""Received and not read; beyond it the server has to wait."""


class Wire(asyncio.Protocol):
    """A TCP connection. `read` is for one reader at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._buffer = bytearray()
        self._over = False
        self._failure: Exception | None = None
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None

    @classmethod
    async def open(cls, address: Address, port: int) -> "Wire":
        """A connection to exactly this address. Raises OSError."""
        loop = asyncio.get_running_loop()
        family = socket.AF_INET6 if isinstance(address, IPv6Address) else socket.AF_INET
        raw = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            raw.setblocking(False)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(raw, (str(address), port))
            wire = cls()
            wire._socket = raw
            await loop.create_connection(lambda: wire, sock=raw)
        except BaseException:
            raw.close()
            raise
        return wire

    # ---- asyncio's side --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > MOST_BUFFERED and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        self._over = True
        self._wake()
        return True  # what we send may still be wanted

    def connection_lost(self, exc: Exception | None) -> None:
        self._over, self._failure = True, exc
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ---- the call's side -------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send all of it; returns at once. Raises OSError when the connection is over."""
        assert self._transport is not None
        if self._transport.is_closing():
            raise self._failure or ConnectionResetError("the connection is over")
        self._transport.write(data)

    async def read(self) -> bytes:
        """What has come, at most READ_BYTES; b"" at the end. Raises OSError when the connection broke. Others run meanwhile."""
        if self._buffer:
            await asyncio.sleep(0)
        while not self._buffer and not self._over:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if not self._buffer and self._failure is not None:
            raise self._failure
        data = bytes(self._buffer[:READ_BYTES])
        del self._buffer[: len(data)]
        if self._paused and len(self._buffer) <= MOST_BUFFERED and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    @property
    def quiet(self) -> bool:
        """Nothing has come that nobody has read, and the other side goes on: it may be used for another call."""
        return not self._buffer and not self._over

    @property
    def written(self) -> bool:
        """Whether the system has taken all that was sent."""
        return self._transport is not None and not self._transport.get_write_buffer_size()

    @property
    def acknowledged(self) -> bool:
        """Whether the other machine is known to have all that was sent; never, where the system does not tell."""
        assert self._socket is not None
        if not self.written:
            return False
        try:
            found = fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
        except (OSError, ValueError):  # also where the connection is over
            return False
        return bool(struct.unpack("i", found)[0] == 0)

    def abort(self) -> None:
        """End the connection at once; nothing more is sent."""
        if self._transport is not None:
            self._transport.abort()


class SecureWire:
    """TLS over a wire, with the same methods. An end that the server did not tell is an error: who knows who cut the answer."""

    def __init__(self, wire: Wire, context: ssl.SSLContext, host: str) -> None:
        self._wire = wire
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=host)

    async def greet(self) -> None:
        """The handshake. Raises ssl.SSLError (with the certificate's fault) or OSError."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                await self._fill()
            else:
                self._flush()
                return

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]
        self._flush()

    async def read(self) -> bytes:
        while True:
            try:
                return self._tls.read(READ_BYTES)
            except ssl.SSLWantReadError:
                self._flush()
                await self._fill()
            except ssl.SSLZeroReturnError:
                return b""

    @property
    def quiet(self) -> bool:
        return self._wire.quiet and not self._in.pending and not self._tls.pending()

    @property
    def written(self) -> bool:
        return self._wire.written

    @property
    def acknowledged(self) -> bool:
        return self._wire.acknowledged

    def abort(self) -> None:
        self._wire.abort()

    async def _fill(self) -> None:
        data = await self._wire.read()
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()

    def _flush(self) -> None:
        if self._out.pending:
            self._wire.write(self._out.read())


AnyWire = Wire | SecureWire
