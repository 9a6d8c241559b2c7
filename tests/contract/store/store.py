"""The store as its contract tests call it: named arguments in, plain values out, over a real Redis whose clock is moved by hand.

This is the only file of the contract suite that imports `fairlane`. When a name, an argument or a reply of the scheduler changes,
adapt it here. tests/support/audit.py is its counterpart for the layout of keys: it reads the whole store and checks invariants.
"""

import dataclasses
import json
import os
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

import msgspec
import pytest
from msgspec import msgpack
from tests.support.direct import Connection, DirectLink, Subscription

from fairlane.gateway.breakers.breakers import force_breaker
from fairlane.gateway.credits.ledger import read_charge
from fairlane.gateway.features import lua_modules, unmet
from fairlane.gateway.permits.store import release_permit, use_permit
from fairlane.gateway.records.entries import read_usage
from fairlane.gateway.webhooks.enqueue import read_announced
from fairlane.queues import chains, idempotency, tasks
from fairlane.queues.chains import ChainEnd, ChainStart, Part, StageEntry, Step
from fairlane.queues.credits import BalanceStore, Funds
from fairlane.queues.failures import FAILURES
from fairlane.queues.keys import ANY_MODEL, KEYS, Keys, pool_prefix
from fairlane.queues.limits import RATES, read_allowance
from fairlane.queues.limits import pack as pack_limits
from fairlane.queues.overrides import ALL, Actor, Override, OverrideStore
from fairlane.queues.overrides import Rejected as NotWritten
from fairlane.queues.replies import decode_map, read_state, texts
from fairlane.queues.rules import Value
from fairlane.queues.scheduler import MAX_TAKEN, Ends, Limits, Scheduler
from fairlane.queues.store.link import Arg, RedisLink
from fairlane.queues.store.scripts import load_scripts
from fairlane.queues.tasks import Append, End, Fragment, Repair, TaskSpec, Used
from fairlane.queues.versions import Version
from fairlane.queues.windows import read_windows

__all__ = ["ANY_MODEL", "FAILURES", "KEYS", "MAX_TAKEN", "RATES", "read_windows"]

DISABLED: set[str] = set()
"""The features that the library is loaded without: those of the option `--without`."""
OPERATOR = Actor("ops", "192.0.2.7")
TERMINAL = frozenset({"completed", "failed", "cancelled"})
EVERYTHING = 1 << 30
Cause = Literal["lost", "failed", "falls", "declined", "redo"]


def _need(feature: str) -> None:
    """Skip a test that calls a disabled feature."""
    if feature in DISABLED:
        pytest.skip(f"needs {feature}")


# ---- replies ----------


class Place(NamedTuple):
    """Position of a waiting task, from 1 (0: it does not wait), and estimates of its wait, ms (-1: unknown)."""

    position: int
    wait_ms: int
    low_ms: int
    high_ms: int


class Left(NamedTuple):
    """The state of a rate limit: requests or tokens."""

    limit: int
    remaining: int
    reset_ms: int


class Usage(NamedTuple):
    """Tokens; -1 = unknown."""

    input: int = -1
    output: int = -1
    cached: int = -1
    reasoning: int = -1
    estimated: bool = False


class StageOf(NamedTuple):
    """The stage of a chain that a grant runs; `part` is -1 for a stage in place."""

    chain: str
    number: int
    name: str
    part: int


@dataclass(frozen=True)
class Grant:
    """The right to run one task once."""

    task_id: str
    attempt: int
    epoch: int
    token: str
    model: str
    """The model it is scheduled as."""
    asked: str
    """The model that the client named, or the fallback that runs."""
    queue: str
    user: str
    key: str
    task_type: str
    tries: int
    max_tries: int
    enqueued_ms: int
    granted_ms: int
    left_ms: int
    start_seq: int
    stream: bool
    waiting: bool
    has_fallback: bool
    report_sent: bool
    repairs: bool
    last_lost: str
    start: str
    """Data of the `start` event."""
    repaired: Usage | None
    stage: StageOf | None
    raw: Any = field(compare=False, repr=False)

    def id(self, seq: int) -> str:
        """The id of an event of this attempt."""
        return f"{self.epoch}-{seq}"

    def forged(self, **other: Any) -> "Grant":
        """A grant that was never given."""
        return dataclasses.replace(self, **other)


RetryAt = dict[str, int]
"""Models that may start their next task only in so many ms."""


@dataclass(frozen=True)
class Accepted:
    state: str
    place: Place
    enqueued_ms: int
    grants: list[Grant]
    retry_at: RetryAt
    closed_upstreams: RetryAt
    line: str
    """The model that the task is scheduled as."""
    model: str
    """The model that it asks for now."""
    requests: Left | None
    tokens: Left | None

    @property
    def granted(self) -> list[str]:
        return ids(self.grants)


@dataclass(frozen=True)
class Existing:
    """The idempotency key names this task."""

    task_id: str
    state: str
    """'' = its record is no longer kept."""
    place: Place
    enqueued_ms: int
    requests: Left | None
    tokens: Left | None


@dataclass(frozen=True)
class Rejected:
    reason: str
    retry_ms: int
    waiting: int
    limit: int
    reached: dict[str, Any]
    """With `rate_limited`: setting, limit, used, asked, of_user."""
    needed: int
    """With `quota`, micro-credits; so is `available`."""
    available: int
    unknown: tuple[str, str]
    """With `no_balance`: the subject and the window."""
    others_offered: bool
    requests: Left | None
    tokens: Left | None


Answer = Accepted | Existing | Rejected


@dataclass(frozen=True)
class Taken:
    grants: list[Grant]
    retry_at: RetryAt
    closed_upstreams: RetryAt

    @property
    def granted(self) -> list[str]:
        return ids(self.grants)


@dataclass(frozen=True)
class Finished(Taken):
    outcome: str
    event_id: str
    top: int


@dataclass(frozen=True)
class Advanced(Finished):
    model: str
    needed: int
    available: int


@dataclass(frozen=True)
class Ended:
    """The reply of `cancel` and `requeue`."""

    outcome: str
    state: str
    event_id: str
    kind: str
    data: bytes
    retry_at: RetryAt


class Event(NamedTuple):
    id: str
    epoch: int
    seq: int
    kind: str
    data: bytes


