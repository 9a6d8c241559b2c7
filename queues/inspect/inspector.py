"""What an operator sees of the whole store, of all replicas together: read when asked, in two round trips of bounded size.

One snapshot serves the admin call, the metrics and the dashboard. It shows `MAX_MODELS` models that were used last, as many
others that are configured, and as many that workers serve and no task used. It reads the oldest task of `MAX_USERS` users at
either end of a lane's line: the next to be served, and those that were served most and so wait longest. With more than twice as
many users `oldest_wait_ms` is an estimate from below.
"""

import asyncio
import enum
import itertools
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from redis.exceptions import ResponseError

from fairlane.queues.errors import StoreError
from fairlane.queues.inspect.adaptive import AdaptedLimit
from fairlane.queues.inspect.presence import read_presence
from fairlane.queues.inspect.upstreams import Upstream, cooldown_of, upstream_of, upstreams_of
from fairlane.queues.keys import ANY_MODEL, Keys, is_reserved
from fairlane.queues.loops import Periodic
from fairlane.queues.replies import decode_map, decode_values
from fairlane.queues.rules import EffectiveSettings, effective, overridden
from fairlane.queues.store.link import RedisLink
from fairlane.queues.store.wire import Reply
from fairlane.queues.tasks import TERMINAL
from fairlane.queues.versions import Configuration, read_configuration

MAX_MODELS = 500
MAX_TASKS = 1000
MAX_UPSTREAMS = 1000
"""As upstreams.lua remembers at most."""
MAX_USERS = 32
MAX_LISTED_USERS = 10_000
USERS_PER_PAGE = 500
"""Users, and parked ones, that one call of a script reads, so that the store answers others in between."""
FRESH_S = 1.0
SAMPLE_EVERY_S = 30.0
SHARE_SPAN_S = 300.0


class Blocked(enum.StrEnum):
    """Why no task of a lane can start, whatever ends before (`blocked_by` in placing.lua)."""

    MODEL_PAUSED = "model_paused"
    QUEUE_PAUSED = "queue_paused"
    NO_WORKER = "no_worker"
    BREAKER_OPEN = "breaker_open"
    """The breakers of all its upstreams are open."""


@dataclass(slots=True)
class Lane:
    """A queue of one model."""

    queue: str
    model: str
    waiting: int = 0
    running: int = 0
    users: int = 0
    """In line."""
    parked: int = 0
    """Users who wait because they run as many tasks as they may."""
    oldest_wait_ms: int | None = None
    charged: float = 0
    """Cost since the model is in use: tokens, requests or seconds of slots. It falls when an estimate is refunded."""
    blocked: Blocked | None = None
    """Why none of its waiting tasks can start; None: one can, or none waits."""


class Model(msgspec.Struct, rename="camel"):
    """A model over all queues."""

    model: str
    settings: EffectiveSettings
    running: int = 0
    """Slots taken, also by tasks that are being stopped."""
    waiting: int = 0
    workers: int = 0
    slots: int = 0
    """Of workers that serve it."""
    cost: str = "tokens"
    mean_run_ms: int | None = None
    cooldown_until: int | None = None
    """Its provider rejects requests until then, ms."""
    cooldown_by: str | None = None
    """The worker that reported it."""
    next_start_at: int | None = None
    """Its throttle lets nothing start before, ms; None: something may start now."""
    blocked: dict[str, Blocked] = msgspec.field(default_factory=dict)
    """Queue -> why none of its tasks that wait for this model can start."""
    configured: bool = False
    upstreams: list[Upstream] = msgspec.field(default_factory=list)
    """The servers behind its workers, where one has a name, or something is known of it."""
    adaptive: AdaptedLimit | None = None
    """Its concurrency limit, unless that is a number or there is none."""

    @property
    def gone(self) -> bool:
        """Whether only its name is known: no setting, worker or task refers to it."""
        return not (
            self.configured or self.settings.overrides or self.workers or self.running or self.waiting
        )

    @property
    def unserved(self) -> bool:
        """Whether tasks wait for it, and no worker serves it. Permits need none: the store reports the lines of endpoints."""
        if not self.waiting or self.workers:
            return False
        return not is_reserved(self.model) or Blocked.NO_WORKER in self.blocked.values()

    @property
    def limit(self) -> int | None:
        """Return its concurrency limit now; None: it has none."""
        limit = self.settings.values.get("concurrency")
        if limit:
            return int(limit)
        return self.adaptive.limit if self.adaptive else None

    @property
    def paused(self) -> bool:
        return bool(self.settings.values.get("paused"))


