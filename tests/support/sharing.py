"""Gateways that several tests use, one test after the other."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.servers import Server
from tests.support.serving import Served, serving
from tests.support.talk import Talk, caller_of, end_all


class Sharing:
    """Starts gateways when they are first wanted, so many replicas for each kind of settings, and keeps them for the next test.

    Gateways of each kind have a database of `redis` and a data directory of their own. They end with `stack`.
    """

    def __init__(self, redis: Server, folder: Callable[[], Path], stack: AsyncExitStack) -> None:
        self._redis = redis
        self._folder = folder
        self._stack = stack
        self._started = 0
        self._idle: list[tuple[int, dict[str, Any], list[Served]]] = []

    @asynccontextmanager
    async def gateway(self, **settings: Any) -> AsyncIterator[Talk]:
        """A gateway with these settings, and a caller of it."""
        async with self._lent(1, settings) as (served,), caller_of(served) as talk:
            yield talk

    @asynccontextmanager
    async def replicas(self, **settings: Any) -> AsyncIterator[tuple[Talk, Talk]]:
        """Two gateways on one Redis, and a caller of each."""
        async with (
            self._lent(2, settings) as (here, there),
            caller_of(here) as one,
            caller_of(there) as other,
        ):
            yield one, other

    @asynccontextmanager
    async def _lent(self, number: int, settings: dict[str, Any]) -> AsyncIterator[list[Served]]:
        found = next((kind for kind in self._idle if kind[:2] == (number, settings)), None)
        if found:
            self._idle.remove(found)
        replicas = found[2] if found else await self._start(number, settings)
        yield replicas
        await end_all(*replicas)
        self._idle.append(
            (number, settings, replicas)
        )  # not after a test that failed: who knows what it has left

    async def _start(self, number: int, settings: dict[str, Any]) -> list[Served]:
        with self._redis.client() as client:
            client.select(self._started)
            client.flushdb()
        url, folder = f"{self._redis.url}?db={self._started}", self._folder()
        self._started += 1
        return [
            await self._stack.enter_async_context(serving(url, folder, **settings)) for _ in range(number)
        ]
