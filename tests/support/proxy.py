"""TCP proxies that stand between a client and its server and do what networks do: wait, swallow, cut, lose a reply."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter


class Proxy:
    """Listens at `port` of 127.0.0.1 and passes on to a unix socket, or to a port of 127.0.0.1, while the context is open."""

    def __init__(self, target: str | int) -> None:
        self.target = target
        """Where the next connections lead to."""
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self._open: set[Writer] = set()
        self.connections = 0
        """How many were accepted so far."""

    @property
    def port(self) -> int:
        assert self._server
        return int(self._server.sockets[0].getsockname()[1])

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server
        self._server.close()
        for link in self._links:
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    def reset(self) -> None:
        """Cut every connection, with a RST."""
        for writer in list(self._open):
            writer.transport.abort()

    async def pass_on(self, reader: Reader, writer: Writer, link: set[str], *, sends: bool) -> None:
        """Pass on what the client `sends`, or else its server answers; the connection is over with it. `link`: notes on it."""
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()

    async def accept(self, reader: Reader, writer: Writer) -> None:
        """A new connection, which lasts as long as this."""
        if isinstance(self.target, str):
            there = await asyncio.open_unix_connection(self.target)
        else:
            there = await asyncio.open_connection("127.0.0.1", self.target)
        ends, notes = {writer, there[1]}, set[str]()
        self._open |= ends
        ways = [
            asyncio.create_task(self.pass_on(reader, there[1], notes, sends=True)),
            asyncio.create_task(self.pass_on(there[0], writer, notes, sends=False)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._open -= ends
            there[1].transport.abort()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _serve(self, reader: Reader, writer: Writer) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task
        self._links.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self.accept(reader, writer)
        finally:
            writer.transport.abort()
            self._links.discard(task)


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


class ReplyProxy(Proxy):
    """Before a Redis: breaks the connection at the reply that `drops` chooses, by its number over all connections, from 1. The
    command ran, and nobody hears of it."""

    def __init__(self, target: str, drops: Callable[[int], bool]) -> None:
        super().__init__(target)
        self._drops = drops
        self.replies = 0
        self.dropped = 0

    async def pass_on(self, reader: Reader, writer: Writer, link: set[str], *, sends: bool) -> None:
        if sends:
            await super().pass_on(reader, writer, link, sends=sends)
            return
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


class ChaosProxy(Proxy):
    """Before a Redis. Change `faults` at will."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.faults = Faults()
        self.lost_replies = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    async def accept(self, reader: Reader, writer: Writer) -> None:
        if not self.faults.refuse:
            await super().accept(reader, writer)

    async def pass_on(self, reader: Reader, writer: Writer, link: set[str], *, sends: bool) -> None:
        while data := await reader.read(1 << 16):
            faults = self.faults
            if faults.latency_s:
                await asyncio.sleep(faults.latency_s)
            while self.faults.blackhole:
                await asyncio.sleep(0.01)
            if sends and faults.lose_reply and faults.lose_reply(data):
                link.add("doomed")
            elif not sends and "doomed" in link:
                self.lost_replies += 1
                return
            step = faults.slice_bytes if faults.slice_bytes and not sends else len(data)
            for at in range(0, len(data), step):
                writer.write(data[at : at + step])
                await writer.drain()
