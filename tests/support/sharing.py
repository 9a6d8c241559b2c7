"""Gateways that several tests use, one test after the other."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.servers import Server
from tests.support.serving import Served, serving
from tests.support.talk import Talk, caller_of, end_all

MAX_IDLE = 2
"""Kinds that wait for another test: each costs as much in two seconds as its start did."""


@dataclass
class Kind:
    """So many replicas with these settings; they end with `running`."""

    number: int
    settings: dict[str, Any]
    replicas: list[Served] = field(default_factory=list)
    running: AsyncExitStack = field(default_factory=AsyncExitStack)


class Sharing:
    """Starts gateways when they are first wanted, so many replicas for each kind of settings, and keeps them for the next test.

    Gateways of each kind have a database of `redis` and a data directory of their own.
    """

    def __init__(self, redis: Server, folder: Callable[[], Path]) -> None:
        self._redis = redis
        self._folder = folder
        self._started = 0
        self._idle: list[Kind] = []

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

    async def close(self) -> None:
        """End all."""
        await self._leave(0)

    @asynccontextmanager
    async def _lent(self, number: int, settings: dict[str, Any]) -> AsyncIterator[list[Served]]:
        found = next(
            (kind for kind in self._idle if (kind.number, kind.settings) == (number, settings)), None
        )
        if found:
            self._idle.remove(found)
        kind = found or await self._start(number, settings)
        try:
            yield kind.replicas
            await end_all(*kind.replicas)
        except BaseException:
            await kind.running.aclose()  # who knows what a test that failed has left
            raise
        self._idle.append(kind)

    async def _start(self, number: int, settings: dict[str, Any]) -> Kind:
        await self._leave(MAX_IDLE - 1)
        database, self._started = self._started % 16, self._started + 1
        with self._redis.client() as client:
            client.select(database)
            client.flushdb()
        kind, folder = Kind(number, settings), self._folder()
        for _ in range(number):
            starting = serving(f"{self._redis.url}?db={database}", folder, **settings)
            kind.replicas.append(await kind.running.enter_async_context(starting))
        return kind

    async def _leave(self, number: int) -> None:
        """End all but those that were used last."""
        while len(self._idle) > number:
            await self._idle.pop(0).running.aclose()