class Queue(msgspec.Struct, rename="camel"):
    """A queue over all models."""

    queue: str
    settings: EffectiveSettings
    waiting: int = 0
    running: int = 0
    oldest_wait_ms: int | None = None
    tokens_charged: int = 0
    """Cost charged by the models that count in tokens."""
    share: float | None = None
    """The part of what was charged in all models, as a lane's. Models that count in different units are added as they are."""
    blocked: Blocked | None = None
    """Why none of its waiting tasks can start; of several reasons one."""

    @property
    def paused(self) -> bool:
        return bool(self.settings.values.get("paused"))


@dataclass(slots=True)
class User:
    """A user's tasks over all models."""

    user: str
    waiting: int = 0
    running: int = 0
    by_model: Counter[str] = field(default_factory=Counter)
    """Those that wait."""


class Users(NamedTuple):
    """Each user who has a task that waits or runs, as far as they were read."""

    now_ms: int
    users: dict[str, User]
    complete: bool
    """No user was left out, and no running task."""


class ReloadError(msgspec.Struct, frozen=True):
    """A configuration that was read while running and not taken over."""

    at: int
    """ms since 1970."""
    reason: str


class ReplicaInfo(msgspec.Struct, rename="camel", frozen=True):
    """What a replica reports of itself: where it runs, and what it was configured with."""

    host: str
    pid: int
    version: str
    started_at: int
    """ms since 1970."""
    keys_hash: str | None = None
    """Of its keys and tokens (`Callers.hash`)."""
    routes_hash: str | None = None
    """Of its routes, templates and fallbacks."""
    reload_error: ReloadError | None = None
    """The last one, unless a good one came after it."""
    settings_hash: str | None = None
    """Of its other settings."""


_replica_info = msgspec.json.Decoder(ReplicaInfo)


class Memory(NamedTuple):
    """What Redis takes, and what it may take (0: any), in bytes."""

    used: int
    most: int


@dataclass(slots=True)
class StoreSnapshot:
    """The store at one moment, as far as it was looked at."""

    now_ms: int
    queues: list[Queue]
    models: list[Model]
    lanes: list[Lane]
    workers: list[dict[str, Any]]
    """As `update_presence` stored them."""
    replicas: dict[str, int]
    """Replica -> when its presence ends unless it renews it, ms."""
    ended: dict[str, int]
    """State -> tasks that ended in it, since the store began."""
    queued_bytes: int = 0
    retained_bytes: int = 0
    """Of records and logs of ended tasks."""
    dropped: int = 0
    """Ended tasks that were dropped before their time, since the store began."""
    configuration: Configuration | None = None
    """The one in effect."""
    configurations: dict[str, Configuration] = field(default_factory=dict)
    """Replica -> the one that it was given, where known."""
    hosts: dict[str, ReplicaInfo] = field(default_factory=dict)
    """Replica -> where it runs, where known."""
    memory: Memory | None = None
    """None: Redis does not report it."""
    outbox: int = 0
    """Records that wait for SQL."""
    outbox_age_ms: int = 0
    """How long the oldest of them has waited."""
    archive: int = 0
    """Ended tasks that wait for the archive."""
    archive_age_ms: int = 0
    """How long the one has waited that came first."""


