"""The scheduler of several pools: each call goes to the pool of its task, model or user.

A pool is a store of its own, and no call is atomic over two. If one is unavailable, calls about its tasks raise
StoreUnavailable, and those about all tasks return what the others have.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

from msgspec.structs import replace

from fairlane.queues.errors import StoreUnavailable
from fairlane.queues.ids import pool_of
from fairlane.queues.inspect.load import ModelLoad
from fairlane.queues.loops import gather_available
from fairlane.queues.placement import Placement
from fairlane.queues.replies import read_grants
from fairlane.queues.rules import ConfiguredSettings, EffectiveSettings, Kind
from fairlane.queues.scheduler import Limits, Scheduler
from fairlane.queues.tasks import Append, End, EventFields, Grant, Taken, Top, WaitEstimate

T = TypeVar("T")
ANY = "*"


class PooledScheduler(Scheduler):
    """See the module. The first pool has what belongs to the deployment: presence, audit log, overrides of queues and routes."""

    def __init__(self, pools: Sequence[Scheduler], placement: Callable[[], Placement]) -> None:
        first = pools[0]
        self.pools = list(pools)
        self.placement = placement
        self.metrics, self.replica = first.metrics, first.replica
        self.log_generation = 1
        self.feature_ends = first.feature_ends
        for pool in pools:
            pool.feature_ends = self.feature_ends
        self._link, self._keys = first._link, first._keys
        self._numbers = itertools.count(1)
        self._turns = itertools.count()

    # ---- which pool ----------

    def of_task(self, task_id: str) -> Scheduler:
        """Return the pool of a task; the first one, which does not know it, for what is no id."""
        pool = pool_of(task_id)
        return self.pools[pool if pool < len(self.pools) else 0]

    def of_model(self, model: str) -> Scheduler:
        """Return the pool of a model."""
        return self.pools[self.placement().of_model(model)]

    def by_pool(self, models: Iterable[str]) -> dict[Scheduler, list[str]]:
        """Return models by their pools; `*` is in all of them."""
        found: dict[Scheduler, list[str]] = {}
        for model in models:
            for pool in self.pools if model == ANY else (self.of_model(model),):
                found.setdefault(pool, []).append(model)
        return found

    def spans(self, models: Iterable[str]) -> bool:
        """Return whether models are in several pools."""
        return len(self.by_pool(models)) > 1

    async def of_all(self, call: Callable[[Scheduler], Awaitable[T]]) -> list[T]:
        """Return what a call returns for each pool that is available. Raise StoreError if none is."""
        return await gather_available(call(pool) for pool in self.pools)

    # ---- state of all pools ----------

    @property
    def limits(self) -> Limits:
        return self.pools[0].limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        for pool in self.pools:
            pool.limits = limits

    @property
    def outbox_full(self) -> bool:  # type: ignore[override]
        return any(pool.outbox_full for pool in self.pools)

    @property
    def on_overrides(self) -> Callable[[bytes], None]:
        return self.pools[0].on_overrides

    @on_overrides.setter
    def on_overrides(self, call: Callable[[bytes], None]) -> None:
        """`call` gets the versions of all pools, with commas between, as `OverrideStore.all` returns them."""
        versions = [b""] * len(self.pools)

        def notice(at: int, version: bytes) -> None:
            versions[at] = version
            if all(versions):
                call(b",".join(versions))

        for at, pool in enumerate(self.pools):
            pool.on_overrides = partial(notice, at)

    # ---- tasks of several pools ----------

    def take(
        self, models: Sequence[str], want: int, nonce: str, worker: str = "", upstream: str = ""
    ) -> asyncio.Future[Any]:
        """As in a single pool. The pools are asked one after the other, each time beginning with another one."""
        parts = list(self.by_pool(models).items())
        if len(parts) == 1:
            return asyncio.gather(parts[0][0].take(models, want, nonce, worker, upstream))
        at = next(self._turns) % len(parts)
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        _TakeAll([*parts[at:], *parts[:at]], want, (nonce, worker, upstream), done).next()
        return done

    def parse_take(self, reply: Any) -> Taken:  # type: ignore[override]
        """Read the replies of `take`."""
        found = [Scheduler.parse_take(one) for one in reply]
        return Taken(*(list(itertools.chain(*parts)) for parts in zip(*found, strict=True)))  # type: ignore[arg-type]

    def finish(self, grant: Grant, seq: int, events: Sequence[EventFields], end: End) -> asyncio.Future[Any]:
        """As in a single pool. A worker of several pools takes nothing for the freed slot: no pool is to have it each time."""
        pool = self.of_task(grant.task_id)
        if end.want and self.spans(end.models):
            end = replace(end, want=0, models=[])
        return pool.finish(grant, seq, events, end)

    def grouped(self, items: list[T], task_of: Callable[[T], str]) -> list[list[T]]:
        """Return items by the pools of their tasks."""
        found: dict[Scheduler, list[T]] = {}
        for item in items:
            found.setdefault(self.of_task(task_of(item)), []).append(item)
        return list(found.values())

    def append(self, appends: Sequence[Append]) -> asyncio.Future[Any]:
        """As in a single pool, which must be that of all of them."""
        return self.of_task(appends[0].grant.task_id).append(appends)

    def sent(self, grants: Sequence[Grant]) -> asyncio.Future[Any]:
        """As in a single pool, which must be that of all of them."""
        return self.of_task(grants[0].task_id).sent(grants)

    async def renew(
        self, held: Sequence[tuple[Grant, str, bool, int]], read: Iterable[str] = ()
    ) -> list[int]:
        """As in a single pool. Leases in a pool that is unavailable stay as they are (1)."""
        found = [1] * len(held)
        readers = list(read)

        async def renew(pool: Scheduler) -> None:
            places = [at for at, one in enumerate(held) if self.of_task(one[0].task_id) is pool]
            theirs = [task_id for task_id in readers if self.of_task(task_id) is pool]
            if places or theirs:
                replies = await pool.renew([held[at] for at in places], theirs)
                for at, reply in zip(places, replies, strict=True):
                    found[at] = reply

        await self.of_all(renew)
        return found

    async def sweep(self) -> tuple[int, int]:
        """Sweep all pools."""
        swept = await self.of_all(lambda pool: pool.sweep())
        return min(next_ms for next_ms, _ in swept), max(looked for _, looked in swept)

    async def search(
        self,
        source: Literal["running", "recent"],
        wanted: Mapping[str, str],
        *,
        after: str = "",
        most: int = 50,
        look_at: int = 1000,
    ) -> tuple[list[tuple[str, dict[str, str]]], str]:
        """As in a single pool. `after` has one task for each pool, with commas between; '-': the pool has no more."""
        cursors = after.split(",") if after else [""] * len(self.pools)

        async def search(pool: Scheduler) -> tuple[int, list[tuple[str, dict[str, str]]], str]:
            at = self.pools.index(pool)
            if cursors[at] == "-":
                return at, [], ""
            return at, *await pool.search(source, wanted, after=cursors[at], most=most, look_at=look_at)

        pages = await self.of_all(search)
        rows = sorted((row for _, found, _ in pages for row in found), key=lambda row: row[0], reverse=True)
        shown = {row[0] for row in rows[:most]}
        for at, found, cursor in pages:
            theirs = [row[0] for row in found if row[0] in shown]
            if len(theirs) == len(found):
                cursors[at] = cursor or "-"
            elif theirs:  # the next page begins with those that are not shown
                cursors[at] = theirs[-1]
        return rows[:most], "" if all(cursor == "-" for cursor in cursors) else ",".join(cursors)

    async def tasks_of_keys(self, keys: Iterable[str], cursor: str, look_at: int) -> tuple[list[str], str]:
        """As in a single pool, one pool after the other."""
        at, _, rest = cursor.rpartition(":")
        pool = int(at or 0)
        found, cursor = await self.pools[pool].tasks_of_keys(keys, rest, look_at)
        if cursor != "0":
            return found, f"{pool}:{cursor}"
        return found, f"{pool + 1}:0" if pool + 1 < len(self.pools) else "0"

    async def log_tops(self, task_ids: Sequence[str]) -> list[Top | None]:
        """As in a single pool; None, too, for tasks of a pool that is unavailable."""
        found: dict[str, Top | None] = {}

        async def tops(pool: Scheduler) -> None:
            theirs = [task_id for task_id in task_ids if self.of_task(task_id) is pool]
            if theirs:
                found.update(zip(theirs, await pool.log_tops(theirs), strict=True))

        await self.of_all(tops)
        return [found.get(task_id) for task_id in task_ids]

    async def wait_estimates(self, lanes: Sequence[tuple[str, str]]) -> list[WaitEstimate]:
        """As in a single pool."""
        return [(await self.of_model(lane[1]).wait_estimates([lane]))[0] for lane in lanes]

    async def erase_user(self, user: str, until_ms: int) -> tuple[int, int]:
        """As in a single pool. Raise StoreError if any pool is unavailable: its tasks are not erased."""
        erased = [await pool.erase_user(user, until_ms) for pool in self.pools]
        return sum(removed for removed, _ in erased), sum(stopping for _, stopping in erased)

    async def configured(self) -> ConfiguredSettings:
        """As in a single pool: all have the same."""
        return (await self.of_all(lambda pool: pool.configured()))[0]

    async def effective(self, kind: Kind, name: str) -> EffectiveSettings:
        """As in a single pool."""
        return await (self.of_model(name) if kind == "model" else self.pools[0]).effective(kind, name)

    async def model_load(self, model: str) -> ModelLoad:
        """As in a single pool."""
        return await self.of_model(model).model_load(model)

    def offer(
        self,
        models: Sequence[str],
        withdrawn: Sequence[str],
        hold_ms: int,
        grace_ms: int,
        upstreams: Sequence[tuple[str, str]] = (),
    ) -> asyncio.Future[Any]:
        """Offer models in their pools. The future yields the replies of all."""
        offered, gone = self.by_pool(models), self.by_pool(withdrawn)
        replies = [
            pool.offer(
                offered.get(pool, ()),
                gone.get(pool, ()),
                hold_ms,
                grace_ms,
                [pair for pair in upstreams if pair[0] in offered.get(pool, ())],
            )
            for pool in self.pools
            if pool.up and (pool in offered or pool in gone)
        ]
        return asyncio.gather(*replies)

    def parse_offer(self, reply: Any) -> int:  # type: ignore[override]
        """Return how many models the pools refused."""
        return sum(Scheduler.parse_offer(one) for one in reply)


def _route(name: str, at: int = 0) -> Any:
    """Return a method that calls the pool of the task that its argument number `at` names, or has been granted."""

    def call(self: PooledScheduler, *args: Any, **named: Any) -> Any:
        task = args[at]
        pool = self.of_task(task if isinstance(task, str) else getattr(task, "task_id", None) or task.id)
        return getattr(pool, name)(*args, **named)

    return call


BY_TASK = (
    *("submit", "requeue", "cancel", "position", "follow", "page", "last_event", "payload", "request"),
    *("mark_read", "delete_task", "mark_ticket_used", "is_ticket_used", "publish_progress"),
)
"""Methods whose first argument names a task, or has been granted one."""
for _name in BY_TASK:
    setattr(PooledScheduler, _name, _route(_name))
for _name in ("append_next", "publish_event"):
    setattr(PooledScheduler, _name, _route(_name, 1))


class _TakeAll:
    """Asks pools one after the other for tasks, until enough are granted."""

    def __init__(
        self,
        parts: list[tuple[Scheduler, list[str]]],
        want: int,
        call: tuple[str, str, str],
        done: asyncio.Future[Any],
    ) -> None:
        self._parts, self._want, self._call, self._done = parts, want, call, done
        self._replies: list[Any] = []

    def next(self, reply: asyncio.Future[Any] | None = None) -> None:
        """Take the reply of a pool, and ask the next one. A pool that is unavailable grants nothing."""
        want = self._want
        if reply is not None and not reply.cancelled() and reply.exception() is None:
            self._replies.append(reply.result())
            self._want -= len(read_grants(reply.result()))
        while self._parts and (self._want > 0 or want == 0):
            pool, models = self._parts.pop(0)
            try:
                pool.take(models, self._want, *self._call).add_done_callback(self.next)
                return
            except StoreUnavailable:
                continue
        if not self._done.done():
            self._done.set_result(self._replies)
