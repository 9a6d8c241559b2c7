"""A TCP proxy that stands between a client and Redis and does what networks do: wait, swallow, cut, lose a reply."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field


@dataclass
class Faults:
    """What happens to the bytes that pass from now on; all off: nothing."""

    latency_s: float = 0.0
    """Each read is passed on this much later."""
    blackhole: bool = False
    """Nothing passes, in either direction; connections stay."""
    refuse: bool = False
    """New connections are closed at once."""
    lose_reply: Callable[[bytes], bool] | None = None
    """Called with each piece that the client sends: where it says True, the piece passes, and when its reply comes, the
    connection is cut instead."""
    slice_bytes: int = 0
    """Replies pass in pieces of so many bytes."""


@dataclass
class ChaosProxy:
    """Listens at `port` of 127.0.0.1 and passes on to `host`:`target` (or the unix socket `path`). Change `faults` at will."""

    path: str
    port: int = 0
    faults: Faults = field(default_factory=Faults)
    connections: int = 0
    """How many were accepted so far."""
    lost_replies: int = 0
    _open: set[asyncio.StreamWriter] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def reset(self) -> None:
        """Cut every connection, with a RST."""
        for writer in list(self._open):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.faults.refuse:
            writer.transport.abort()
            return
        try:
            there_reader, there_writer = await asyncio.open_unix_connection(self.path)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, there_writer}
        doomed = asyncio.Event()
        ways = [
            asyncio.create_task(self._pass(reader, there_writer, doomed, sends=True)),
            asyncio.create_task(self._pass(there_reader, writer, doomed, sends=False)),
        ]
        self._tasks |= set(ways)
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self._tasks -= set(ways)
            for end in (writer, there_writer):
                end.transport.abort()
                self._open.discard(end)

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        doomed: asyncio.Event,
        *,
        sends: bool,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                faults = self.faults
                if faults.latency_s:
                    await asyncio.sleep(faults.latency_s)
                while self.faults.blackhole:
                    await asyncio.sleep(0.01)
                if sends and faults.lose_reply and faults.lose_reply(data):
                    doomed.set()
                elif not sends and doomed.is_set():
                    self.lost_replies += 1
                    return
                step = faults.slice_bytes if faults.slice_bytes and not sends else len(data)
                for at in range(0, len(data), step):
                    writer.write(data[at : at + step])
                    await writer.drain()


@contextlib.asynccontextmanager
async def chaos_proxy(path: str) -> AsyncIterator[ChaosProxy]:
    """A proxy in front of the unix socket `path`, closed at the end with everything that passes through it."""
    proxy = ChaosProxy(path)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        proxy.reset()
        server.close()
        await server.wait_closed()
