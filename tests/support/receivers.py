"""Receivers of webhooks: real HTTP servers that keep what came and answer as a test wants."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

LOCAL = {"allow_private": ["127.0.0.0/8"]}
"""What `webhooks` must say so that these can be reached."""


@dataclass
class Got:
    """A request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Reply = int | bytes | None
"""A status, a whole answer as bytes, or None: none at all, for as long as the test runs."""


@dataclass
class Receiver:
    """One server. `reply` decides what is answered to a request; the default takes all."""

    url: str = ""
    got: list[Got] = field(default_factory=list)
    reply: Callable[[Got], Reply] = lambda _: 200
    most_at_once: int = 0
    connections: int = 0
    _now: int = 0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def ids(self) -> list[str]:
        return [one.id for one in self.got]

    @property
    def events(self) -> list[str]:
        return [one.json["type"] for one in self.got]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await self._one(reader, writer):
                pass
        writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)
        }
        got = Got(head[0].split(" ")[1], headers, await reader.readexactly(int(headers["content-length"])))
        self.got.append(got)
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        try:
            reply = self.reply(got)
            if reply is None:
                await asyncio.Event().wait()
            await asyncio.sleep(0)
        finally:
            self._now -= 1
        if isinstance(reply, bytes):
            writer.write(reply)
            await writer.drain()
            return False
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n" % reply)
        await writer.drain()
        return True


@contextlib.asynccontextmanager
async def receiving(
    reply: Callable[[Got], Reply] | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Receiver]:
    """A receiver on a free port of this machine."""
    receiver = Receiver()
    if reply is not None:
        receiver.reply = reply
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=tls)
    scheme = "https" if tls else "http"
    host = "localhost" if tls else "127.0.0.1"
    receiver.url = f"{scheme}://{host}:{server.sockets[0].getsockname()[1]}/hook"
    try:
        yield receiver
    finally:
        server.close()
        for task in receiver._tasks:
            task.cancel()
        await asyncio.gather(*receiver._tasks)
