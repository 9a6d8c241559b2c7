"""Random lives of a pool: three replicas' schedulers over a real Redis whose clock is moved by hand, and which now and
then comes back from a save.

After every step the whole store is read and checked (support/audit.py), beside what only a history shows: a task ends once, its
log never changes behind, and no event id ever names two events; no start exceeds a limit of model, queue or user; what was
settled is never taken back; a chain's stages and parts complete once each, and end with it; whoever could renew in time loses
nothing to a sweep; and work is conserved: where a lease is free and a task may start, no replica that could run it is idle,
unless a wake-up is under way; where time alone is in the way, whoever asked was told the instant. Of a model with windows no more
attempts count than they hold, when one is granted.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.contract.store.store import (
    ANY_MODEL,
    KEYS,
    RATES,
    Accepted,
    Chain,
    Existing,
    Grant,
    Rejected,
    RetryAt,
    Store,
    World,
    fallbacks,
    idempotency_key,
    last_stage,
    next_stage,
    part_of,
    price,
    read_windows,
)
from tests.support.audit import (
    TERMINAL,
    UNKNOWN,
    Snapshot,
    audit,
    running_limits,
    running_of_user,
    settled_costs,
    subjects_of,
)
from tests.support.history import History, Written
from tests.support.lives import live
from tests.support.servers import Server

from fairlane.queues.replies import decode_map, texts

Value = str | int | float | bool | None
Limited = dict[str, int]
Kind = Literal["queue", "model"]
MODELS = ("llama:7b é", "m2")
QUEUES = ("paid_stream", "free_batch")
USERS = ("u", "k/x:y:z", "k/ü")
FALLBACKS = {MODELS[1]: price(1, 1, 1, 1, 1), MODELS[0]: "", "nobody's": price(9, 9, 9, 9, 9)}
"""Models that tasks may fall back to, in this order, with their prices."""
REPLICAS: tuple[tuple[tuple[str, ...], int], ...] = ((MODELS, 3), ((ANY_MODEL,), 2), (MODELS[:1], 1))
"""Models and slots of each."""
WHO = st.integers(0, len(REPLICAS) - 1)
LIMITS = {"max_queue_length": 6, "max_queued_bytes": 2000}
FAR = 1 << 60
MAX_SHUT_MS = 5000
"""As in slots.py."""
QUEUE_CHANGES: tuple[tuple[str, tuple[Value, ...]], ...] = (
    ("weight", (None, 1.0, 20.0)),
    ("max_length", (None, 1, 5)),
    ("max_wait_ms", (None, 3000)),
    ("max_running", (None, 1, 2)),
    ("reserved", (None, 1, 2)),
    ("admission", (None, "adaptive")),
    ("paused", (None, None, False, True)),
)
MODEL_CHANGES: tuple[tuple[str, tuple[Value, ...]], ...] = (
    ("concurrency", (None, 1, 2, 4)),
    ("cost", (None, "tokens", "requests", "slot_seconds")),
    ("requests_per_minute", (None, 20, 6000)),
    ("tokens_per_minute", (None, 600, 1_000_000)),
    ("windows", (None, "1/1s", "2/5s, 3/20s", "40/300ms")),
    ("max_running_per_user", (None, 1, 2)),
    ("max_waiting_per_user", (None, 1)),
    ("paused", (None, None, False, True)),
)
USER_LIMITS: tuple[tuple[Limited, Limited], ...] = (
    ({}, {}),
    ({"max_running": 1}, {}),
    ({"max_running": 2, "max_waiting": 3}, {"max_running": 1}),
    ({}, {"max_waiting": 1, "tokens_per_minute": 100_000}),
    ({"requests_per_minute": 6, "tokens_per_day": 9000}, {"requests_per_day": 8, "max_running": 2}),
)
"""Of a key, and of each of its users."""
QUOTAS = ("", "k", "u")
NAMES = (
    *("", "", ""),
    idempotency_key("one", "asked", 3_600_000, most=3, period_ms=3_600_000),
    idempotency_key("one", "otherwise", 3_600_000, most=3, period_ms=3_600_000),
    idempotency_key("other", "asked", 3_600_000, most=3, period_ms=3_600_000),
)
"""Idempotency keys, with the fingerprint of what is asked; of new ones a user may bring three in an hour."""
PRICE, FUNDS = price(900_000, 1, 1_500_000, 1, 3), 1_000_000
"""The price of tasks, and the balance: enough for all but those that may write much."""
SETTINGS: tuple[tuple[Kind, str, str, tuple[Value, ...]], ...] = (
    *(("queue", name, *change) for name in QUEUES for change in QUEUE_CHANGES),
    *(("model", name, *change) for name in MODELS for change in MODEL_CHANGES),
)


def after_gaps(shot: Snapshot, task: str, at: int, began: str, most: int) -> int:
    """An instant of a task as it counts: moved by the gaps by which the sweep has still to move it."""
    record = shot.one("task", task)
    marks = [int(record.get(field) or 0) for field in ("gap_moved", began)]
    seen = max(mark if mark <= shot.now_ms else 0 for mark in marks)
    for ended, by in shot.one("pool")["gaps"]:
        if ended > seen:
            at = max(at, min(at + by, ended + most))
    return at


def lease_end_of(shot: Snapshot, task: str, lease_end: int) -> int:
    running = shot.one("task", task)["state"] == "executing"
    return after_gaps(shot, task, lease_end, "granted_at", 15_000 if running else 60_000)


def left_by(shot: Snapshot, task: str) -> int:
    """When the readers of a task count as gone."""
    record = shot.one("task", task)
    return (
        after_gaps(shot, task, int(record["linger_at"]), "enqueued_at", int(record["linger_ms"]))
        if record.get("linger_at")
        else FAR
    )


@dataclass
class Replica:
    """What one gateway knows: its workers' slots, the grants it holds, the wake-ups it has not looked at."""

    name: str
    store: Store
    models: tuple[str, ...]
    slots: int
    upstream: str = ""
    held: dict[str, Grant] = field(default_factory=dict)
    past: deque[Grant] = field(default_factory=lambda: deque(maxlen=3))
    wakes: deque[tuple[str, str]] = field(default_factory=deque)
    offering: bool = False
    offered_ms: int = 0
    idle_for: set[str] = field(default_factory=set)
    """Models for which it must be known as idle: it was told that there is nothing, and was not woken since."""
    timers: dict[str, int] = field(default_factory=dict)
    """Model -> instant (ms) at which it was told to ask again."""
    shut: dict[str, int] = field(default_factory=dict)
    """Model -> until when (ms) nothing of it starts through the upstream."""

    @property
    def free(self) -> int:
        return self.slots - len(self.held) if self.offering else 0

    def serves(self, model: str) -> bool:
        return self.offering and (model in self.models or self.models == (ANY_MODEL,))

    def is_shut(self, model: str, now_ms: int) -> bool:
        return self.shut.get(model, 0) > now_ms

    def let_go(self, grant: Grant) -> None:
        if self.held.get(grant.task_id) == grant:
            del self.held[grant.task_id]
        self.past.append(grant)

    def keep(self, grants: list[Grant]) -> None:
        """Begin these; an attempt of the same task that runs here still is superseded."""
        for grant in grants:
            older = self.held.get(grant.task_id)
            if older is not None and older.token != grant.token:
                self.past.append(older)
            self.held[grant.task_id] = grant


