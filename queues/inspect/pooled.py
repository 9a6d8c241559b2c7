"""What an operator sees of several pools: the snapshots of all that are available, as one."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from fairlane.queues.inspect.inspector import Memory, Model, Queue, StoreInspector, StoreSnapshot, Users
from fairlane.queues.loops import gather_available
from fairlane.queues.tasks import TERMINAL

T = TypeVar("T")


class PooledInspector(StoreInspector):
    """Reads all pools."""

    def __init__(self, pools: Sequence[StoreInspector]) -> None:
        first = pools[0]
        super().__init__(
            first._link,
            first._keys,
            first._replica,
            presence=first._presence,
            queues=first._queues,
            models=first._models,
        )
        self._pools = pools

    async def _read(self) -> StoreSnapshot:
        found = merged(await self._of_all(lambda pool: pool.snapshot()))
        if shares := self.shares.by_queue(found.lanes):
            for queue in found.queues:
                queue.share = shares.get(queue.queue, 0.0)
        return found

    async def users(self) -> Users:
        """Return the users of all pools."""
        found = await self._of_all(lambda pool: pool.users())
        users = found[0].users
        for other in found[1:]:
            for name, user in other.users.items():
                known = users.setdefault(name, user)
                if known is not user:
                    known.waiting += user.waiting
                    known.running += user.running
                    known.by_model += user.by_model
        return Users(found[0].now_ms, users, all(one.complete for one in found))

    async def waiting(self) -> int:
        """Return how many tasks wait in all pools. Raise StoreError."""
        return sum(await self._of_all(lambda pool: pool.waiting()))

    async def offered(self) -> list[str]:
        """The models that some worker offers now, in any pool. Raises StoreError."""
        found = await self._of_all(lambda pool: pool.offered())
        return list(dict.fromkeys(model for models in found for model in models))

    async def _of_all(self, read: Callable[[StoreInspector], Awaitable[T]]) -> list[T]:
        """Return what each pool that is available answers. Raise StoreError if none does."""
        return await gather_available(read(pool) for pool in self._pools)


def merged(snapshots: Sequence[StoreSnapshot]) -> StoreSnapshot:
    """Return the snapshots of several pools as one."""
    first = snapshots[0]
    memory = [one.memory for one in snapshots if one.memory is not None]
    ended: Counter[str] = Counter({state.value: 0 for state in TERMINAL})
    for one in snapshots:
        ended.update(one.ended)
    return StoreSnapshot(
        first.now_ms,
        _queues(queue for one in snapshots for queue in one.queues),
        _models(model for one in snapshots for model in one.models),
        [lane for one in snapshots for lane in one.lanes],
        first.workers,
        first.replicas,
        {state: ended[state] for state in sorted(ended)},
        sum(one.queued_bytes for one in snapshots),
        sum(one.retained_bytes for one in snapshots),
        sum(one.dropped for one in snapshots),
        first.configuration,
        first.configurations,
        first.hosts,
        Memory(sum(one.used for one in memory), sum(one.most for one in memory)) if memory else None,
        sum(one.outbox for one in snapshots),
        max(one.outbox_age_ms for one in snapshots),
        sum(one.archive for one in snapshots),
        max(one.archive_age_ms for one in snapshots),
    )


def _queues(found: Iterable[Queue]) -> list[Queue]:
    queues: dict[str, Queue] = {}
    for other in found:
        queue = queues.setdefault(other.queue, other)
        if queue is other:
            continue
        if other.waiting and (not queue.waiting or not other.blocked):
            queue.blocked = other.blocked
        queue.waiting += other.waiting
        queue.running += other.running
        queue.tokens_charged += other.tokens_charged
        waits = [one.oldest_wait_ms for one in (queue, other) if one.oldest_wait_ms is not None]
        queue.oldest_wait_ms = max(waits, default=None)
    return list(queues.values())


def _models(found: Iterable[Model]) -> list[Model]:
    """Return each model once, as the pool sees it that has its tasks."""
    models: dict[str, Model] = {}
    for other in found:
        model = models.setdefault(other.model, other)
        if model is not other and other.waiting + other.running > model.waiting + model.running:
            models[other.model] = other
    return sorted(models.values(), key=lambda model: model.model)