@dataclass(frozen=True)
class Task:
    """What the store says of a task."""

    state: str
    code: str
    place: Place
    model: str
    """The model that it asks for now."""
    line: str
    """The model that it is scheduled as."""
    user: str
    attempt: int
    tries: int
    epoch: int
    top: int
    readers: list[str]
    metadata: str
    end_id: str
    probe: bool
    fallbacks: list[str]
    moves: list[tuple[str, str]]
    """Models that it left, and why."""
    history: list[tuple[str, str]]
    """Attempts that ended without a result: their workers, and why."""


@dataclass(frozen=True)
class Overridden:
    """An override, or the reason why it was not written."""

    rejected: str = ""
    other: str = ""
    """With `conflict`: the override that it conflicts with."""
    id: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    percent: int = 0
    until_ms: int = 0
    status: str = ""
    created_by: str = ""
    created_ms: int = 0


@dataclass(frozen=True)
class Balance:
    granted: int
    balance: int
    reserved: int
    generation: str
    """Another one for each time that the balance was loaded."""
    windows: dict[str, tuple[int, int]]
    """What was spent of a window, and what is reserved of it."""
    raw: Any = field(compare=False, repr=False)


@dataclass(frozen=True)
class Chain:
    state: str
    stage: tuple[int, str]
    of: int
    parts: int
    begun: int
    done: int
    plan: bytes
    head: bytes
    results: dict[tuple[int, int], bytes]
    used: dict[tuple[int, int], Usage]


def ids(grants: Iterable[Grant]) -> list[str]:
    return [grant.task_id for grant in grants]


# ---- arguments that are packed ----------


def price(input: int = 0, cached: int = 0, output: int = 0, reasoning: int = 0, request: int = 0) -> str:
    """Micro-credits of a million tokens, and of each request."""
    return f"{input} {cached} {output} {reasoning} {request}"


def budget(amount: int, start_ms: int, length_ms: int, *, payer: str = "k", kind: str = "d") -> str:
    """A quota with a budget: of the window that starts then, which two others surround."""
    return f"{payer} {amount} {kind} {start_ms} {start_ms + length_ms} {start_ms + 2 * length_ms}"


def idempotency_key(
    name: str, fingerprint: str = "print", ttl_ms: int = 86_400_000, *, most: int = 0, period_ms: int = 0
) -> str:
    """A key of this name. A user may have `most` that are remembered for `period_ms`."""
    return idempotency.pack(name, fingerprint, ttl_ms, most, period_ms)


def fallbacks(*models: str, prices: Sequence[str] = ()) -> list[tuple[str, str]]:
    of = dict(zip(models, prices, strict=False))
    return [(model, of.get(model, "")) for model in models]


def uses(name: str, most: int, ttl_ms: int = 60_000) -> tuple[int, int, str]:
    """The task is one use of a token of this name."""
    return most, ttl_ms, name


# ---- the store ----------


def drive(call: Awaitable[Any]) -> Any:
    """The result of a scheduler's coroutine over a DirectLink: it never waits."""
    steps = call.__await__()
    try:
        next(steps)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


def fragment(error: str, code: str, *, retryable: bool = False) -> Fragment:
    """Fields of a terminal event."""
    flag = "true" if retryable else "false"
    return Fragment(f'"error":"{error}","code":"{code}","retryable":{flag}'.encode(), code)


MISMATCH = fragment("The answer does not match its schema: $.a", "JSON_PARSE_FAILED")


def sample_ends() -> Ends:
    """Terminal events that the store writes by itself, with about the words of the gateway."""
    return Ends(
        timeout=fragment("Task timeout", "TOTAL_TIMEOUT"),
        queue_timeout=fragment("Task timeout", "QUEUE_TIMEOUT"),
        worker_lost=fragment("Worker disconnected", "WORKER_LOST"),
        no_worker=fragment("Worker disconnected", "NO_WORKER"),
        left=Fragment(b'"by":"client"', "CANCELLED"),
        unavailable=fragment("unavailable", "MODEL_UNAVAILABLE"),
        busy=fragment("The provider takes no request", "MODEL_TOO_BUSY"),
    )


PERMIT_ENDS = {
    "permit_unreported": Fragment(b'"result":{"reported":false}', ""),
    "permit_unused": fragment("The permit was not used in time", "PERMIT_EXPIRED"),
}