@dataclass
class Call:
    """A call that can be made again, as after a lost reply."""

    name: str
    again: Callable[[], Any]
    answer: Any


@dataclass
class Save:
    """What the store comes back with, and what was known of it then."""

    store: dict[bytes, tuple[int, bytes]]
    accepted: list[str]
    logs: dict[str, list[Any]]
    ended: dict[str, str]
    before: dict[tuple[str, ...], int]
    settled: dict[tuple[str, str], int]


class Life(RuleBasedStateMachine):
    server: Server
    steps = 0
    models: tuple[str, ...] = MODELS
    """All as which tasks are scheduled."""
    offers = REPLICAS
    """Models and slots of each replica's workers."""
    upstreams: tuple[str, ...] = ("", "", "")
    """Behind these workers."""
    failure = ""
    """The code with which tasks fail."""
    steps_of_chains: ClassVar[Counter[str]] = Counter()
    """How often `advance` came to what."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.server.socket_path, **LIMITS)
        self.world.empty()
        self.numbers = iter(range(1, 1_000_000))
        self.replicas: list[Replica] = []
        self.accepted: list[str] = []
        self.logs: dict[str, list[Any]] = {}
        self.ended: dict[str, str] = {}
        self.calls: deque[Call] = deque(maxlen=6)
        self.begun = False
        self.before: dict[tuple[str, ...], int] = {}
        self.attempts = set[tuple[str, str]]()
        """What held slots at the last look: task and epoch of its attempt."""
        self.settled: dict[tuple[str, str], int] = {}
        self.only_time: set[str] = set()
        """Models that could start a task but for time, when last looked at."""
        self.unwatched: set[str] = set()
        """Models whose instant has come with nobody to ask: the next sweep wakes for them."""
        self.wake_was_lost = False
        self.stale: set[str] = set()
        """Replicas that had no free slot when the store lost its last second: it may know them as idle, as they were before."""
        self.history = History()
        self.written: dict[str, Written] = {}
        self.losses = 0
        """By grant token."""
        self.saved: Save | None = None
        self.limits = USER_LIMITS[0]
        self.counted: dict[str, dict[str, float]] = {model: {} for model in self.models}
        """Of each model with windows: attempts, and when their requests had left (us)."""
        self.counted_at = 0
        self.have_left: set[str] = set()
        """Tokens of grants of which it was said that their request had left."""
        for (models, slots), upstream in zip(self.offers, self.upstreams, strict=True):
            self.birth(models, slots, upstream)

    def birth(self, models: tuple[str, ...], slots: int, upstream: str) -> None:
        name = f"r{next(self.numbers)}"
        store = Store(self.world, name, set_up=False)
        store.heard()
        self.replicas.append(Replica(name, store, models, slots, upstream))

    def teardown(self) -> None:
        try:
            self.leave_nothing()
        finally:
            self.world.close()

    # ---- what may happen ----------

    @initialize(
        limits=st.tuples(st.sampled_from((0, 1, 2, 4)), st.sampled_from((0, 1, 3))),
        user_limits=st.sampled_from(USER_LIMITS),
        quota=st.sampled_from(QUOTAS),
    )
    def begin(self, limits: tuple[int, int], user_limits: tuple[Limited, Limited], quota: str) -> None:
        self.configure(limits)
        self.limit(user_limits, quota)
        for replica in self.replicas:
            self.offer(replica)
        self.replicas[0].store.sweep()

    @rule(limits=st.tuples(st.sampled_from((0, 1, 2, 4)), st.sampled_from((0, 1, 3))))
    def configure(self, limits: tuple[int, int]) -> None:
        self.begun = True
        queues: dict[str, dict[str, Value]] = {
            "paid_stream": {"weight": 8.0},
            "free_batch": {"weight": 1.0, "max_length": 4},
        }
        models: dict[str, dict[str, Value]] = {
            MODELS[0]: {"concurrency": limits[0] or None, "cost": "tokens"},
            MODELS[1]: {"concurrency": limits[1] or None, "cost": "requests"},
        }
        self.replicas[0].store.apply(queues=queues, models=models)

    @rule(limits=st.sampled_from(USER_LIMITS), quota=st.sampled_from(QUOTAS))
    def limit(self, limits: tuple[Limited, Limited], quota: str) -> None:
        """What holds for tasks that come from now on."""
        self.limits, self.quota = limits, quota

    @rule(setting=st.sampled_from(SETTINGS), which=st.integers(0, 11))
    def change(self, setting: tuple[Kind, str, str, tuple[Value, ...]], which: int) -> None:
        kind, name, field_name, values = setting
        value = values[which % len(values)]
        store = self.replicas[0].store
        before, _ = store.settings(kind, name)
        made = (store.set_queue if kind == "queue" else store.set_model)(name, **{field_name: value})
        after, overrides = store.settings(kind, name)
        assert made == ({field_name: before.get(field_name)}, {field_name: after.get(field_name)})
        if value is not None:
            assert overrides[field_name] == after[field_name] == value
        else:
            assert field_name not in overrides

    @rule(
        who=WHO,
        model=st.sampled_from(MODELS),
        queue=st.sampled_from(QUEUES),
        user=st.sampled_from(USERS),
        priority=st.integers(0, 5),
        size=st.sampled_from((0, 2, 300, 900)),
        times=st.sampled_from(((0, 0, 0), (4000, 0, 0), (0, 2000, 0), (20_000, 0, 3000), (0, 0, 1000))),
        linger=st.sampled_from((0, 0, 5000)),
        tokens=st.sampled_from(((0, 0, 1.0), (90, 10, 1.0), (3000, 100_000, 2.5))),
        flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
        falls_after=st.sampled_from((-1, -1, 0, 2000)),
        named=st.sampled_from(NAMES),
        lost=st.booleans(),
        parts=st.sampled_from((-1, -1, 0, 2, 3)),
    )
    def submit(
        self,
        who: int,
        model: str,
        queue: str,
        user: str,
        priority: int,
        size: int,
        times: tuple[int, int, int],
        linger: int,
        tokens: tuple[int, int, float],
        flags: tuple[bool, bool, bool],
        falls_after: int,
        named: str,
        lost: bool,
        parts: int = -1,
    ) -> None:
        """`parts`: of the first stage of a chain; -1 = it is no chain."""
        replica = self.replicas[who]
        store, task_id = replica.store, f"t{next(self.numbers)}"
        timeout_ms, wait_ms, run_ms = times
        waiting, follow, repair = flags
        estimated_input, max_output, weight = tokens
        key_limits, user_limits = self.limits
        task = {
            "queue": queue,
            "user": user,
            "payload": b"x" * size,
            "priority": priority,
            "linger_ms": linger,
            "timeout_ms": timeout_ms,
            "wait_ms": wait_ms,
            "run_ms": run_ms,
            "waiting": waiting,
            "follow": follow,
            "repair": repair,
            "has_webhooks": not waiting,
            "weight": weight,
            "estimated_input": estimated_input,
            "max_output": max_output,
            "quota": self.quota,
            "key_limits": key_limits,
            "user_limits": user_limits,
            "price": PRICE,
            "idempotency": named,
            **self.falls(model, falls_after, "a route"),
        }
        if self.quota:
            store.fund(subjects_of(user)[self.quota == "u"], FUNDS)
        want = 1 if replica.serves(model) and replica.free > 0 else 0
        task |= {"want": want, "nonce": store.nonce(), "worker": "w", "upstream": replica.upstream}
        before = Snapshot(self.world)

        def call() -> Any:
            if parts < 0:
                return store.submit(task_id, model, **task)
            chain: dict[str, Any] = {"of": 9, "plan": b"p" * size, "head": b"h", "reserve": 3 * parts}
            return store.start(task_id, model, parts=self.parts(parts), **chain, **task)

        answer = call()
        self.calls.append(Call("submit", call, answer))
        if not isinstance(answer, Accepted):
            self.check_unchanged(before, "a refused task leaves no key and no debit, nor does a known one")
            self.calls.pop()
        if isinstance(answer, Existing):
            assert answer.task_id in self.accepted
            assert self.record(answer.task_id)["state"] == answer.state
            return
        if isinstance(answer, Rejected):
            never = bool(answer.reached) and answer.reached["asked"] > answer.reached["limit"]
            assert answer.reason in ("cancelled", "quota", "other") or (answer.retry_ms > 0) != never, answer
            return
        low, wait, high = answer.place.low_ms, answer.place.wait_ms, answer.place.high_ms
        assert 0 <= low <= wait <= high or low == wait == high == -1, "bounds, or nothing is known yet"
        self.accepted.append(task_id)
        if not lost:
            replica.keep(answer.grants)
            self.told(replica, answer.retry_at, answer.closed_upstreams)
        if falls_after < 0:
            assert answer.model == model
        if (
            len(answer.grants) < want and answer.line == model
        ):  # else the slot is for another model, and nothing was asked
            replica.idle_for.add(model)
            if not lost:
                self.check_told(answer.retry_at, (model,))

    @rule(who=WHO, want=st.integers(1, 3), lost=st.sampled_from((False, False, True)))
    def take(self, who: int, want: int, lost: bool) -> None:
        replica = self.replicas[who]
        want = min(want, replica.free)
        if want > 0:
            self.ask(replica, want, lost)

    def ask(self, replica: Replica, want: int, lost: bool = False) -> list[Grant]:
        store, nonce = replica.store, replica.store.nonce()

        def call() -> Any:
            return store.ask(*replica.models, want=want, nonce=nonce, worker="w", upstream=replica.upstream)

        answer = call()
        grants: list[Grant] = answer.grants
        assert len(grants) <= want
        self.calls.append(Call("take", call, answer))
        if len(grants) < want:
            replica.idle_for |= set(replica.models)
        if not lost:
            replica.keep(grants)
            self.told(replica, answer.retry_at, answer.closed_upstreams)
            if len(grants) < want:
                self.check_told(answer.retry_at, [model for model in self.models if replica.serves(model)])
        return grants

    def told(self, replica: Replica, later: RetryAt, shut: RetryAt | None = None) -> None:
        """Remember when to ask again, and what not to ask for until then."""
        for model, ms in (shut or {}).items():
            replica.shut[model] = self.world.now_ms + min(ms, MAX_SHUT_MS)
            replica.timers[model] = replica.shut[model]
        for model, ms in later.items():
            assert ms > 0
            if model in replica.timers and model in (shut or {}):
                continue
            replica.timers[model] = self.world.now_ms + ms

    def check_told(self, later: RetryAt, models: Sequence[str]) -> None:
        """Who asked in vain was told the instant, where time alone was in the way."""
        shot = Snapshot(self.world)
        for model in models:
            startable, at = self.startable(shot, model)
            assert not startable or at <= self.world.now_ms or model in later, (model, later)

    @rule(who=WHO)
    def wake(self, who: int) -> None:
        """Look at one wake-up, as the dispatcher does."""
        replica = self.replicas[who]
        if replica.wakes:
            self.heed(replica)

    @rule()
    def calm(self) -> None:
        """All wake-ups are looked at."""
        for _ in range(100):
            awake = [replica for replica in self.replicas if replica.wakes]
            if not awake:
                return
            self.heed(awake[0])
            self.look()
        raise AssertionError("wake-ups without end")

    @rule()
    def calm_again(self) -> None:
        self.calm()

    def heed(self, replica: Replica) -> None:
        kind, model = replica.wakes.popleft()
        if replica.serves(model) and replica.free > 0 and not replica.is_shut(model, self.world.now_ms):
            self.ask(replica, replica.free)
            if not replica.is_shut(model, self.world.now_ms):
                return
            kind = "wake"
        if kind == "wake":
            answer = replica.store.ask(model, want=0)
            assert answer.grants == []
            self.told(replica, answer.retry_at)

    @rule(
        who=WHO,
        which=st.integers(0, 9),
        events=st.integers(1, 3),
        skip=st.sampled_from((0, 0, 0, 2)),
        alone=st.integers(0, 2),
    )
    def append(self, who: int, which: int, events: int, skip: int, alone: int) -> None:
        grant = self.pick(who, which)
        if grant is None:
            return
        store, top = self.replicas[who].store, self.top(grant.task_id)
        written, data = self.writer(grant), self.chunks(events)

        def call(seq: int, data: Sequence[bytes]) -> tuple[str, int | str]:
            return store.append(grant, seq, *data)

        current, seq = self.is_current(grant), written.next_seq + skip
        if current and written.closed:
            return
        answer = call(seq, data)
        assert answer == (("stale", 0) if not current else ("hole", top) if seq > top + 1 else ("ok", 0))
        self.calls.append(Call("append", partial(call, seq, data), answer))
        if answer[0] == "hole" and not skip:  # the store lost what was written: it is written again
            assert call(top + 1, [*written.behind(top), *data]) == ("ok", 0)
        if current and not skip:
            written.add(data)
            written.opened = self.losses
            for data in [[one] for one in self.chunks(alone)]:
                assert store.append_next(grant, written.next_seq, *data)
                assert not store.append_next(grant, written.next_seq, *data), "it is there already"
                written.add(data)
        elif not current and written.opened == self.losses:
            assert not store.append_next(grant, written.next_seq), "the attempt is over"

    def parts(self, number: int) -> list[bytes]:
        return [b"q" * size for size in range(number)]

    @staticmethod
    def falls(model: str, after_ms: int, route: str) -> dict[str, Any]:
        """Fields of a task that may fall back; -1 = it may not."""
        if after_ms < 0:
            return {}
        others = {other: price for other, price in FALLBACKS.items() if other != model}
        models = fallbacks(*others, prices=list(others.values()))
        return {"fallbacks": models, "fallback_after_ms": after_ms, "asked": route}

    @rule(
        who=WHO,
        which=st.integers(0, 9),
        follows=st.sampled_from(("nothing", "stage", "stage", "parts", "end", "short")),
        model=st.sampled_from(MODELS),
        queue=st.sampled_from(QUEUES),
        wait_ms=st.sampled_from((0, 0, 2000)),
        falls_after=st.sampled_from((-1, -1, 0)),
        output=st.sampled_from((30, 30, 30, 700_000)),
        events=st.integers(0, 2),
        told=st.integers(0, 2),
        used=st.sampled_from(((-1, -1), (10, 2000), (0, 0))),
        want=st.booleans(),
        lost=st.sampled_from((False, False, True)),
        written_by_owner=st.sampled_from((True, True, True, False)),
    )
    def advance_chain(
        self,
        who: int,
        which: int,
        follows: str,
        model: str,
        queue: str,
        wait_ms: int,
        falls_after: int,
        output: int,
        events: int,
        told: int,
        used: tuple[int, int],
        want: bool,
        lost: bool,
        written_by_owner: bool,
    ) -> None:
        """A stage of a chain, or a part of one, has completed."""
        replica = self.replicas[who]
        grant = self.pick(who, which, of_chain=True)
        of = grant.stage if grant else None
        if grant is None or of is None:
            return
        store, top = replica.store, self.top(grant.task_id)
        number = of.number + 1
        if self.quota:
            payer = subjects_of(self.record(of.chain).get("user", USERS[0]))[self.quota == "u"]
            store.fund(payer, FUNDS)
        stage, terminal = (number, f"s{number}"), b"{%d}" % next(self.numbers)
        short = last_stage("failed", "X", data=terminal, blamed=stage, model=model, queue=queue)
        entry = next_stage(
            number, model, name=stage[1], parts=self.parts(3 if follows == "parts" else 0), reserve=1,
            queue=queue, user="", payload=b"z" * (number % 5), estimated_input=20, max_output=output,
            price=PRICE, quota=self.quota, wait_ms=wait_ms, **self.falls(model, falls_after, "another route"),
        )  # fmt: skip
        then = {"nothing": None, "end": last_stage(data=terminal), "short": short}.get(follows, entry)
        stages, result = self.chunks(told), b"{%d}" % next(self.numbers)
        asked = 1 if want and replica.offering else 0
        written, data, nonce = self.writer(grant), self.chunks(events), store.nonce()

        def call(seq: int, data: Sequence[bytes]) -> Any:
            return store.advance(
                grant, then, seq, result=result, chunks=data, told=stages, used=used, want=asked,
                models=replica.models, nonce=nonce, worker="w", upstream=replica.upstream,
            )  # fmt: skip

        current, known, before = self.is_current(grant), self.record(grant.task_id), Snapshot(self.world)
        chain = store.chain(of.chain)
        seq = written.next_seq
        if not written_by_owner or (current and written.closed):
            seq, data = 0, []
        answer = call(seq, data)
        if current and seq > top + 1:
            assert (answer.outcome, answer.top, answer.grants) == ("hole", top, [])
            seq, data = top + 1, [*written.behind(top), *data]
            answer = call(seq, data)
            self.steps_of_chains["hole"] += 1
        self.steps_of_chains[answer.outcome] += 1
        if not current:
            same = known.get("epoch") == str(grant.epoch) and known.get("token") == grant.token
            assert answer.outcome == ("late" if same else "stale")
        else:
            assert chain is not None
            last = of.part < 0 or chain.done == chain.parts - 1
            expected = {"nothing": {"next"}, "end": {"ended"}, "short": {"ended"}}.get(
                follows, {"moved", "quota", "no_worker"}
            )
            assert answer.outcome in (expected if last else {"waits"})
            if answer.outcome in ("next", "quota", "no_worker"):
                self.check_unchanged(before, "what comes to nothing leaves nothing")
                return
            after: Chain | None = store.chain(of.chain)
            assert after is not None
            assert after.results == {**chain.results, (of.number, of.part): result}
            assert after.stage == (
                stage if answer.outcome == "moved" or (follows == "short" and last) else (of.number, of.name)
            )
        if len(answer.grants) < asked:
            replica.idle_for |= set(replica.models)
        if answer.outcome in ("moved", "ended", "waits"):
            self.calls.append(Call("advance", partial(call, seq, data), answer))
        written.closed = True
        replica.let_go(grant)
        if not lost:
            replica.keep(list(answer.grants))
            self.told(replica, answer.retry_at, answer.closed_upstreams)

    def writer(self, grant: Grant) -> Written:
        return self.written.setdefault(grant.token, Written(grant))

    def chunks(self, count: int) -> list[bytes]:
        """Data of events, each different from all others."""
        return [b"{%d}" % next(self.numbers) for _ in range(count)]

    @rule(
        who=WHO,
        which=st.integers(0, 9),
        state=st.sampled_from(("completed", "failed")),
        events=st.integers(0, 2),
        used=st.sampled_from(((-1, -1), (10, 2000), (0, 0), (10**30, 10**30))),
        want=st.booleans(),
        lost=st.sampled_from((False, False, True)),
        written_by_owner=st.sampled_from((True, True, True, False)),
    )
    def finish(
        self,
        who: int,
        which: int,
        state: str,
        events: int,
        used: tuple[int, int],
        want: bool,
        lost: bool,
        written_by_owner: bool,
    ) -> None:
        replica, grant = self.replicas[who], self.pick(who, which)
        if grant is None:
            return
        if grant.stage and grant.stage.part >= 0:  # it completes by `advance`
            state = "failed"
        store, nonce, top = replica.store, replica.store.nonce(), self.top(grant.task_id)
        written, data, terminal = self.writer(grant), self.chunks(events), b"{%d}" % next(self.numbers)
        number = 1 if want and replica.offering else 0

        def call(seq: int, data: Sequence[bytes]) -> Any:
            return store.finish(
                grant, seq, state=state, code=self.failure, data=terminal, chunks=data, used=used, want=number,
                models=replica.models, nonce=nonce, worker="w", upstream=replica.upstream,
            )  # fmt: skip

        current, known, seq = self.is_current(grant), self.record(grant.task_id), written.next_seq
        written_by_owner = written_by_owner and not (current and written.closed)
        written.closed = True
        if not written_by_owner:  # its log was given up: whatever the log holds, the task ends
            seq, data = 0, []
        answer = call(seq, data)
        if current and seq > top + 1:
            assert (answer.outcome, answer.top, answer.grants) == ("hole", top, [])
            seq, data = top + 1, [*written.behind(top), *data]
            answer = call(seq, data)
        same = known.get("epoch") == str(grant.epoch) and known.get("token") == grant.token
        assert answer.outcome == ("ok" if current else "late" if same else "stale")
        if current:
            end_seq = top + 1 if not written_by_owner else seq + len(data)
            assert answer.event_id.endswith(f"-{end_seq}")
            assert answer.event_id.startswith(f"{grant.epoch}-") == written_by_owner
        self.calls.append(Call("finish", partial(call, seq, data), answer))
        if len(answer.grants) < number:
            replica.idle_for |= set(replica.models)
        replica.let_go(grant)
        if not lost:
            replica.keep(answer.grants)
            self.told(replica, answer.retry_at, answer.closed_upstreams)

    @rule(who=WHO, which=st.integers(0, 9))
    def sent(self, who: int, which: int) -> None:
        """The request of an attempt has left its worker."""
        replica, grant = self.replicas[who], self.pick(who, which)
        if grant is not None:
            self.have_left.add(grant.token)
            self.told(replica, replica.store.sent(grant))

    @rule(
        who=WHO,
        which=st.integers(0, 9),
        hold_ms=st.sampled_from((0, 0, 700, 3000)),
        cause=st.sampled_from(("lost", "failed", "falls", "declined", "redo", "redo")),
        begun=st.booleans(),
    )
    def requeue(self, who: int, which: int, hold_ms: int, cause: Any, begun: bool) -> None:
        replica, grant = self.replicas[who], self.pick(who, which)
        if grant is None:
            return
        unsent = cause == "declined" and not begun and not hold_ms and grant.token not in self.have_left
        if unsent and self.is_current(grant):
            self.counted[grant.model].pop(f"{grant.task_id}:{grant.epoch}", None)

        repair = b"y" * next(self.numbers) if cause == "redo" else None
        hold_ms = 0 if repair else hold_ms

        def call() -> Any:
            return replica.store.requeue(
                grant, cause, begun=begun, why="repaired" if repair else self.failure or "gone", repair=repair,
                used=(30, 7), suspicion="w" if cause == "lost" else "", hold_ms=hold_ms, unsent=unsent,
            )  # fmt: skip

        current, known = self.is_current(grant), self.record(grant.task_id)
        answer = call()
        if repair and answer.outcome == "queued":
            assert known["repair"] == "1", "once"
            assert int(self.record(grant.task_id)["payload_bytes"]) == len(repair)
        ended_by_it = known.get("end_nonce") == grant.token
        assert (answer.outcome == "stale") == (not current and not ended_by_it)
        if current and "first_output_at" in known:
            assert answer.outcome == "ended", "after output no retry"
        self.calls.append(Call("requeue", call, answer))
        self.writer(grant).closed = True
        self.told(replica, answer.retry_at)
        replica.let_go(grant)

    @rule(which=st.integers(0, 30), tombstone=st.sampled_from((0, 5000)))
    def cancel(self, which: int, tombstone: int) -> None:
        task_id = self.accepted[-1 - which] if which < len(self.accepted) else "unheard-of"
        store = self.replicas[0].store
        chain = store.chain(task_id)
        if chain and chain.parts and which % 2:  # an operator cancels a part
            task_id = part_of(task_id, chain.stage[0], which % chain.parts)
        record = self.record(task_id)
        state = record.get("state")
        left = tombstone > 0 and "idempotency" in record  # to who comes again with its key

        def call() -> Any:
            return store.cancel(task_id, tombstone_ms=tombstone)

        answer = call()
        assert answer.outcome == (
            "unknown"
            if state is None or state == "gone"
            else "over"
            if state in TERMINAL or left
            else "ended"
        )
        self.calls.append(Call("cancel", call, answer))

    @rule(who=WHO, output=st.sampled_from((-1, -1, 0, 40, 6000)))
    def renew(self, who: int, output: int) -> None:
        replica = self.replicas[who]
        grants = list(replica.held.values())
        expected = [
            1 if self.is_current(g) else 2 if self.record(g.task_id).get("token") == g.token else 0
            for g in grants
        ]
        found = replica.store.renew(*grants, read=self.accepted[-3:], worker="w", output=output)
        assert found == expected
        for grant, answer in zip(grants, expected, strict=True):
            if answer == 0:
                del replica.held[grant.task_id]

    @rule(ms=st.sampled_from((1, 400, 1000, 1400, 2900, 4900, 6000, 20_000)))
    def advance(self, ms: int) -> None:
        """Time passes; or Redis was away; or a fail-over came to a clock that is ahead."""
        self.pass_ms(ms)

    @rule(ms=st.sampled_from((1600, 3300, 4500)), first=WHO, want=st.integers(1, 3))
    def away(self, ms: int, first: int, want: int) -> None:
        """One is granted tasks, Redis is away before it can renew, and another one sweeps first."""
        self.sweep(first)
        self.take(first, want, lost=False)
        self.look()
        self.pass_ms(ms)
        self.sweep((first + 1) % len(self.replicas))

    @rule(who=WHO)
    def sweep(self, who: int) -> None:
        pool, shot, before = self.pool(), Snapshot(self.world), dict(self.ended)
        last = int(pool.get("swept", self.world.now_ms))
        broadcast = not 0 <= self.world.now_ms - int(pool.get("woke", 0)) < 900
        self.replicas[who].store.sweep()
        self.look()
        self.check_bounds(shot, last, before)
        if broadcast:
            self.wake_was_lost = False
            self.unwatched.clear()

    def check_bounds(self, shot: Snapshot, last: int, ended: dict[str, str]) -> None:
        """What a sweep took of each lease, and of each reader's interest: its share of the time since the last one."""
        now, after = self.world.now_ms, Snapshot(self.world)
        gap = now - last
        taken = gap if gap <= 1500 else 500
        for (model,), held in shot.by_kind["slots"].items():
            for task, lease_end in held.items():
                record = shot.one("task", task)
                left = lease_end_of(shot, task, lease_end) - last
                state = after.one("task", task).get("state")
                if gap >= 0 and state == record["state"] and task in after.one("slots", model):
                    left_now = lease_end_of(after, task, after.one("slots", model)[task]) - now
                    assert left_now <= max(left - taken, 0), (task, gap, left)
                if record["state"] != "executing" or gap < 0 or 0 < int(record["attempt_deadline"]) <= now:
                    continue
                if left > taken and left_by(shot, task) - last > taken and not self.ended_with(after, record):
                    assert state == "executing", (task, gap, left)
        for (task,), record in shot.by_kind["task"].items():
            due = min(int(record.get(field, FAR)) for field in ("wait_deadline", "deadline"))
            if record["state"] == "queued" and gap >= 0 and due > now:
                if (
                    left_by(shot, task) - last > taken
                    and "parts" not in record
                    and not self.ended_with(after, record)
                ):
                    assert task not in self.ended or task in ended, (task, gap)

    @staticmethod
    def ended_with(shot: Snapshot, record: dict[str, str]) -> bool:
        """Whether it is a part of a chain that has ended."""
        return "chain" in record and shot.one("task", record["chain"])["state"] in TERMINAL

    @rule()
    def save(self) -> None:
        """Redis writes its memory to disk."""
        self.look()
        self.saved = Save(
            self.world.save(),
            list(self.accepted),
            {task: list(log) for task, log in self.logs.items()},
            dict(self.ended),
            dict(self.before),
            dict(self.settled),
        )

    @precondition(lambda self: self.saved is not None)
    @rule(really=st.sampled_from((False, True)))
    def lose(self, really: bool) -> None:
        """Redis is killed and comes back from its save. Replicas connect again: they offer, and ask for all their free slots."""
        if not really or self.saved is None:
            return
        self.look()
        self.pass_ms(1)  # it takes some time
        self.world.restore(self.saved.store)
        self.losses += 1
        self.accepted, self.logs, self.ended = (
            list(self.saved.accepted),
            dict(self.saved.logs),
            dict(self.saved.ended),
        )
        self.before, self.settled = dict(self.saved.before), dict(self.saved.settled)
        self.calls.clear()
        for attempts in self.counted.values():
            attempts.clear()
        self.only_time.clear()
        self.wake_was_lost = True
        self.stale = {replica.name for replica in self.replicas if replica.free <= 0}
        for replica in self.replicas:
            replica.idle_for.clear()
            if replica.offering:
                self.offer(replica)
            else:
                replica.store.offer(withdrawn=replica.models)
            if replica.free > 0:
                self.ask(replica, replica.free)

    @precondition(lambda self: bool(self.calls))
    @rule(which=st.integers(0, 5))
    def repeat(self, which: int) -> None:
        """A reply was lost and the call is made again: no second effect."""
        call = self.calls[which % len(self.calls)]
        logs = {task: len(log) for task, log in self.logs.items()}
        answer = call.again()
        self.look()
        if call.name == "submit" or (call.name == "finish" and call.answer.outcome == "ok"):
            tokens = {grant.token for grant in call.answer.grants}
            assert {grant.token for grant in answer.grants} <= tokens
            assert all(self.is_current(grant) for grant in answer.grants)
        if call.name == "finish" and call.answer.outcome == "ok":
            assert (answer.outcome, answer.event_id) == ("ok", call.answer.event_id)
        if call.name == "advance":
            assert answer.outcome in (call.answer.outcome, "stale", "late")
            assert answer.outcome != call.answer.outcome or answer.event_id == call.answer.event_id
        if call.name == "requeue" and call.answer.outcome == "ended":
            assert answer == call.answer
        refilled = call.name == "append" and call.answer[0] == "hole"
        if (call.name in ("append", "requeue", "cancel") and not refilled) or (
            call.name in ("finish", "advance") and not answer.grants
        ):
            assert {task: len(log) for task, log in self.logs.items() if task in logs} == logs

    @rule(who=WHO)
    def offer(self, who: int | Replica) -> None:
        replica = who if isinstance(who, Replica) else self.replicas[who]
        replica.offering = True
        replica.offered_ms = self.world.now_ms
        replica.store.offer(*replica.models, upstreams=[replica.upstream] if replica.upstream else [])

    @rule(who=WHO, grace=st.sampled_from((0, 2000)))
    def withdraw(self, who: int, grace: int) -> None:
        replica = self.replicas[who]
        replica.offering = False
        replica.idle_for.clear()
        replica.store.offer(withdrawn=replica.models, grace_ms=grace)

    @rule(who=WHO, really=st.sampled_from((False, False, False, True)))
    def die(self, who: int, really: bool) -> None:
        """A replica is killed: its grants are forgotten, another takes its place."""
        if not really:
            return
        replica = self.replicas.pop(who)
        self.wake_was_lost = self.wake_was_lost or bool(replica.wakes)
        replica.store.close()
        self.settle_subscriptions(replica.name)
        self.birth(replica.models, replica.slots, replica.upstream)

    def settle_subscriptions(self, name: str) -> None:
        channel = self.world.keys.channel(name)
        while self.world.call("PUBSUB", "SHARDNUMSUB", channel)[1]:
            pass

    # ---- what always holds ----------

    @invariant()
    def look(self) -> None:
        if not self.begun:
            return
        type(self).steps += 1
        shot = audit(self.world, self.accepted)
        for replica in self.replicas:
            for kind, *rest in replica.store.heard():
                if kind in ("wake", "wake_all"):
                    replica.wakes.append((kind, rest[0]))
                if kind == "breaker" and rest[0] == "closed":
                    replica.wakes.append(("wake_all", rest[4]))
                    if rest[5] == replica.upstream:
                        replica.shut.pop(rest[4], None)
                if kind == "wake":
                    replica.idle_for.discard(rest[0] if rest[0] in replica.idle_for else ANY_MODEL)
            if self.world.now_ms - replica.offered_ms > 60_000:
                replica.idle_for.clear()  # it counts as dead
            for model in replica.idle_for:
                assert replica.name in shot.one("idle", model), (
                    "an idle replica is known as idle until it is woken"
                )
        parts = [task for (task,), record in shot.by_kind["task"].items() if "chain" in record]
        for task in (*self.accepted, *parts):
            log = shot.one("log", task) or []
            self.history.saw(task, log)
            seen = self.logs.get(task, [])
            assert log[: len(seen)] == seen, "a log only grows"
            self.logs[task] = log
            state = shot.one("task", task)["state"]
            if task in self.ended:
                assert (state, log) == (self.ended[task], seen), (
                    "a task ends exactly once, nothing comes behind"
                )
            elif state in TERMINAL:
                self.ended[task] = state
        self.check_limits(shot)
        self.check_windows(shot)
        costs = settled_costs(shot)
        assert all(costs[lane] >= cost for lane, cost in self.settled.items()), (self.settled, costs)
        self.settled = costs
        for model in self.models:
            startable, at = self.startable(shot, model)
            if not startable:
                self.unwatched.discard(model)
            if startable and at <= self.world.now_ms:
                self.time_has_come(model)
                if not self.wake_was_lost and model not in self.unwatched:
                    self.check_woken(shot, model)
            self.only_time.discard(model)
            if startable and at > self.world.now_ms:
                self.only_time.add(model)

    def check_windows(self, shot: Snapshot) -> None:
        """Whatever was granted since the last look found room in its windows: by all that was ever seen to count."""
        now = self.world.now_us
        for model in self.models:
            text, counts = shot.one("model", model).get("windows"), shot.one("windows", model)
            known = self.counted[model]
            if not text:
                known.clear()
                continue
            gone = [attempt for attempt, left in known.items() if left == UNKNOWN and attempt not in counts]
            assert not gone, "what may still come counts"
            begun = [
                epoch
                for attempt in counts.keys() - known.keys()
                if self.counted_at < (epoch := int(attempt.rpartition(":")[2])) <= now
            ]
            known |= counts
            for window in read_windows(text):
                for epoch in begun:
                    counting = sum(left + 1000 * window.ms > epoch for left in known.values())
                    assert counting <= window.requests, (model, window, epoch, known)
        self.counted_at = now

    def check_limits(self, shot: Snapshot) -> None:
        """Nothing that runs beyond a limit has begun under it: more than before may run only up to the limit."""
        now: dict[tuple[str, ...], tuple[int, int]] = {}
        for model in self.models:
            fields = shot.one("model", model)
            now["slots", model] = (len(shot.one("slots", model)), int(fields.get("concurrency", 0)))
            cap = int(fields.get("max_running_per_user", 0))
            for user in USERS:
                now["user", model, user] = (running_of_user(shot, model, user), cap)
        for subject in {subject for user in USERS for subject in subjects_of(user)}:
            now["limit", subject] = (len(shot.one("runs", subject)), self.limit_of(shot, subject))
        for queue in QUEUES:
            running = sum(lane.running for (name, _), lane in shot.lanes.items() if name == queue)
            now["queue", queue] = (int(running), int(shot.one("queue", queue).get("max_running", 0)))
        for what, (number, limit) in now.items():
            assert not limit or number <= max(limit, self.before.get(what, 0)), (what, number, limit)
            self.before[what] = number
        holding = {task for tasks in shot.by_kind["slots"].values() for task in tasks}
        self.attempts = {(task, shot.one("task", task)["epoch"]) for task in holding}

    def limit_of(self, shot: Snapshot, subject: str) -> int:
        """How many tasks a key or user may run at once, by those that have begun since the last look; 0 = none has."""
        running = [shot.one("task", task) for task in shot.one("runs", subject)]
        new = [record for record in running if (record["id"], record["epoch"]) not in self.attempts]
        return max((running_limits(record).get(subject, 0) for record in new), default=0)

    @staticmethod
    def is_held(shot: Snapshot, queue: str, model: str, user: str) -> bool:
        """Whether the user's next task has to wait for a running one of its key's, or of its own."""
        flow = shot.one("flow", queue, str(len(model.encode())), model, user)
        first = min(flow, key=lambda task: (flow[task], task.encode()))
        limits = running_limits(shot.one("task", first))
        return any(len(shot.one("runs", subject)) >= limit for subject, limit in limits.items())

    def startable(self, shot: Snapshot, model: str) -> tuple[bool, int]:
        """May a task of a model start, as the rules of DESIGN.md say, but for time? And from which instant (ms)?

        An instant that depends on how many tokens a task is expected to take is the latest there can be.
        """
        fields = shot.one("model", model)
        lanes = [queue for (queue, name), lane in shot.lanes.items() if name == model and lane.users]
        limit, slots = int(fields.get("concurrency", 0)), len(shot.one("slots", model))
        if not lanes or fields.get("paused") == "1" or (limit and slots >= limit):
            return False, 0
        cap = int(fields.get("max_running_per_user", 0))
        for queue in lanes:
            settings = shot.one("queue", queue)
            load = sum(lane.running for (name, _), lane in shot.lanes.items() if name == queue)
            most = int(settings.get("max_running", 0))
            users = shot.one("flows", queue, model)
            if (
                settings.get("paused") != "1"
                and not (most and load >= most)
                and any(
                    (not cap or running_of_user(shot, model, user) < cap)
                    and not self.is_held(shot, queue, model, user)
                    for user in users
                )
            ):
                break
        else:
            return False, 0
        at = [int(fields.get("cooldown_until", 0))]
        text = fields.get("windows")
        windows = [(window.requests, 1000 * window.ms) for window in (read_windows(text) if text else ())]
        if int(fields.get("requests_per_minute", 0)):
            windows.append((1, -(-60_000_000 // int(fields["requests_per_minute"]))))
        if int(fields.get("tokens_per_minute", 0)):
            at.extend((int(second) + 61) * 1000 for second in shot.one("spent", model))
        left = sorted(shot.one("windows", model).values(), reverse=True)
        for requests, us in windows:
            if len(left) >= requests:
                if left[requests - 1] == UNKNOWN:
                    return False, 0
                at.append(-(-(int(left[requests - 1]) + us) // 1000))
        return True, max(at)

    def time_has_come(self, model: str) -> None:
        """Whoever was told of this instant asks now; if nobody was, the next sweep wakes."""
        for replica in self.replicas:
            if replica.timers.get(model, self.world.now_ms + 1) <= self.world.now_ms:
                del replica.timers[model]
                replica.wakes.append(("wake", model))
                self.only_time.discard(model)
        if model in self.only_time:
            self.unwatched.add(model)

    def check_woken(self, shot: Snapshot, model: str) -> None:
        """Free lease and eligible task: no replica is recorded as idle, unless a wake-up is under way."""
        idle = {*shot.one("idle", model), *shot.one("idle", ANY_MODEL)}
        idle -= {replica.name for replica in self.replicas if replica.free <= 0} & self.stale
        alive = [replica for replica in self.replicas if replica.name in idle]
        under_way = any(woken == model for replica in self.replicas for _, woken in replica.wakes)
        assert not alive or under_way, (model, idle)

    def leave_nothing(self) -> None:
        """At the end: every task can be ended, and what remains either expires or is configuration."""
        if not self.begun:
            return
        store = self.replicas[0].store
        for task in self.accepted:
            store.cancel(task, state="failed", kind="error", why="admin")
        for replica in self.replicas:
            replica.store.offer(withdrawn=replica.models, hold_ms=1000)
        self.sweep_for(100, store)
        shot = audit(self.world, self.accepted)
        assert not [kind for kind in ("slots", "due") if shot.by_kind[kind]]
        self.pass_ms(3_700_000)
        self.sweep_for(100, store)
        shot = audit(self.world, self.accepted)
        kept = {
            "queue",
            "pool",
            "queues",
            "recent",
            "clock",
            "model",
            "models",
            "configured",
            "overrides",
            "overridden",
            "outbox",
            "balance",
            "balances",
        }
        expiring = {key.name for key in KEYS if "EXPIRE" in key.removed or "PX" in key.removed}
        for (kind, parts), ttl in shot.ttls.items():
            assert kind in kept | expiring, (kind, parts)
            assert kind in kept or ttl > 0, (kind, parts)

    def pass_ms(self, ms: int) -> None:
        """Move the clock; no two readings of it have the same fraction."""
        self.world.advance(ms + 0.001)

    def sweep_for(self, seconds: int, store: Store) -> None:
        """Time with a sweep each second, as live gateways make it."""
        for _ in range(seconds):
            store.sweep()
            self.pass_ms(1000)

    # ---- helpers ----------

    def pick(self, who: int, which: int, *, of_chain: bool = False) -> Grant | None:
        """A grant that is held; now and then one that was given back, ended or taken away. `of_chain`: of a stage or part."""
        replica = self.replicas[who]
        grants = list(replica.held.values()) or list(replica.past)
        if which == 9:
            grants = [*replica.past, *grants]
        if of_chain:
            grants = [grant for grant in grants if grant.stage]
        return grants[which % len(grants)] if grants else None

    def record(self, task_id: str) -> dict[str, str]:
        run, spec = self.world.call("HMGET", self.world.keys("task", id=task_id), "run", "spec")
        return texts((decode_map(spec) if spec else {}) | decode_map(run)) if run else {}

    def pool(self) -> dict[str, str]:
        flat = self.world.call("HGETALL", self.world.keys("pool"))
        return {flat[i].decode(): flat[i + 1].decode(errors="replace") for i in range(0, len(flat), 2)}

    def top(self, task_id: str) -> int:
        return int(self.world.call("XLEN", self.world.keys("log", id=task_id)))

    def is_current(self, grant: Grant) -> bool:
        known = self.record(grant.task_id)
        return known.get("state") == "executing" and known.get("token") == grant.token

    def check_unchanged(self, before: Snapshot, why: str) -> None:
        """The whole store is as it was, but for seconds that are over, which whoever reads them may drop; limits as they are
        reckoned; and what Redis has let go meanwhile by its own clock."""
        now, took_ms = Snapshot(self.world), 1000 * (time.monotonic() - before.read_s)
        gone = {key for key in before.ttls.keys() - now.ttls.keys() if 0 <= before.ttls[key] <= took_ms}
        assert self.whole(now, gone) == self.whole(before, gone), why

    def whole(
        self, shot: Snapshot, gone: set[tuple[str, tuple[str, ...]]]
    ) -> dict[tuple[str, tuple[str, ...]], Any]:
        """All but what is gone."""
        found: dict[tuple[str, tuple[str, ...]], Any] = {}
        for kind, parts in shot.ttls.keys() - gone:
            value = shot.one(kind, *parts)
            if kind == "limit":
                value = self.rates(value, *parts)
            if kind == "pool":
                value = {name: text for name, text in value.items() if (name, text) != ("bytes", "0")}
            if value and kind != "spent":
                found[kind, parts] = value
        return found

    def rates(self, fields: dict[str, str], subject: str) -> dict[str, int]:
        """What a key or user has used of its limits, when it is all back; of those that there are now, if there are any: whoever
        looks at them by others writes the key anew."""
        now_us = self.world.now_us
        limits = self.limits[subject.startswith("u:")]
        counted = {name for setting, name in RATES.items() if setting in limits}
        return {
            name: int(at)
            for name, at in fields.items()
            if name in (counted or RATES.values())
            and int(at) > now_us + 2_000_000  # (the key lives by Redis's own clock)
        }


NEEDS = pytest.mark.feature(
    *("archive", "breakers", "chains", "credits", "fallbacks", "idempotency", "limits", "overrides"),
    *("pacing", "repair", "webhooks"),
)
"""The features of which the tasks of a `Life` make use."""


def live_counted(
    life: type[Life],
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    *,
    long: int,
    short: int,
) -> None:
    """Live so many lives of a kind, and say how many steps that were."""
    live(life, request.config, short=short, long=long, steps=(80, 100))
    with capsys.disabled():
        print(f" {life.steps:,} steps")


@pytest.fixture
def life(redis_server: Server) -> type[Life]:
    return type("LifeHere", (Life,), {"server": redis_server})


@NEEDS
@pytest.mark.timeout(0)
def test_any_life_of_a_pool_keeps_the_promises(
    life: type[Life], request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    live_counted(life, request, capsys, long=2500, short=40)
