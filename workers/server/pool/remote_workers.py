"""Whether a worker of another replica takes a task, as far as the replicas report."""

import asyncio
from collections.abc import Iterable

import msgspec

from fairlane.queues.inspect.presence import read_presence
from fairlane.queues.keys import Keys, is_reserved
from fairlane.queues.store.link import RedisLink
from fairlane.queues.tasks import Grant
from fairlane.workers.protocol import DEFAULT_MAX_MESSAGE_BYTES
from fairlane.workers.server.pool.worker import ANY
from fairlane.workers.tasktypes import covers, takes

KEPT_S = 1.0
"""How long a report serves the checks before a submission: otherwise each request of a client would read it."""
SHARED_S = 0.05
"""Tasks that look for a worker at other replicas wait this long for each other: one read serves them all."""


class RemoteWorkers:
    """Reads what the other replicas report about their workers, when asked. `me`: this replica."""

    def __init__(self, link: RedisLink, keys: Keys, me: str) -> None:
        self._link = link
        self._keys = keys
        self._me = me
        self._reading: asyncio.Task[set[_RemoteWorker]] | None = None
        self._kept: set[_RemoteWorker] = set()
        self._kept_until = float("-inf")

    async def takes(self, grant: Grant, size: int) -> bool:
        """Return whether a worker elsewhere takes a task that those here do not; `size`: of its frame, if that is the reason.
        Raise StoreError."""
        return any(
            worker.takes(grant.model, grant.task_type) and size <= worker.max_message_bytes
            for worker in await self._workers()
        )

    async def offers(self, models: Iterable[str] | None, task_type: str) -> bool:
        """Do as `Pool.offers`, for the workers elsewhere, as they were a moment ago. Raise StoreError."""
        now = asyncio.get_running_loop().time()
        if now >= self._kept_until:
            self._kept, self._kept_until = await self._workers(0.0), now + KEPT_S
        if models is None:
            return any(worker.supports_type(task_type) for worker in self._kept)
        return any(worker.takes(model, task_type) for model in models for worker in self._kept)

    async def peers_support(
        self, models: Iterable[str], task_types: frozenset[str] | None, version: int
    ) -> bool:
        """Do as `Pool.peers_support`, for the workers elsewhere. Raise StoreError."""
        workers = await self._workers()
        return all(any(worker.supports(model, task_types, version) for worker in workers) for model in models)

    def close(self) -> None:
        """Stop reading."""
        if self._reading is not None:
            self._reading.cancel()

    async def _workers(self, pause_s: float = SHARED_S) -> set["_RemoteWorker"]:
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(pause_s), name="workers-elsewhere")
        return await asyncio.shield(self._reading)

    async def _read(self, pause_s: float) -> set["_RemoteWorker"]:
        """Read the workers of other replicas that do not drain. Calls within a moment share one read."""
        try:
            await asyncio.sleep(pause_s)
            workers: set[_RemoteWorker] = set()
            for name in await self._link.command("ZRANGE", self._keys("replicas"), 0, -1):
                replica = name.decode()
                if replica != self._me:
                    reply = await self._link.command("HGETALL", self._keys("presence", replica=replica))
                    found = msgspec.convert(read_presence(reply), list[_RemoteWorker])
                    workers.update(worker for worker in found if not worker.draining)
            return workers
        finally:
            self._reading = None


class _RemoteWorker(msgspec.Struct, rename="camel", frozen=True):
    """What another replica reports about one of its workers, as far as it matters for taking tasks."""

    models: tuple[str, ...]
    task_types: tuple[str, ...] | None = None
    version: int = 1
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    draining: bool = False
    unhealthy: str | None = None

    def supports(self, model: str, task_types: frozenset[str] | None, version: int) -> bool:
        return (
            covers(self.task_types, task_types)
            and self._offers(model)
            and self.version >= version
            and not self.unhealthy
        )

    def takes(self, model: str, task_type: str) -> bool:
        return self._offers(model) and self.supports_type(task_type)

    def supports_type(self, task_type: str) -> bool:
        return not task_type or takes(self.task_types, task_type)

    def _offers(self, model: str) -> bool:
        return model in self.models or (ANY in self.models and not is_reserved(model))