class World:
    """A pool on one database with a clock moved by hand, and any number of replicas in it."""

    def __init__(
        self,
        socket_path: str,
        database: int = 0,
        *,
        real_clock: bool = False,
        disabled: Collection[str] = DISABLED,
        **bounds: int,
    ) -> None:
        self.socket_path = socket_path
        self.connection = Connection(socket_path, database)
        self.prefix = pool_prefix()
        self.keys = Keys(self.prefix)
        self.limits = Limits(**bounds)
        library = load_scripts(test_clock=not real_clock, features=lua_modules(disabled))
        self.link = DirectLink(self.connection, self.prefix, library)
        self.accepted: list[str] = []
        """The tasks that the store accepted through a `Store`, in order."""
        self.stores: list[Store] = []
        self.read: dict[bytes, tuple[Any, Any]] = {}
        """Values that an audit has read, by key: raw and parsed."""
        self.now_us = self.latest_us = 1_800_000_000_000_000
        if not real_clock:
            self.advance(0)

    def scheduler(self, replica: str) -> Scheduler:
        scheduler = Scheduler(cast(RedisLink, self.link), self.keys, replica, sample_ends(), self.limits)
        scheduler.feature_ends |= PERMIT_ENDS
        return scheduler

    def bound(self, **bounds: int) -> None:
        """Change bounds of the pool: max_queue_length, max_queued_bytes, max_retained_bytes, max_outbox, lease_ms, …"""
        self.limits = dataclasses.replace(self.limits, **bounds)
        for store in self.stores:
            store.scheduler.limits = self.limits

    def advance(self, ms: float) -> None:
        """Move the clock."""
        self.now_us += round(ms * 1000)
        self.latest_us = max(self.latest_us, self.now_us)
        self.connection.call("SET", self.keys("clock"), self.now_us)

    @property
    def now_ms(self) -> int:
        return self.now_us // 1000

    @property
    def latest_ms(self) -> int:
        """The latest time of the clock, which may have been set back."""
        return self.latest_us // 1000

    def call(self, *args: Arg) -> Any:
        return self.connection.call(*args)

    def empty(self) -> None:
        """Remove everything but the time."""
        self.call("FLUSHALL")
        self.link.forget()
        self.accepted.clear()
        self.advance(0)

    def check(self) -> Any:
        """Check every invariant that the store shows. Return what was read."""
        from tests.support.audit import audit

        return None if os.environ.get("NO_AUDIT") else audit(self, self.accepted)

    def names(self, *, lasting: bool = False) -> list[str]:
        """Names of all keys but the clock, without the prefix. `lasting`: of those that do not expire."""
        clock = self.keys("clock")
        found = sorted(name.decode() for name in self.call("KEYS", "*"))
        ttls = self.connection.pipeline([("PTTL", name) for name in found])
        kept = [name for name, ttl in zip(found, ttls, strict=True) if ttl == -1 or not lasting]
        return [name.removeprefix(self.prefix) for name in kept if name != clock]

    def contents(self) -> dict[bytes, bytes]:
        """All that the store holds, to be compared."""
        return {name: value for name, (_, value) in self.save().items()}

    def save(self) -> dict[bytes, tuple[int, bytes]]:
        """All that the store holds but the time, for `restore`."""
        names = [name for name in self.call("KEYS", "*") if name != self.keys("clock").encode()]
        commands: list[tuple[Arg, ...]] = [(word, name) for name in names for word in ("PTTL", "DUMP")]
        found = self.connection.pipeline(commands)
        return {name: (found[2 * i], found[2 * i + 1]) for i, name in enumerate(names)}

    def restore(self, saved: Mapping[bytes, tuple[int, bytes]]) -> None:
        """Replace everything but the time by what was saved, as a restart of Redis does."""
        self.call("FLUSHALL")
        replies = self.connection.pipeline(
            [("RESTORE", name, max(ttl, 0), value) for name, (ttl, value) in saved.items()]
        )
        assert all(reply == b"OK" for reply in replies), replies
        self.link.forget()
        self.advance(0)

    def full(self) -> "Full":
        """A block in which the store has no memory left."""
        return Full(self)

    def close(self) -> None:
        for store in self.stores:
            store.close()
        self.connection.close()


class Full(AbstractContextManager[None]):
    def __init__(self, world: World) -> None:
        self._world = world

    def __enter__(self) -> None:
        self._world.call("CONFIG", "SET", "maxmemory", 1)

    def __exit__(self, *_: object) -> None:
        self._world.call("CONFIG", "SET", "maxmemory", 0)