class Shares:
    """Readings of what lanes were charged in the last SHARE_SPAN_S."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._readings: deque[tuple[float, dict[tuple[str, str], float]]] = deque()

    def __len__(self) -> int:
        return len(self._readings)

    def remember(self, lanes: Iterable[Lane]) -> None:
        """Take a reading, and drop those that are older than the span, except the last one before it."""
        self._readings.append((self._now(), {(lane.queue, lane.model): lane.charged for lane in lanes}))
        begin = self._now() - SHARE_SPAN_S
        while len(self._readings) > 1 and self._readings[1][0] <= begin:
            self._readings.popleft()

    def by_queue(self, lanes: Iterable[Lane]) -> dict[str, float]:
        """Return the share of each queue in all service since the oldest reading, or since the beginning; {}: there was none.

        Refunds of estimates can make a charge fall: a lane that was refunded more than it used had none.
        """
        before = self._readings[0][1] if self._readings else {}
        found: dict[str, float] = {}
        for lane in lanes:
            served = max(lane.charged - before.get((lane.queue, lane.model), 0.0), 0.0)
            found[lane.queue] = found.get(lane.queue, 0.0) + served
        total = sum(found.values())
        return {queue: served / total for queue, served in found.items()} if total else {}


class StoreInspector(Periodic):
    """Reads snapshots for one process: when asked, and every SAMPLE_EVERY_S, so that any process knows shares."""

    name = "store-samples"
    interval_s = SAMPLE_EVERY_S
    expected = (StoreError,)

    def __init__(
        self,
        link: RedisLink,
        keys: Keys,
        replica: str,
        *,
        presence: Callable[[], list[dict[str, Any]]],
        queues: Callable[[], Iterable[str]],
        models: Callable[[], Iterable[str]],
        first: tuple[RedisLink, Keys] | None = None,
    ) -> None:
        """`presence`: the workers here, fresher than the store has them; `queues`, `models`: those that are configured; `first`:
        the pool that has the presence of replicas and workers, if it is another one."""
        self._link = link
        self._keys = keys
        self._first = first or (link, keys)
        self._replica = replica
        self._presence = presence
        self._queues = queues
        self._models = models
        self._now = asyncio.get_running_loop().time
        self._last: tuple[float, StoreSnapshot] | None = None
        self._turn = asyncio.Lock()
        self.shares = Shares(self._now)

    async def snapshot(self) -> StoreSnapshot:
        """Read the store as it is now. Raise StoreError."""
        snapshot = await self._read()
        self._last = (self._now(), snapshot)
        return snapshot

    async def recent(self) -> StoreSnapshot:
        """Return a snapshot of the last FRESH_S, or a new one, which concurrent callers share. Raise StoreError."""
        async with self._turn:
            if self._last and self._now() - self._last[0] < FRESH_S:
                return self._last[1]
            return await self.snapshot()

    async def step(self) -> None:
        """Remember what is charged."""
        self.shares.remember((await self.snapshot()).lanes)

    async def workers(self) -> list[dict[str, Any]]:
        """The workers of all replicas, as `update_presence` stored them; those here as they are. Raises StoreError."""
        time, present = await _all(self._link.command("TIME"), self._replicas())
        return await self._workers(_alive(present, _ms(time)))

    async def users(self) -> Users:
        """Return the users with tasks, about MAX_LISTED_USERS of the longest lines first. Raise StoreError."""
        snapshot = await self.recent()
        users: dict[str, User] = {}

        async def page(model: str, queue: str, after: int, most: int) -> list[tuple[User, int]]:
            said = await self._run("list_users", model=model, queue=queue, most=most, **{"from": after})
            counts = (said["users"] or {}).items()  # Lua packs an empty table as a list
            return [(users.setdefault(name, User(name)), count) for name, count in counts]

        left = MAX_LISTED_USERS
        for lane in sorted(snapshot.lanes, key=lambda lane: -lane.waiting):
            for at in range(0, max(lane.users, lane.parked) if lane.waiting else 0, USERS_PER_PAGE):
                if left <= 0:
                    break
                found = await page(lane.model, lane.queue, at, USERS_PER_PAGE)
                left -= len(found)
                for user, count in found:
                    user.waiting += count
                    user.by_model[lane.model] += count
        for model in snapshot.models:
            if model.running:
                for user, count in await page(model.model, "", 0, MAX_TASKS):
                    user.running += count
        complete = left > 0 and all(model.running <= MAX_TASKS for model in snapshot.models)
        return Users(snapshot.now_ms, users, complete)

    async def _run(self, script: str, **ask: Any) -> dict[str, Any]:
        return decode_map((await self._link.run(script, msgspec.msgpack.encode(ask)))[0])

    async def waiting(self) -> int:
        """Return how many tasks wait now, in all queues. Raise StoreError."""
        command = self._link.command
        counts = await _all(
            *(command("HGET", self._keys("queue", queue=name), "waiting") for name in self._queues())
        )
        return sum(int(count or 0) for count in counts)

    async def offered(self) -> list[str]:
        """The models that some worker offers now, by the store's clock (`*`: any). Raises StoreError."""
        time, offered = await _all(
            self._link.command("TIME"),
            self._link.command("ZRANGE", self._keys("offered"), 0, -1, "WITHSCORES"),
        )
        return list(_alive(offered, _ms(time)))

    def _replicas(self) -> "asyncio.Future[Reply]":
        link, keys = self._first
        return link.command("ZRANGE", keys("replicas"), 0, -1, "WITHSCORES")

    async def _workers(self, replicas: Iterable[str]) -> list[dict[str, Any]]:
        link, keys = self._first
        replies = await _all(
            *(
                link.command("HGETALL", keys("presence", replica=name))
                for name in replicas
                if name != self._replica
            )
        )
        workers = list(self._presence())
        for reply in replies:
            workers.extend(read_presence(reply))
        return workers

    async def _upstreams(self, marked: Iterable[bytes], now_ms: int) -> dict[str, list[Upstream]]:
        """By model, those with a stored state."""
        command, keys = self._link.command, self._keys
        names = [tuple(member.decode().split("\n", 1)) for member in marked]
        replies = await _all(
            *(command("HGETALL", keys("upstream", model=m, upstream=up)) for m, up in names),
            *(command("SCARD", keys("probes", model=m, upstream=up)) for m, up in names),
        )
        found: dict[str, list[Upstream]] = {}
        for (model, up), fields, probes in zip(
            names, replies[: len(names)], replies[len(names) :], strict=True
        ):
            if fields or probes:
                found.setdefault(model, []).append(upstream_of(up, _texts(fields), probes, now_ms))
        return found

    async def _inspect(self, model: str) -> tuple[dict[str, Any], bytes]:
        """Return what the script `inspect_model` says, and the model's settings, packed."""
        ask = msgspec.msgpack.encode({"model": model, "most_users": MAX_USERS})
        reply, packed = await self._link.run("inspect_model", ask)
        return decode_map(reply), packed

    async def _read(self) -> StoreSnapshot:
        command, keys = self._link.command, self._keys
        (
            time,
            known,
            present,
            pool,
            overrides,
            versions,
            hosts,
            info,
            outbox,
            oldest,
            archive,
            first,
            marked,
        ) = await _all(
            command("TIME"),
            command("ZREVRANGE", keys("models"), 0, MAX_MODELS - 1),
            self._replicas(),
            command("HGETALL", keys("pool")),
            command("HVALS", keys("overrides")),
            command("HGETALL", keys("versions")),
            command("HGETALL", keys("hosts")),
            _if_allowed(command("INFO", "memory")),
            command("XLEN", keys("outbox")),
            command("XRANGE", keys("outbox"), "-", "+", "COUNT", 1),
            command("XLEN", keys("archive")),
            command("XRANGE", keys("archive"), "-", "+", "COUNT", 1),
            command("ZRANGE", keys("upstreams"), 0, MAX_UPSTREAMS - 1),
        )
        now_ms = _ms(time)
        replicas = _alive(present, now_ms)
        changed = overridden(map(decode_map, overrides))
        totals = _texts(pool)
        used = {name.decode() for name in known}
        others = itertools.islice((name for name in self._models() if name not in used), MAX_MODELS)
        names = sorted({*used, *others})
        queue_names = list(self._queues())
        model_replies, queue_replies, workers, upstreams = await asyncio.gather(
            _all(*(self._inspect(name) for name in names)),
            _all(
                *(command("HMGET", keys("queue", queue=name), "settings", "waiting") for name in queue_names)
            ),
            self._workers(replicas),
            self._upstreams(marked, now_ms),
        )
        idle = sorted({name for worker in workers for name in worker["models"]} - {*names, ANY_MODEL})
        models = [Model(name, effective("model", name, {}, changed)) for name in idle[:MAX_MODELS]]
        lanes: list[Lane] = []
        for name, (seen, packed) in zip(names, model_replies, strict=True):
            model, of_model = model_of(
                name, effective("model", name, decode_values(packed), changed), seen, now_ms
            )
            models.append(model)
            lanes.extend(of_model)
        queues = [
            Queue(name, effective("queue", name, decode_values(packed), changed), int(waiting or 0))
            for name, (packed, waiting) in zip(queue_names, queue_replies, strict=True)
        ]
        models.sort(key=lambda model: model.model)
        seen_of_models = [seen for seen, _ in model_replies if seen["known"]]
        ended = {
            state.value: sum(seen["ended"][state] for seen in seen_of_models) for state in sorted(TERMINAL)
        }
        in_file = set(self._models())
        for model in models:
            model.configured = model.model in in_file
            model.upstreams = upstreams_of(model.model, workers, upstreams.get(model.model, ()))
        _count_workers(models, workers)
        _sum_up(queues, lanes, {model.model for model in models if model.cost == "tokens"})
        if shares := self.shares.by_queue(lanes):
            for queue in queues:
                queue.share = shares.get(queue.queue, 0.0)
        return StoreSnapshot(
            now_ms,
            queues,
            models,
            lanes,
            workers,
            replicas,
            ended,
            int(totals.get("bytes", 0)),
            int(totals.get("kept", 0)),
            int(totals.get("dropped", 0)),
            read_configuration(totals["version"].encode()) if "version" in totals else None,
            {
                name.decode(): read_configuration(packed)
                for name, packed in _pairs(versions)
                if name.decode() in replicas
            },
            {
                name.decode(): _replica_info.decode(packed)
                for name, packed in _pairs(hosts)
                if name.decode() in replicas
            },
            _memory(info),
            outbox,
            _age(oldest, now_ms),
            archive,
            _age(first, now_ms),
        )


