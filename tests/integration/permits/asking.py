"""Somebody who asks for permits, and a server that must not get more than it can take."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.serving import until
from tests.support.talk import Talk

IMAGE = {"url": "http://127.0.0.1:9/image/*", "concurrency": 2, "timeout_ms": 60_000}


async def ask(talk: Talk, endpoint: str = "image", **more: Any) -> str:
    """Ask for a permit; the task's id."""
    answer = await talk.http.post("/api/tasks", json={"type": "permit", "endpoint": endpoint, **more})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["taskId"])


async def permit_of(talk: Talk, task_id: str) -> str:
    """The permit of a task, once its turn has come."""
    found: list[str] = []

    async def out() -> bool:
        told = await talk.poll(task_id)
        found[:] = [told["permit"]] if "permit" in told else []
        return bool(found)

    await until(out, f"a permit for {task_id}")
    return found[0]


async def check(talk: Talk, permit: str | None, endpoint: str = "image", **more: Any) -> Any:
    """What a proxy is answered that asks for somebody with this permit."""
    headers = {**({"X-Fairlane-Permit": permit} if permit else {}), **more.pop("headers", {})}
    path = more.pop("path", f"/api/permit/check/{endpoint}")
    return await talk.http.request(more.pop("method", "GET"), path, headers=headers, **more)


async def done(talk: Talk, receipt: str) -> Any:
    return await talk.http.post("/api/permit/done", headers={"X-Fairlane-Receipt": receipt})


@dataclass
class Target:
    """A server of somebody else's. `open`: it answers; `most`: requests that it had at once."""

    url: str = ""
    port: int = 0
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    now: int = 0
    most: int = 0
    open: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
            self.requests.append((head[0], headers))
            self.now += 1
            self.most = max(self.most, self.now)
            try:
                await self.open.wait()
            finally:
                self.now -= 1
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nimage")
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def target() -> AsyncIterator[Target]:
    """It answers at once, until its `open` is cleared."""
    server = Target()
    server.open.set()
    listener = await asyncio.start_server(server.answer, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    server.url = f"http://127.0.0.1:{server.port}"
    try:
        yield server
    finally:
        server.open.set()
        listener.close()
        await listener.wait_closed()