class Store:
    """One replica's calls into a pool with the queues `paid` (weight 4) and `free` (1); model `m` is offered."""

    def __init__(self, world: World, replica: str = "r1", *, limit: int = 0, set_up: bool = True) -> None:
        self.world, self.replica_id = world, replica
        self.scheduler: Scheduler = world.scheduler(replica)
        self._ears: Subscription | None = None
        world.stores.append(self)
        if set_up:
            self.configure(limit)
            self.offer("m")

    def replica(self, name: str) -> "Store":
        """Another replica of the pool, which offers nothing yet."""
        return Store(self.world, name, set_up=False)

    def nonce(self) -> str:
        return self.scheduler.nonce()

    def close(self) -> None:
        if self._ears:
            self._ears.close()

    # ---- settings ----------

    def configure(
        self, limit: int = 0, unit: str = "tokens", *, max_length: int = 0, model: str = "m"
    ) -> None:
        """Set the limit and unit of cost of a model, and the length of both queues."""
        queues: dict[str, dict[str, Value]] = {
            name: {"weight": weight, "max_length": max_length or None}
            for name, weight in (("paid", 4.0), ("free", 1.0))
        }
        self.apply(queues=queues, models={model: {"concurrency": limit or None, "cost": unit}})

    def apply(
        self,
        *,
        queues: Mapping[str, Mapping[str, Value]] | None = None,
        models: Mapping[str, Mapping[str, Value]] | None = None,
        version: tuple[int, int] = (0, 0),
    ) -> tuple[str, str]:
        """Replace the whole configuration, of a file modified and read at these times, ms. Return 'set', 'same' or 'older'
        and the replica that brought the configuration in effect."""
        found = drive(self.scheduler.configure(queues or {}, models or {}, Version(*version)))
        return found.outcome, found.effective.replica

    def set_queue(self, name: str, **values: Value) -> tuple[dict[str, Value], dict[str, Value]] | None:
        """Override settings of a queue. Return their values before and after, or None if the queue is unknown."""
        _need("overrides")
        change = drive(self._overrides.set_settings("queue", name, values, OPERATOR))
        return (change.before, change.after) if change else None

    def set_model(self, name: str = "m", **values: Value) -> tuple[dict[str, Value], dict[str, Value]]:
        """Override settings of a model. Return their values before and after."""
        _need("overrides")
        for name_of_setting in unmet(values, "models.*", DISABLED):
            pytest.skip(f"needs {name_of_setting}")
        change = drive(self._overrides.set_settings("model", name, values, OPERATOR))
        return change.before, change.after

    def settings(
        self, kind: Literal["queue", "model"], name: str
    ) -> tuple[dict[str, Value], dict[str, Value]]:
        """Settings in effect, and those of them that overrides set."""
        found = drive(self.scheduler.effective(kind, name))
        return found.values, found.overrides

    def inspect(self, model: str = "m") -> dict[str, Any]:
        """What operators see of a model."""
        ask = msgpack.encode({"model": model, "most_users": 1})
        return decode_map(self.world.link.run("inspect_model", ask).result()[0])

    def offer(
        self,
        *models: str,
        withdrawn: Sequence[str] = (),
        hold_ms: int = 15_000,
        grace_ms: int = 0,
        upstreams: Sequence[str] = (),
    ) -> int:
        """Workers of this replica serve these models, through each of these upstreams. Return the number of names rejected."""
        pairs = [(model, upstream) for model in models for upstream in upstreams]
        reply = self.scheduler.offer(models, withdrawn, hold_ms, grace_ms, pairs).result()
        rejected: int = decode_map(reply[0])["refused"]
        return rejected

    # ---- submit and take ----------

    def submit(
        self,
        task_id: str,
        model: str = "m",
        *,
        queue: str = "free",
        user: str = "u",
        payload: bytes = b"{}",
        want: int = 0,
        nonce: str = "",
        worker: str = "w1",
        named: bool = False,
        upstream: str = "",
        follow: bool = False,
        key_limits: Mapping[str, int] | None = None,
        user_limits: Mapping[str, int] | None = None,
        chain: ChainStart | None = None,
        **more: Any,
    ) -> Answer:
        """Submit a task. `want`: free slots of this replica. `more`: any field of a task, by name."""
        limits = pack_limits(dict(key_limits or {})), pack_limits(dict(user_limits or {}))
        spec = _spec(task_id, model, queue, user, payload, limits=limits if any(limits) else None, **more)
        if chain is not None:
            chain.begin(spec)
        reply = self.scheduler.submit(
            *(spec, want, nonce or self.nonce(), worker), follow=follow, named=named, upstream=upstream
        )
        answer = _answer(self.scheduler.parse_submit(reply.result()))
        if isinstance(answer, Accepted) and task_id not in self.world.accepted:
            self.world.accepted.append(task_id)
        return answer

    def accept(self, task_id: str, model: str = "m", **more: Any) -> Accepted:
        answer = self.submit(task_id, model, **more)
        assert isinstance(answer, Accepted), answer
        return answer

    def reject(self, task_id: str, model: str = "m", **more: Any) -> Rejected:
        answer = self.submit(task_id, model, **more)
        assert isinstance(answer, Rejected), answer
        return answer

    def known(self, task_id: str, model: str = "m", **more: Any) -> Existing:
        answer = self.submit(task_id, model, **more)
        assert isinstance(answer, Existing), answer
        return answer

    def take(
        self, *models: str, want: int = 1, nonce: str = "", worker: str = "w1", upstream: str = ""
    ) -> list[Grant]:
        return self.ask(*models, want=want, nonce=nonce, worker=worker, upstream=upstream).grants

    def ask(
        self, *models: str, want: int = 1, nonce: str = "", worker: str = "w1", upstream: str = ""
    ) -> Taken:
        """Take tasks, with the times from which more may start."""
        reply = self.scheduler.take(models or ["m"], want, nonce or self.nonce(), worker, upstream)
        taken = self.scheduler.parse_take(reply.result())
        return Taken(_grants(taken.grants), dict(taken.retry_at), dict(taken.closed_upstreams))

    def taken(self, *models: str, want: int = 1, **more: Any) -> list[str]:
        """The ids of tasks that a take grants."""
        return ids(self.take(*models, want=want, **more))

    def run(
        self, task_id: str, model: str = "m", *, worker: str = "w1", upstream: str = "", **more: Any
    ) -> Grant:
        """Submit a task and take it."""
        self.submit(task_id, model, **more)
        (grant,) = self.take(model, worker=worker, upstream=upstream)
        assert grant.task_id == task_id
        return grant

    # ---- a running task ----------

    def append(self, grant: Grant, seq: int, *data: bytes, output: bool = True) -> tuple[str, int | str]:
        """Append chunks to a log. Return 'ok', 'stale', or 'hole' and the top of the log."""
        return self.append_all([(grant, seq, data or (b"{}",), output)])[0]

    def append_all(
        self, appends: Iterable[tuple[Grant, int, Sequence[bytes], bool]]
    ) -> list[tuple[str, int | str]]:
        """Append chunks to many logs in one call."""
        asked = [
            Append(_raw(grant), seq, [("chunk", piece) for piece in data], output)
            for grant, seq, data, output in appends
        ]
        outcomes = self.scheduler.parse_append(self.scheduler.append(asked).result())
        return [
            (one.outcome.replace("open", "ok"), one.more if one.outcome == "hole" else 0) for one in outcomes
        ]

    def append_next(self, grant: Grant, seq: int, data: bytes = b"{}") -> bool:
        """Append the next chunk to a log without a script. Return whether the log took it."""
        reply = _Reply()
        self.scheduler.append_next(reply, _raw(grant), seq, ("chunk", data))
        return reply.result is not None

    def sent(self, *grants: Grant) -> RetryAt:
        """The requests of these attempts have left their workers."""
        return dict(
            self.scheduler.parse_sent(self.scheduler.sent([_raw(grant) for grant in grants]).result())
        )

    def finish(
        self,
        grant: Grant,
        seq: int = 2,
        *,
        state: str = "completed",
        code: str = "X",
        data: bytes = b'{"end":1}',
        chunks: Sequence[bytes] = (),
        used: Sequence[int] = (1, 1),
        want: int = 0,
        models: Sequence[str] = ("m",),
        nonce: str = "",
        worker: str = "w1",
        upstream: str = "",
        slot_ms: int = 0,
    ) -> Finished:
        """End a task. `slot_ms`: how long its worker may keep the slot."""
        completed = state == "completed"
        end = End(
            tasks.State(state), "" if completed else code, ("done" if completed else "error", data), Used(*used),  # type: ignore[arg-type]
            nonce or self.nonce(), want, models, worker=worker, keep_ms=slot_ms, upstream=upstream,
        )  # fmt: skip
        reply = self.scheduler.finish(_raw(grant), seq, [("chunk", piece) for piece in chunks], end).result()
        found = self.scheduler.parse_finish(reply)
        later = dict(found.retry_at), dict(found.closed_upstreams)
        return Finished(_grants(found.grants), *later, found.outcome, found.event_id, found.top)

    def fail(
        self, grant: Grant, code: str = "X", seq: int = 2, *, retryable: bool = False, **more: Any
    ) -> Finished:
        """End a task with an error, nothing used."""
        data = b"{%b}" % fragment("it is no good", code, retryable=retryable).rest
        return self.finish(grant, seq, state="failed", code=code, data=data, **{"used": (-1, -1), **more})

    def requeue(
        self,
        grant: Grant,
        cause: Cause = "lost",
        *,
        begun: bool = False,
        why: str = "gone",
        end: Fragment | None = None,
        repair: bytes | None = None,
        used: Sequence[int] = (10, 5),
        **more: Any,
    ) -> Ended:
        """Return a task to its place. `repair`: the payload of its next attempt, after an answer that used so much."""
        of_repair = Repair(repair, Used(*used)) if repair is not None else None  # type: ignore[arg-type]
        return _ended(
            drive(
                self.scheduler.requeue(
                    _raw(grant), why, cause=cause, begun=begun, end=end, repair=of_repair, **more
                )
            )
        )

    def repair(self, grant: Grant, payload: bytes = b"{}", used: Sequence[int] = (10, 5)) -> Ended:
        """The answer of an attempt does not match its schema."""
        return self.requeue(grant, "redo", end=MISMATCH, repair=payload, used=used)

    def cancel(
        self,
        task_id: str,
        *,
        tombstone_ms: int = 0,
        state: str = "cancelled",
        kind: str = "cancelled",
        why: str = "client",
    ) -> Ended:
        end = Fragment(b'"by":"client"', "") if kind == "cancelled" else fragment("over", "X")
        return _ended(
            drive(
                self.scheduler.cancel(
                    task_id, state=tasks.State(state), kind=kind, end=end, why=why, tombstone_ms=tombstone_ms
                )
            )
        )

    def renew(
        self, *held: Grant, read: Sequence[str] = (), worker: str = "w1", begun: bool = True, output: int = -1
    ) -> list[int]:
        """Renew leases: 1 renewed, 0 over, 2 ended from outside."""
        result: list[int] = drive(
            self.scheduler.renew([(_raw(grant), worker, begun, output) for grant in held], read)
        )
        return result

    def progress(self, grant: Grant, data: bytes) -> None:
        self.scheduler.publish_progress(_raw(grant), "progress", data).result()

    # ---- time ----------

    def sweep(self) -> tuple[int, int]:
        """Return the time until the next sweep, ms, and the number of tasks that this one looked at."""
        result: tuple[int, int] = drive(self.scheduler.sweep())
        return result

    def pass_time(self, ms: int, *, step_ms: int = 1000) -> None:
        """Let time pass, with a sweep each second as of live gateways."""
        while ms > 0:
            self.world.advance(min(step_ms, ms))
            self.sweep()
            ms -= step_ms

    def play(self, task_id: str, steps: str, **more: Any) -> None:
        """Submit a task and take these steps with it. `5s`: time passes; `CODE`: it fails with this code, having used (10, 5)."""
        self.submit(task_id, **more)
        seq = 2
        for step in steps.split():
            match step:
                case "run":
                    (grant,) = self.take()
                case "output":
                    self.append(grant, seq)
                    seq += 1
                case "renew" | "reports":
                    self.renew(grant, output=10 if step == "reports" else -1)
                case "cancel":
                    self.cancel(task_id)
                case "lost" | "failed":
                    self.requeue(grant, step, begun=step == "failed")
                case "done" | "silent":
                    self.finish(grant, seq, used=(10, 5) if step == "done" else (-1, -1))
                case "stops":
                    self.finish(grant, seq, used=(10, 5, 4, 1, False), slot_ms=1000)
                case _ if step[:-1].isdecimal():
                    self.pass_time(1000 * int(step[:-1]))
                case _:
                    self.finish(grant, seq, state="failed", code=step, used=(10, 5))

    # ---- readers ----------

    def follow(
        self, task_id: str, *, keep_alive: bool = False, owner: tuple[str, str] | None = None
    ) -> Task | None:
        return _task(drive(self.scheduler.follow(task_id, keep_alive=keep_alive, owner=owner)))

    def read(
        self, task_id: str, after: str = "-", most: int = EVERYTHING, *, held: bool = True
    ) -> list[Event] | None:
        """A page of a log behind an event id. Return None if `held` and the log does not hold that event."""
        page = drive(self.scheduler.page(task_id, after, most, held=held))
        return None if page is None else [Event(f"{e.epoch}-{e.seq}", *e) for e in page]

    def events(self, task_id: str) -> list[str]:
        """The log in short: `1.2 chunk` is the second event, of the first epoch in it."""
        found, epochs = self.read(task_id) or [], dict[int, int]()
        return [
            f"{epochs.setdefault(event.epoch, len(epochs) + 1)}.{event.seq} {event.kind}" for event in found
        ]

    def kinds(self, task_id: str) -> list[str]:
        return [event.kind for event in self.read(task_id) or []]

    def last(self, task_id: str) -> Event:
        """The newest event of a log."""
        return (self.read(task_id) or [])[-1]

    def heard(self) -> list[tuple[str, ...]]:
        """Messages that this replica got since the last call; the first call subscribes. Each is a kind and its fields: wake and
        wake_all (model), event (task, id, kind, data), event_id (task, id), stop (task, epoch, why), breaker, …
        """
        if self._ears is None:
            self._ears = Subscription(self.world.socket_path, self.world.keys.channel(self.replica_id))
        messages = [message.decode() for message in self._ears.drain()]
        return [tuple(text.split("\n", 4 if text.startswith("event\n") else -1)) for text in messages]

    # ---- reading ----------

    def position(self, task_id: str) -> Task | None:
        return _task(drive(self.scheduler.position(task_id)))

    def task(self, task_id: str) -> Task:
        found = self.position(task_id)
        assert found is not None, task_id
        return found

    def place(self, task_id: str) -> Place:
        return self.task(task_id).place

    def state(self, task_id: str) -> str:
        """'' = unknown."""
        found = self.position(task_id)
        return found.state if found else ""

    def end(self, task_id: str) -> tuple[str, str]:
        """State and code."""
        found = self.task(task_id)
        return found.state, found.code

    def record(self, task_id: str) -> dict[str, str]:
        """The fields of a record as they are stored, for audits alone."""
        run, spec = self.world.call("HMGET", self.world.keys("task", id=task_id), "run", "spec")
        return texts((decode_map(spec) if spec else {}) | decode_map(run)) if run else {}

    def payload(self, task_id: str) -> bytes | None:
        return cast(bytes | None, drive(self.scheduler.payload(task_id)))

    def request(self, task_id: str) -> bytes | None:
        """The request that the archive is to have."""
        return cast(bytes | None, drive(self.scheduler.request(task_id)))

    def slots(self, model: str = "m") -> dict[str, int]:
        """Tasks that hold a slot, and the rest of their leases, ms."""
        flat = self.world.call("ZRANGE", self.world.keys("slots", model=model), 0, -1, "WITHSCORES")
        return {flat[i].decode(): int(flat[i + 1]) - self.world.now_ms for i in range(0, len(flat), 2)}

    def charged(self, queue: str = "free", model: str = "m") -> int:
        """Cost charged to a lane so far: tokens, requests or ms."""
        state = self.world.call("HGET", self.world.keys("model", model=model), "state")
        lane = read_state(state).lanes.get(queue)
        return lane.charged if lane else 0

    def ttl_ms(self, task_id: str, kind: Literal["task", "log", "request"] = "task") -> int:
        """How long a record or log is still kept: -1 = without end, -2 = it is gone."""
        name, record = (
            self.world.keys(kind, id=task_id),
            self.world.call("HGET", self.world.keys("task", id=task_id), "run"),
        )
        if not self.world.call("EXISTS", name):
            return -2
        return (
            int(decode_map(record).get("expires_at", self.world.now_ms - 1)) - self.world.now_ms
            if record
            else -2
        )

    def stored_bytes(self) -> int:
        """Bytes of the payloads that the pool holds."""
        return int(self.world.call("HGET", self.world.keys("pool"), "bytes") or 0)

    def kept_bytes(self) -> int:
        """Bytes that tasks take that have ended, after a sweep."""
        self.sweep()
        return int(self.world.call("HGET", self.world.keys("pool"), "kept") or 0)

    def search(self, source: Literal["running", "recent"] = "recent", **wanted: str) -> list[str]:
        """Ids of tasks whose records have these fields, newest first."""
        return [task for task, _ in drive(self.scheduler.search(source, wanted))[0]]

    def load(self, model: str = "m") -> tuple[str, int | None]:
        """Why a model starts nothing ('' = it does), and the wait for a new task, ms (None = unknown)."""
        found = drive(self.scheduler.model_load(model))
        return found.stopped, found.wait_ms

    def erase(self, user: str) -> tuple[int, int]:
        """Erase a user's ended tasks. Return how many are erased, and how many are still to stop."""
        result: tuple[int, int] = drive(self.scheduler.erase_user(user, self.world.now_ms))
        return result

    def mark_read(self, task_id: str) -> None:
        drive(self.scheduler.mark_read(task_id))

    def delete(self, task_id: str) -> bool:
        """Delete a task. Return whether it is gone."""
        gone: bool = drive(self.scheduler.delete_task(task_id))
        return gone

    # ---- records ----------

    def usage(self) -> dict[str, dict[str, Any]]:
        """Usage records in the outbox, by task."""
        rows = [read_usage(fields[1], str) for _, fields in self._outbox() if fields[0] == b"usage"]
        assert len({row.task for row in rows}) == len(rows), "one record for each"
        return {row.task: {**row._asdict(), "waited_ms": row.waited_ms, "ran_ms": row.ran_ms} for row in rows}

    def charges(self) -> list[dict[str, Any]]:
        """Settlements of credits, in order."""
        return [found._asdict() for _, fields in self._outbox() if (found := read_charge(fields[1]))]

    def announced(self) -> list[tuple[str, str, str]]:
        """Ends that webhooks get: task, event and the API key of its owner."""
        ends = [end for _, fields in self._outbox() if (end := read_announced(fields[1]))]
        return [(end.object_id, end.event, end.owner.key_id) for end in ends]

    def _outbox(self) -> Any:
        return self.world.call("XRANGE", self.world.keys("outbox"), "-", "+")

    def record_first(self, number: int) -> None:
        """The first entries of the outbox are in SQL."""
        outbox, call = self.world.keys("outbox"), self.world.call
        call("XGROUP", "CREATE", outbox, "sql", "0")
        call("XREADGROUP", "GROUP", "sql", "c", "COUNT", number, "STREAMS", outbox, ">")
        found = [entry[0] for entry in call("XRANGE", outbox, "-", "+", "COUNT", number)]
        ask = msgpack.encode({"group": "sql", "ids": [entry.decode() for entry in found]})
        assert decode_map(self.world.link.run("confirm_recorded", ask).result()[0])["gone"] == number

    def archive(self) -> list[str]:
        """Tasks that wait for the archive."""
        return [
            flat[1].decode() for _, flat in self.world.call("XRANGE", self.world.keys("archive"), "-", "+")
        ]

    def archived(self, *task_ids: str) -> int:
        """The archive has these tasks."""
        entries = self.world.call("XRANGE", self.world.keys("archive"), "-", "+")
        of = [(entry.decode(), flat[1].decode()) for entry, flat in entries if flat[1].decode() in task_ids]
        ask = msgpack.encode({"group": "sql", "entries": of})
        gone: int = decode_map(self.world.link.run("confirm_archived", ask).result()[0])["gone"]
        return gone

    def audit_log(self) -> list[dict[str, Any]]:
        """Entries of the audit log on their way to SQL: id, who, address, action, target, before and after."""
        packed = [fields[1] for _, fields in self._outbox() if fields[0] == b"audit"]
        entries = [decode_map(one) for one in packed]
        return [
            {
                **{name: one[name] for name in ("id", "address", "action", "target")},
                "who": one["actor"],
                **{
                    name: json.loads(one[name]) if isinstance(one[name], str) else one[name] or {}
                    for name in ("before", "after")
                },
            }
            for one in entries
        ]

    # ---- overrides ----------

    def create_override(
        self, id: str, target: Literal["queue", "model", "route"], name: str, values: Mapping[str, Any],
        *, percent: int = ALL, until_ms: int = 0, check: bool = False,
    ) -> Overridden:  # fmt: skip
        override = Override(target, name, values, percent, until_ms, id=id)
        return _overridden(drive(self._overrides.create(override, OPERATOR, check=check)))

    def update_override(self, id: str, **values: int) -> Overridden:
        """Change `percent` or `until_ms`."""
        return _overridden(drive(self._overrides.update(id, OPERATOR, **values)))

    def roll_back(self, id: str) -> Overridden:
        return _overridden(drive(self._overrides.roll_back(id, OPERATOR)))

    def promote(self, id: str) -> Overridden:
        return _overridden(drive(self._overrides.promote(id, OPERATOR)))

    def overrides(self) -> list[Overridden]:
        """All overrides, those that win last."""
        return [_overridden(one) for one in drive(self._overrides.all()).overrides]

    def overrides_version(self) -> bytes:
        """The version of the overrides, which each sweep returns."""
        versions: list[bytes] = []
        self.scheduler.on_overrides = versions.append
        self.sweep()
        assert versions[0] == drive(self._overrides.all()).version
        return versions[0]

    @property
    def _overrides(self) -> OverrideStore:
        return OverrideStore([cast(RedisLink, self.world.link)], lambda _: 0)

    # ---- limits and credits ----------

    def left(
        self,
        user: str,
        *,
        key_limits: Mapping[str, int] | None = None,
        user_limits: Mapping[str, int] | None = None,
    ) -> dict[str, int]:
        """What is left of each limit; limits of the user begin with `user `."""
        packed = pack_limits(dict(key_limits or {})), pack_limits(dict(user_limits or {}))
        found = drive(self.scheduler.call("read_limits", {"user": user, "limits": packed}))
        return {
            f"{'user ' if one.of_user else ''}{one.setting}": one.remaining
            for one in read_allowance(found["left"])
        }

    def fund(
        self, subject: str = "k:acme", granted: int = 1000, grants: int = 1, *, window: str = "", **more: Any
    ) -> bool:
        """Load a balance as SQL has it. Return whether it was unknown."""
        known: bool = drive(
            BalanceStore(self.scheduler).load(subject, Funds(granted, grants, **more), window)
        )
        return known

    def balance(self, subject: str = "k:acme") -> Balance:
        found = self.known_balance(subject)
        assert found is not None, subject
        return found

    def known_balance(self, subject: str) -> Balance | None:
        """Return None if SQL alone knows it."""
        found = drive(BalanceStore(self.scheduler).find(subject))
        if found is None:
            return None
        windows = {name: (spent, found.reserved_of(name)) for name, spent in found.windows.items()}
        return Balance(found.granted, found.balance, found.held, found.fields["generation"], windows, found)

    def due_balances(
        self, most: int = 10, pause_ms: int = 60_000, *, all_due: bool = False
    ) -> list[tuple[str, Any, int]]:
        """Balances to compare with SQL: subject, balance, and the time since its last change, ms."""
        due: list[tuple[str, Any, int]] = drive(
            BalanceStore(self.scheduler).due(most, pause_ms, all_due=all_due)
        )[1]
        return due

    def adjust(
        self, subject: str, compared: Any, spent: int, windows: Mapping[str, int], **funds: Any
    ) -> bool:
        """Correct a balance that was compared. Return False if it has changed since."""
        done: bool = drive(
            BalanceStore(self.scheduler).adjust(subject, compared, Funds(**funds), spent, windows)
        )
        return done

    def evict(self, subject: str, compared: Any) -> bool:
        """Remove a balance that was compared. Return False if it has changed since or is in use."""
        done: bool = drive(BalanceStore(self.scheduler).evict(subject, compared))
        return done

    def lose_balance(self, subject: str) -> None:
        """The store has lost a balance."""
        self.world.call("DEL", self.world.keys("balance", subject=subject), self.world.keys("balances"))

    # ---- chains ----------

    def start(
        self,
        task_id: str,
        model: str = "m",
        *,
        of: int = 3,
        parts: Sequence[bytes] = (),
        plan: bytes = b"a plan",
        head: bytes = b"",
        request: bytes = b"",
        reserve: int = 0,
        **more: Any,
    ) -> Answer:
        """Submit a chain, whose first stage is named `first`."""
        first = [Part(payload, 10) for payload in parts]
        chain = ChainStart(chains.Stage(0, "first"), of, plan, head, first, request, reserve)
        return self.submit(task_id, model, chain=chain, **more)

    def advance(
        self,
        grant: Grant,
        then: StageEntry | ChainEnd | None = None,
        seq: int = 2,
        *,
        result: bytes = b'"r"',
        chunks: Sequence[bytes] = (),
        told: Sequence[bytes] = (),
        used: Sequence[int] = (1, 1),
        want: int = 0,
        models: Sequence[str] = ("m",),
        nonce: str = "",
        worker: str = "w1",
        upstream: str = "",
    ) -> Advanced:
        """Complete a stage of a chain or a part of one. `told`: events of the chain's log; `then`: next_stage or last_stage."""
        step = Step(
            result, Used(*used), nonce or self.nonce(), then, [("stage", data) for data in told],  # type: ignore[arg-type]
            want, models, worker, upstream,
        )  # fmt: skip
        reply = chains.advance(self.scheduler, _raw(grant), seq, [("chunk", data) for data in chunks], step)
        found = chains.parse_advance(self.scheduler, reply.result())
        return Advanced(
            _grants(found.grants), dict(found.retry_at), dict(found.closed_upstreams), found.outcome, found.event_id,
            found.top, found.model, found.needed, found.available,
        )  # fmt: skip

    def chain(self, task_id: str, *, contents: bool = True) -> Chain | None:
        found: Any = drive(chains.read_chain(self.scheduler, task_id, contents=contents))
        if found is None:
            return None
        state, stage, *others, results, used = found
        return Chain(state, tuple(stage), *others, dict(results), {at: Usage(*of) for at, of in used.items()})

    # ---- circuit breakers and permits ----------

    def force_breaker(self, model: str, upstream: str, state: Literal["open", "closed", "auto"]) -> str:
        """Force a circuit breaker. Return what was forced before. Raise LookupError if no worker names the upstream."""
        before: str = drive(force_breaker(self.scheduler, model, upstream, state, OPERATOR))[0]
        return before

    def upstream(self, upstream: str = "", model: str = "m") -> dict[str, str]:
        """What is remembered of an upstream; {} = nothing."""
        return _fields(
            self.world.call("HGETALL", self.world.keys("upstream", model=model, upstream=upstream))
        )

    def ask_permit(
        self,
        task_id: str,
        model: str,
        *,
        unused_ms: int = 30_000,
        used_ms: int = 60_000,
        event: str = '"permit":"p"',
        **more: Any,
    ) -> Accepted:
        """Submit a task that waits for the permit to call an endpoint: it can be used for `unused_ms`, and holds its slot then
        for `used_ms`. `event`: the fields of its event."""
        permit = tasks.Permit(event, unused_ms, used_ms)
        return self.accept(task_id, model, task_type=tasks.PERMIT, permit=permit._asdict(), **more)

    def permit(self, task_id: str) -> dict[str, Any] | None:
        """The data of the event of an issued permit."""
        issued = [event.data for event in self.read(task_id) or [] if event.kind == "permit"]
        return json.loads(issued[-1]) if issued else None

    def use_permit(self, task_id: str, nonce: str = "") -> str:
        """Return 'in', 'used', 'over' or 'unknown'."""
        return self.use_permit_until(task_id, nonce)[0]

    def use_permit_until(self, task_id: str, nonce: str = "") -> tuple[str, RetryAt]:
        """The same, and the time of the next start."""
        outcome, _, later = drive(use_permit(self.scheduler, task_id, nonce or self.nonce()))
        return str(outcome), dict(later)

    def release_permit(
        self, task_id: str, epoch: int = 0, data: bytes = b'"result":{"reported":true}'
    ) -> str:
        """The call has ended. Return 'ended', 'over', 'unused' or 'unknown'. `epoch`: as use_permit says, unless it is given."""
        found = self.position(task_id)
        epoch = epoch or (found.epoch if found else 0)
        return str(drive(release_permit(self.scheduler, task_id, epoch, data)))