def _age(entries: Sequence[Any], now_ms: int) -> int:
    """How long the first one of a stream has been in it, ms; 0 of an empty one."""
    return max(now_ms - int(entries[0][0].partition(b"-")[0]), 0) if entries else 0


def model_of(
    name: str, settings: EffectiveSettings, seen: Mapping[str, Any], now_ms: int
) -> tuple[Model, list[Lane]]:
    """Return a model and its lanes from the reply of `inspect_model`."""
    if not seen["known"]:
        return Model(name, settings), []
    cost = str(settings.values.get("cost") or "tokens")
    per_unit = 1000 if cost == "slot_seconds" else 1  # kept in ms
    lanes = [
        Lane(
            queue,
            name,
            lane["waiting"],
            lane["running"],
            lane["users"],
            lane.get("parked", 0),
            max(now_ms - lane["oldest"], 0) if "oldest" in lane else None,
            lane["charged"] / per_unit,
            Blocked(lane["blocked"]) if "blocked" in lane else None,
        )
        for queue, lane in (seen["lanes"] or {}).items()  # Lua packs an empty table as a list
    ]
    model = Model(
        name,
        settings,
        running=seen["running"],
        waiting=sum(lane.waiting for lane in lanes),
        cost=cost,
        mean_run_ms=int(seen.get("mean_ms", 0)) or None,
        next_start_at=seen.get("next_start"),
        blocked={lane.queue: lane.blocked for lane in lanes if lane.blocked},
        adaptive=AdaptedLimit(**seen["adaptive"]) if "adaptive" in seen else None,
        **cooldown_of(seen, now_ms),
    )
    return model, lanes


