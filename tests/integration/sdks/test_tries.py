"""How often an upstream is asked, when both the gateway and openai-python try again: what is final once, the rest three times."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import openai
import pytest
from tests.support.serving import DEADLINE_S, Served, until
from tests.support.talk import Talk

from fairlane.workers.adapters import PROVIDERS
from fairlane.workers.sdk import Worker

from .openais import python_sdk
from .stage import MESSAGES

pytestmark = pytest.mark.anyio
CHAT = "chat.completions.create"

Start = Callable[..., AbstractAsyncContextManager[Talk]]


class Upstream:
    """A model server on a real port that refuses every call with one status."""

    def __init__(self, status: int, headers: str = "") -> None:
        self.asked: list[dict[str, Any]] = []
        """The body of each call."""
        self._status, self._headers = status, headers

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if head.startswith(b"post"):  # not the worker's own question whether it works
                length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.asked.append(json.loads(await reader.readexactly(length)))
            body = b'{"error": {"message": "no", "type": "server_error", "code": null}}'
            writer.write(
                b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%bConnection: close\r\n\r\n%b"
                % (self._status, len(body), self._headers.encode(), body)
            )
            await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def refusing(served: Served, model: str, status: int, headers: str = "") -> AsyncIterator[Upstream]:
    """An OpenAI-compatible upstream behind a gateway."""
    upstream = Upstream(status, headers)
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    worker = Worker("upstream", gateway=served.url, slots=4)
    PROVIDERS["openai"].adapter(base_url=f"http://127.0.0.1:{port}/v1", models=[model]).attach(worker)
    stop = asyncio.Event()
    working = asyncio.create_task(worker.serve(stop, stop))
    try:
        pool = served.gateway.dispatcher.pool
        await until(
            lambda: any(True for _ in pool) and not any(w.reserved or w.cap == 0 for w in pool),
            "an idle worker",
        )
        yield upstream
    finally:
        stop.set()
        async with asyncio.timeout(DEADLINE_S):
            await working
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "told", "code", "calls"),
    [
        (400, 400, "BAD_REQUEST", 1),
        (401, 502, "UPSTREAM_AUTH", 1),
        (404, 502, "UPSTREAM_ERROR", 1),
        (501, 502, "UPSTREAM_ERROR", 1),
        (505, 502, "UPSTREAM_ERROR", 1),
        (409, 502, "UPSTREAM_ERROR", 3),
        (500, 502, "UPSTREAM_ERROR", 3),
        (502, 502, "UPSTREAM_ERROR", 3),
        (503, 503, "MODEL_TOO_BUSY", 3),
    ],
)
async def test_a_refused_call_reaches_the_upstream_so_often(
    shared_gateway: Start, status: int, told: int, code: str, calls: int, stream: bool
) -> None:
    model = f"m-{status}-{stream}"  # one that is busy has a rest
    async with (
        shared_gateway() as talk,
        refusing(talk.served, model, status) as upstream,
        python_sdk("async", f"{talk.served.url}/v1", max_retries=2) as sdk,
    ):
        with pytest.raises(openai.APIStatusError) as caught:
            await (sdk.chunks if stream else sdk.call)(CHAT, model=model, messages=MESSAGES)
    assert (sdk.statuses, len(upstream.asked)) == ([told], calls)
    assert (caught.value.status_code, caught.value.code) == (told, code)
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert ("retry-after" in caught.value.response.headers) == (told == 503)