def next_stage(
    number: int = 1,
    model: str = "m",
    *,
    name: str = "",
    parts: Sequence[bytes] = (),
    reserve: int = 0,
    queue: str = "free",
    user: str = "u",
    payload: bytes = b"{}",
    **more: Any,
) -> StageEntry:
    """A stage that follows."""
    spec = _spec("", model, queue, user, payload, **more)
    stage = chains.Stage(number, name or f"stage{number}")
    return StageEntry(stage, spec, [Part(part, 10) for part in parts], reserve)


def last_stage(
    state: str = "completed",
    code: str = "",
    *,
    data: bytes = b'{"end":1}',
    blamed: tuple[int, str] | None = None,
    **more: Any,
) -> ChainEnd:
    """The end of a chain. `blamed`: the stage that could not begin."""
    kind = "done" if state == "completed" else "error"
    stage = chains.Stage(*blamed) if blamed else None
    return ChainEnd(tasks.State(state), code, (kind, data), stage, **more)


def part_of(chain: str, stage: int, part: int) -> str:
    """The task id of a part of a stage."""
    return chains.part_id(chain, stage, part)


# ---- from today's values ----------

_EXTRAS = {
    "uses": "token_use",
    "answer": "schema",
    "fallback_after_ms": "fallback_after",
    "archive_ms": "archive",
    "archive_request": "keep_request",
    "has_webhooks": "webhooks",
    "after_read_ms": "keep_after_read",
} | {
    name: name
    for name in (
        "max_input",
        "price",
        "quota",
        "fallbacks",
        "repair",
        "idempotency",
        "archive_log",
        "limits",
        "permit",
    )
}
"""Fields of features, and what the record calls them."""


