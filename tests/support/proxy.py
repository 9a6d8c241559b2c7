"""A TCP proxy before a Redis that swallows one reply and breaks the connection: the command ran, and nobody hears of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable


def reply_end(data: bytes, at: int = 0) -> int:
    """Where the reply that begins at `at` ends; -1 when it is not complete."""
    line_end = data.find(b"\r\n", at)
    if line_end < 0:
        return -1
    kind, rest = data[at : at + 1], data[at + 1 : line_end]
    after = line_end + 2
    if kind == b"$":
        size = int(rest)
        after += size + 2 if size >= 0 else 0
        return after if after <= len(data) else -1
    if kind == b"*":
        for _ in range(max(int(rest), 0)):
            after = reply_end(data, after)
            if after < 0:
                return -1
    return after


class ReplyProxy:
    """Passes everything on until the reply that `drops` chooses, by its number over all connections, from 1."""

    def __init__(self, socket_path: str, drops: Callable[[int], bool]) -> None:
        self._socket_path = socket_path
        self._drops = drops
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self.replies = 0
        self.dropped = 0

    @property
    def port(self) -> int:
        assert self._server
        return int(self._server.sockets[0].getsockname()[1])

    async def __aenter__(self) -> "ReplyProxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server
        self._server.close()
        for link in self._links:
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._links.add(task)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            async with self._store() as (store_reader, store_writer):
                both = [
                    asyncio.create_task(self._pass_on(reader, store_writer)),
                    asyncio.create_task(self._replies(store_reader, writer)),
                ]
                try:
                    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in both:
                        way.cancel()
                    await asyncio.gather(*both, return_exceptions=True)
        writer.transport.abort()
        self._links.discard(task)

    @contextlib.asynccontextmanager
    async def _store(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_unix_connection(self._socket_path)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()

    async def _replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rest = b""
        while data := await reader.read(1 << 16):
            rest += data
            while (end := reply_end(rest)) >= 0:
                self.replies += 1
                if self._drops(self.replies):
                    self.dropped += 1
                    return
                writer.write(rest[:end])
                rest = rest[end:]
            await writer.drain()
