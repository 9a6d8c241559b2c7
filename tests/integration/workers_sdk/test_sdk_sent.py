"""The adapter says when the whole request has left, long before its upstream answers; and only where it is asked to."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from fairlane.workers.adapters import PROVIDERS
from fairlane.workers.sdk import Worker
from fairlane.workers.testing import FakeGateway

from .sdk_bench import serving

pytestmark = pytest.mark.anyio

ANSWER = b'{"id":"x","choices":[{"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}'


class Silent:
    """An upstream that takes requests and answers none until it is told to."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.bodies: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST"):
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            self.bodies.append(await reader.readexactly(length))
            await self.goes_on.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER))
        await writer.drain()
        writer.close()


@pytest.fixture
async def upstream() -> AsyncIterator[tuple[Silent, str]]:
    silent = Silent()
    async with await asyncio.start_server(silent.serve, "127.0.0.1", 0) as server:
        yield silent, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


async def test_the_adapter_says_when_its_request_has_left(upstream: tuple[Silent, str]) -> None:
    silent, url = upstream
    async with FakeGateway() as gateway:
        worker = Worker(gateway=gateway.url, slots=2)
        PROVIDERS["openai"].adapter(base_url=url, models=["m"]).attach(worker)
        async with serving(worker):
            body = {"model": "m", "messages": [{"role": "user", "content": "x" * 3_000_000}]}
            asked = await gateway.give("openaiLike", body, model="m", tell_sent=True)
            other = await gateway.give("openaiLike", {"messages": []}, model="m")
            async with asyncio.timeout(10):
                await asked.sent.wait()
            assert not asked.ended.is_set()
            silent.goes_on.set()
            assert (await asked.outcome()).error is None
            assert (await other.outcome()).error is None
    assert len(gateway.from_workers("taskSent")) == 1
    assert sorted(len(body) > 3_000_000 for body in silent.bodies) == [False, True]