def _spec(task_id: str, model: str, queue: str, user: str, payload: bytes, **more: Any) -> TaskSpec:
    extras = {_EXTRAS[name]: more.pop(name) for name in [*more] if name in _EXTRAS}
    return TaskSpec(task_id, model, queue, user, payload, **more, extras=tasks.only_set(**extras))


_OF_GRANT = [f.name for f in dataclasses.fields(Grant) if f.name not in ("raw", "stage", "repaired")]


def _grants(grants: Iterable[tasks.Grant]) -> list[Grant]:
    return [_grant(grant) for grant in grants]


def _grant(raw: tasks.Grant) -> Grant:
    of = chains.running(raw)
    stage = StageOf(of.chain, of.stage.number, of.stage.name, of.part) if of else None
    repaired = Usage(*raw.repaired) if raw.repaired else None
    return Grant(**{name: getattr(raw, name) for name in _OF_GRANT}, repaired=repaired, stage=stage, raw=raw)


def _raw(grant: Grant) -> tasks.Grant:
    raw: tasks.Grant = grant.raw
    return msgspec.structs.replace(raw, task_id=grant.task_id, epoch=grant.epoch, token=grant.token)


def _answer(found: tasks.Submitted | tasks.ExistingTask | tasks.Rejection) -> Answer:
    left = {
        "requests": Left(*found.rate_limits.requests)
        if found.rate_limits and found.rate_limits.requests
        else None,
        "tokens": Left(*found.rate_limits.tokens) if found.rate_limits and found.rate_limits.tokens else None,
    }
    if isinstance(found, tasks.Rejection):
        short = found.short or (0, 0)
        reached = found.reached._asdict() if found.reached else {}
        return Rejected(
            found.reason, found.retry_ms, found.waiting, found.limit, reached, *short, found.unknown, found.others_offered, **left
        )  # fmt: skip
    place = Place(*found.place)
    if isinstance(found, tasks.ExistingTask):
        return Existing(found.task_id, found.state or "", place, found.enqueued_ms, **left)
    return Accepted(
        found.state, place, found.enqueued_ms, _grants(found.grants), dict(found.retry_at), dict(found.closed_upstreams),
        found.line, found.model, **left,
    )  # fmt: skip


