"""Servers of other people, for the HTTP worker: they say what a test tells them to, and keep what they were asked."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from tests.support.serving import until

from fairlane.workers.adapters.endpoints.http import HttpAdapter
from fairlane.workers.sdk import Context, Task, TaskError

LOOPBACK = ["127.0.0.0/8", "::1/128"]
PATIENCE_S = 15.0
LOOPS = [
    pytest.param(("asyncio", {"use_uvloop": on}), id="uvloop" if on else "asyncio") for on in (False, True)
]
"""Workers run on uvloop where there is one."""


@dataclass
class Asked:
    """One request, as it came."""

    connection: int
    line: str
    headers: list[tuple[str, str]]
    body: bytes
    gone: Callable[[], bool]
    """Whether who asked has gone."""

    def header(self, name: str) -> list[str]:
        return [value for known, value in self.headers if known.lower() == name]


Says = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


def says(*parts: bytes, then_close: bool = False) -> Says:
    """A server that answers every request with these bytes, a part after the other."""

    async def say(_: Asked, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        if then_close:
            writer.close()

    return say


def answer(body: bytes = b"", status: str = "200 OK", *headers: str) -> bytes:
    """An answer whose length is told."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


@dataclass(frozen=True)
class Certificates:
    """What a server shows, and what makes those who trust it."""

    server: ssl.SSLContext
    trusting: Callable[[], ssl.SSLContext]


class Names:
    """A resolver whose answers follow each other; the last one stays. It keeps what it was asked."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self.asked: list[str] = []
        self._answers = {name.replace("_", "."): list(rows) for name, rows in answers.items()}

    async def __call__(self, host: str) -> list[str]:
        self.asked.append(host)
        rows = self._answers[host]
        return rows.pop(0) if len(rows) > 1 else rows[0]


@dataclass
class Target:
    """A server that listens at `port`."""

    says: Says
    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    scheme: str = "http"
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        number = self.connections
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                while not writer.is_closing():
                    asked = await _request(reader, number)
                    self.asked.append(asked)
                    await self.says(asked, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self.open -= 1
            self._tasks.discard(task)
            writer.close()


async def _request(reader: asyncio.StreamReader, number: int) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *rest = head[:-4].split("\r\n")
    headers = [(name, value.strip()) for name, _, value in (one.partition(":") for one in rest)]
    asked = Asked(number, line, headers, b"", reader.at_eof)
    if length := asked.header("content-length"):
        asked.body = await reader.readexactly(int(length[0]))
    return asked


@contextlib.asynccontextmanager
async def target(
    say: Says, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None, port: int = 0
) -> AsyncIterator[Target]:
    """A server that says so, until the block ends."""
    it = Target(say, scheme="https" if tls else "http")
    server = await asyncio.start_server(it._serve, host, port, ssl=tls)
    it.port = server.sockets[0].getsockname()[1]
    try:
        yield it
    finally:
        server.close()
        for task in list(it._tasks):
            task.cancel()
        await until(lambda: not it._tasks, "its connections' end")


def payload(url: str, method: str = "GET", **more: Any) -> dict[str, Any]:
    """A task's payload: an endpoint that allows all of the URL's origin, on this machine."""
    origin = "/".join(url.split("/")[:3])
    rules = {
        "pattern": f"{origin}/*",
        "timeoutMs": 10_000,
        "maxResponseBytes": 100_000,
        "allowPrivate": LOOPBACK,
        **more.pop("rules", {}),
    }
    return {"endpoint": "e", "method": method, "url": url, "headers": [], "rules": rules, **more}


async def call(
    adapter: HttpAdapter,
    asked: dict[str, Any],
    *,
    timeout_s: float | None = None,
    sent: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """The result of a task, as JSON has it; `sent` hears when its request has left. Raises TaskError."""
    loop = asyncio.get_running_loop()
    raw = msgspec.json.encode(asked)
    model = f"http:{asked['endpoint']}"
    task = Task(task_id="t", type="http", model=model, payload_bytes=raw, tell_sent=sent is not None)

    context = Context(task, deadline=None if timeout_s is None else loop.time() + timeout_s, send_sent=sent)
    async with asyncio.timeout(PATIENCE_S):
        told: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(await adapter(task, context)))
    return told


async def fails(adapter: HttpAdapter, asked: dict[str, Any], *, timeout_s: float | None = None) -> TaskError:
    """The failure of a task."""
    with pytest.raises(TaskError) as failed:
        await call(adapter, asked, timeout_s=timeout_s)
    return failed.value
