"""A gateway on a real port with the cast behind it: what official SDKs are in front of."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx2
from tests.support.serving import DEADLINE_S, Served, http_client, serving, until

from .cast import Cast

MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]
PATIENT = {"lease_ms": 120_000, "linger_ms": 120_000}


class Stage:
    """What a test sees: the cast, the gateway's address, and work beside the test that ends with it."""

    def __init__(self, served: Served, cast: Cast, key: str) -> None:
        self.served = served
        self.cast = cast
        self._headers = {"Authorization": f"Bearer {key}"}
        self.base_url = f"{served.url}/v1"
        self._beside: list[asyncio.Task[Any]] = []

    def beside(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run it beside the test; cancelled when the test ends."""
        task = asyncio.create_task(work)
        self._beside.append(task)
        return task

    async def fill(self, model: str = "patient", stream: bool = False) -> None:
        """One more call for `model`, whose answer nobody looks at."""
        async with self._http(DEADLINE_S * 4) as http:
            body = {"model": model, "messages": MESSAGES, "stream": stream}
            await http.post("/v1/chat/completions", json=body)

    def _http(self, timeout_s: float = DEADLINE_S) -> httpx2.AsyncClient:
        return http_client(self.served.url, headers=self._headers, timeout=timeout_s)

    async def queued(self, number: int) -> None:
        """Return when so many tasks wait."""
        async with self._http() as http:

            async def there() -> bool:
                counts = (await http.get("/api/admin/overview")).json()["counts"]
                return bool(counts["queued"] == number)

            await until(there, f"{number} queued tasks")

    async def offered(self, models: list[str]) -> None:
        """Return when callers can see these models."""
        async with self._http() as http:

            async def there() -> bool:
                data = (await http.get("/v1/models")).json()["data"]
                return {model["id"] for model in data} >= set(models)

            await until(there, "the worker's models")

    def listen(
        self, path: str, body: Any, until: bytes, times: int = 2
    ) -> tuple[asyncio.Event, asyncio.Task[bytes]]:
        """A stream as bytes: an event that is set when `until` has come so often, and its reading."""
        there = asyncio.Event()

        async def read() -> bytes:
            got = b""
            async with http_client() as http:
                fields = {**body, "stream": True}
                async with http.stream("POST", f"{self.base_url}/{path}", json=fields) as response:
                    assert response.status_code == 200
                    assert response.headers["content-type"].startswith("text/event-stream")
                    async for part in response.aiter_raw():
                        got += part
                        if got.count(until) >= times:
                            there.set()
            return got

        return there, self.beside(read())

    async def reached(self, event: asyncio.Event, what: str) -> None:
        await until(event.is_set, what)

    async def close(self) -> None:
        self.cast.release.set()
        for task in self._beside:
            task.cancel()
        await asyncio.gather(*self._beside, return_exceptions=True)


MakeStage = Callable[..., contextlib.AbstractAsyncContextManager[Stage]]


@contextlib.asynccontextmanager
async def staged(
    redis_url: str, tmp_path: Path, slots: int = 4, key: str = "none", **settings: Any
) -> AsyncIterator[Stage]:
    """A gateway with these settings whose models are the cast's; `key` is one that sees them."""
    async with serving(redis_url, tmp_path, **settings) as served, cast_behind(served, slots, key) as stage:
        yield stage


@contextlib.asynccontextmanager
async def cast_behind(served: Served, slots: int = 4, key: str = "none") -> AsyncIterator[Stage]:
    """The cast, as the only worker of a gateway."""
    cast = Cast()
    worker = cast.worker(served.url, slots)
    stop = asyncio.Event()
    working = asyncio.create_task(worker.serve(stop, stop))
    stage = Stage(served, cast, key)
    try:
        await until(lambda: len(served.gateway.dispatcher.pool) == 1, "the worker")
        await stage.offered(worker.registry.models)
        yield stage
    finally:
        await stage.close()
        stop.set()
        async with asyncio.timeout(DEADLINE_S):
            await working