def _ended(found: tasks.Ended) -> Ended:
    return Ended(found.outcome, found.state, found.event_id, found.kind, found.data, dict(found.retry_at))


class _Reply:
    """Receives a reply; `result` is None after an error."""

    result: Any = None

    def done(self) -> bool:
        return False

    def exception(self) -> None: ...

    def set_result(self, reply: Any) -> None:
        self.result = reply

    def set_exception(self, error: Exception) -> None: ...


def _overridden(found: Override | NotWritten) -> Overridden:
    if isinstance(found, NotWritten):
        return Overridden(found.reason, found.other)
    names = ("id", "values", "percent", "until_ms", "status", "created_by", "created_ms")
    return Overridden(**{name: getattr(found, name) for name in names})


def _task(record: tasks.Record | None) -> Task | None:
    if record is None:
        return None
    fields, number = record.fields, record.number
    moves = json.loads(fields.get("fallback_history", "[]"))
    history = json.loads(fields.get("history", "[]"))
    return Task(
        state=record.state,
        code=fields.get("code", ""),
        place=Place(*record.place),
        model=record.model,
        line=fields["model"],
        user=fields["user"],
        attempt=number("attempt"),
        tries=number("tries"),
        epoch=record.epoch,
        top=number("top"),
        readers=[name for name in fields.get("readers", "").split(",") if name],
        metadata=fields.get("metadata", ""),
        end_id=fields.get("end_id", ""),
        probe=fields.get("probe") == "1",
        fallbacks=[model for model, _ in json.loads(fields.get("fallbacks", "[]"))],
        moves=[(move["model"], move["why"]) for move in moves],
        history=[(entry["worker"], entry["why"]) for entry in history],
    )


def _fields(flat: Sequence[bytes]) -> dict[str, str]:
    return {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}