def _count_workers(models: Iterable[Model], workers: Iterable[dict[str, Any]]) -> None:
    offered: dict[str, list[int]] = {}
    for worker in workers:
        for name in worker["models"]:
            entry = offered.setdefault(name, [0, 0])
            entry[0] += 1
            entry[1] += worker["slots"]
    any_count, any_slots = offered.pop(ANY_MODEL, (0, 0))
    for model in models:
        count, slots = offered.get(model.model, (0, 0))
        if not is_reserved(model.model):
            count, slots = count + any_count, slots + any_slots
        model.workers, model.slots = count, slots


def _sum_up(queues: Iterable[Queue], lanes: Sequence[Lane], in_tokens: set[str]) -> None:
    by_name = {queue.queue: queue for queue in queues}
    for lane in lanes:
        queue = by_name.get(lane.queue)
        if queue is None:
            continue
        queue.running += lane.running
        if lane.model in in_tokens:
            queue.tokens_charged += int(lane.charged)
        waits = [wait for wait in (queue.oldest_wait_ms, lane.oldest_wait_ms) if wait is not None]
        queue.oldest_wait_ms = max(waits) if waits else None
    may_start = {lane.queue for lane in lanes if lane.waiting and not lane.blocked}
    for lane in lanes:
        if lane.blocked and lane.queue in by_name and lane.queue not in may_start:
            by_name[lane.queue].blocked = lane.blocked


def _ms(time: Sequence[bytes]) -> int:
    return int(time[0]) * 1000 + int(time[1]) // 1000


def _alive(present: Sequence[bytes], now_ms: int) -> dict[str, int]:
    return {name.decode(): int(float(end)) for name, end in _pairs(present) if float(end) > now_ms}


async def _if_allowed(reply: Awaitable[Reply]) -> Reply:
    """A reply, or None where the command is forbidden, as managed services do."""
    try:
        return await reply
    except ResponseError:
        return None


def _memory(info: bytes | None) -> Memory | None:
    found = dict(line.split(":", 1) for line in (info or b"").decode().splitlines() if ":" in line)
    used, most = found.get("used_memory", ""), found.get("maxmemory", "")
    return Memory(int(used), int(most)) if used.isdigit() and most.isdigit() else None


def _all(*replies: Awaitable[Reply]) -> asyncio.Future[list[Any]]:
    """The replies of commands that were sent together. When one fails, the others are left to themselves."""
    return asyncio.gather(*replies)


def _pairs(flat: Sequence[Any]) -> list[tuple[Any, Any]]:
    items = iter(flat)
    return list(zip(items, items, strict=True))


def _texts(flat: Sequence[bytes]) -> dict[str, str]:
    return {name.decode(): value.decode("utf-8", "replace") for name, value in _pairs(flat)}
