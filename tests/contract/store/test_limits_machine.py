"""Random lives of keys with limits, over a real Redis, against a plain model of the limits in whole numbers.

The model is told what was accepted and how each task ended, and nothing of how the scripts reckon: after every step each limit of
each key and user must have as much left as it says, a refusal must tell when the limit that keeps the task out longest will let
it in, and what was refused must have used up nothing. Replies are lost, limits change, replicas share it all.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.contract.store.store import RATES, Grant, Rejected, Store, World
from tests.support.audit import Snapshot, audit
from tests.support.lives import live
from tests.support.servers import Server

MINUTE_US, DAY_US = 60_000_000, 86_400_000_000
PERIODS = {setting: MINUTE_US if setting.endswith("minute") else DAY_US for setting in RATES}
FAR_MS = 10**13
LEARNED_S = 3600
"""As in lanes.lua."""
USERS = ("acme/ann", "acme/ü b", "acme", "other")
KEY_LIMITS: tuple[dict[str, int], ...] = (
    {},
    {"requests_per_minute": 7},
    {"requests_per_minute": 100, "requests_per_day": 12, "max_waiting": 4},
    {"tokens_per_minute": 3000, "requests_per_day": 1000},
    {"tokens_per_minute": 100_000, "tokens_per_day": 9000, "max_running": 2},
)
USER_LIMITS: tuple[dict[str, int], ...] = (
    {},
    {"requests_per_minute": 3, "max_running": 1},
    {"tokens_per_day": 5000, "max_waiting": 2},
)


@dataclass
class Taken:
    """What a task took of one limit."""

    subject: str
    setting: str
    amount: int
    limit: int
    own: int
    """When it would all be back, as it was then."""


@dataclass
class Task:
    user: str
    tokens: int
    taken: list[Taken] = field(default_factory=list)
    running: bool = False
    buckets: dict[str, "Bucket"] = field(default_factory=dict)
    """As they would be with it, but for what it takes."""
    waits_for: set[str] = field(default_factory=set)
    """Subjects among whose waiting tasks it counts."""


class Bucket:
    """One subject's limits: of each, until when what was taken is not back."""

    def __init__(self) -> None:
        self.limits: dict[str, int] = {}
        self.tats: dict[str, int] = {}
        self.moved = False

    def bring_up(self, now_us: int, limits: dict[str, int]) -> None:
        """To this clock, and to these limits: as much is used as before, of a limit without a debt not
        more than all of it, and a debt is not more than the limit."""
        self.moved = self.limits != limits
        for setting, tat in list(self.tats.items()):
            before, now = self.limits.get(setting, 0), limits.get(setting, 0)
            if not now or not before:
                del self.tats[setting]
            elif before != now:
                used, period = tat - now_us, PERIODS[setting]
                self.tats[setting] = now_us + min(used * before // now, period * (1 + (used > period)))
        self.limits = dict(limits)

    def used_us(self, setting: str, now_us: int) -> int:
        return max(self.tats.get(setting, 0) - now_us, 0)

    def left(self, setting: str, limit: int, now_us: int) -> int:
        period = PERIODS[setting]
        return (period - self.used_us(setting, now_us)) * limit // period


class LimitsMachine(RuleBasedStateMachine):
    server: Server
    refusals: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.server.socket_path)
        self.world.empty()
        self.replicas = [Store(self.world), Store(self.world, "r2", set_up=False)]
        self.replicas[0].configure(max_length=1000)
        for pool in self.replicas:
            pool.offer("m", "m2", hold_ms=FAR_MS)
        self.numbers = iter(range(1, 100_000))
        self.limits: tuple[dict[str, int], dict[str, int]] = ({}, {})
        self.buckets: dict[str, Bucket] = {}
        self.tasks: dict[str, Task] = {}
        self.accepted: list[str] = []
        self.grants: list[Grant] = []
        self.again: list[Callable[[], Any]] = []
        self.means: dict[tuple[str, str], float] = {}
        self.mean: dict[str, float] = {}

    def teardown(self) -> None:
        self.world.close()

    # ---- what may happen ----------

    @initialize(of_key=st.sampled_from(KEY_LIMITS), of_user=st.sampled_from(USER_LIMITS))
    def begin(self, of_key: dict[str, int], of_user: dict[str, int]) -> None:
        self.limits = (of_key, of_user)

    @rule(of_key=st.sampled_from(KEY_LIMITS), of_user=st.sampled_from(USER_LIMITS), really=st.booleans())
    def other_limits(self, of_key: dict[str, int], of_user: dict[str, int], really: bool) -> None:
        if really:
            self.limits = (of_key, of_user)

    @rule(
        user=st.sampled_from(USERS),
        model=st.sampled_from(("m", "m2")),
        tokens=st.sampled_from(((10, 50), (400, 600), (2900, 20), (4000, 1))),
        who=st.integers(0, 1),
        want=st.booleans(),
        times=st.sampled_from((1, 1, 3, 9)),
    )
    def submit(
        self, user: str, model: str, tokens: tuple[int, int], who: int, want: bool, times: int
    ) -> None:
        for _ in range(times):
            self.submit_one(user, model, tokens, self.replicas[who], want)

    def submit_one(self, user: str, model: str, tokens: tuple[int, int], pool: Store, want: bool) -> None:
        of_key, of_user = self.limits
        task_id, nonce = f"t{next(self.numbers)}", pool.nonce()
        said: dict[str, Any] = {
            "user": user,
            "estimated_input": tokens[0],
            "max_output": tokens[1],
            "key_limits": of_key,
            "user_limits": of_user,
            "keep_ms": FAR_MS,
        }

        def call() -> Any:
            return pool.submit(task_id, model, want=int(want), nonce=nonce, **said)

        before = self.left(user)
        answer = call()
        task, longest = self.weigh(user, tokens, self.expected(model, user, tokens))
        if isinstance(answer, Rejected):
            type(self).refusals += 1
            for subject, bucket in task.buckets.items():
                if bucket.moved:
                    self.buckets[subject] = bucket
            assert answer.reason == "rate_limited"
            assert answer.reached
            assert self.left(user) == before, "a refusal uses up nothing"
            if answer.reached["setting"] == "max_waiting":
                assert longest == 0
                subject = f"u:{user}" if answer.reached["of_user"] else f"k:{user.partition('/')[0]}"
                assert self.waiting(subject) == answer.reached["used"] >= answer.reached["limit"]
            else:
                assert longest > 0
                assert answer.retry_ms == -(-longest // 1000)
            return
        assert longest == 0, "there was room in every limit"
        self.buckets |= task.buckets
        for taken in task.taken:
            self.buckets[taken.subject].tats[taken.setting] = taken.own
        self.tasks[task_id] = task
        self.accepted.append(task_id)
        self.begun(answer.grants)
        self.again.append(call)

    def weigh(self, user: str, tokens: tuple[int, int], expected: int) -> tuple[Task, int]:
        """The task as it would be charged, and how long (us) it has to wait for that."""
        task, longest, now_us = Task(user, tokens[0] + expected), 0, self.world.now_us
        for subject, limits in self.subjects(user):
            bucket = task.buckets[subject] = copy.deepcopy(self.buckets.get(subject, Bucket()))
            bucket.bring_up(now_us, {name: limit for name, limit in limits.items() if name in RATES})
            if limits.get("max_waiting"):
                task.waits_for.add(subject)
            for setting, limit in bucket.limits.items():
                amount = min(task.tokens, limit) if setting.startswith("tokens") else 1
                tat = max(bucket.tats.get(setting, 0), now_us) + amount * PERIODS[setting] // limit
                wait = tat - now_us - PERIODS[setting]
                longest = max(longest, wait)
                task.taken.append(Taken(subject, setting, amount, limit, tat))
        return task, longest

    def subjects(self, user: str) -> list[tuple[str, dict[str, int]]]:
        of_key, of_user = self.limits
        both = ((f"k:{user.partition('/')[0]}", of_key), (f"u:{user}", of_user))
        return [(subject, limits) for subject, limits in both if limits]

    def expected(self, model: str, user: str, tokens: tuple[int, int]) -> int:
        """Output that a task of a user is expected to write: as the scripts learn it."""
        shot = Snapshot(self.world)
        users = shot.one("model", model).get("users_by_lane", {}).items()
        (of_lane,) = [found for (_, name), found in users if name == user] or [None]
        recent = of_lane.output if of_lane and of_lane.at >= shot.now_ms // 1000 - LEARNED_S else 0
        mean = recent or float(shot.one("model", model).get("mean_output", 0)) or tokens[1]
        return int(min(mean, tokens[1]) + tokens[0] + 0.5) - tokens[0]

    @rule(which=st.integers(0, 5))
    def repeat(self, which: int) -> None:
        """The reply of a submit was lost: it comes again."""
        if self.again:
            answer = self.again[-1 - which % len(self.again)]()
            assert not isinstance(answer, Rejected)

    @rule(who=st.integers(0, 1), want=st.integers(1, 4))
    def take(self, who: int, want: int) -> None:
        self.begun(self.replicas[who].take("m", "m2", want=want))

    def begun(self, grants: list[Grant]) -> None:
        for grant in grants:
            self.tasks[grant.task_id].running = True
            self.grants.append(grant)

    @rule(
        which=st.integers(0, 9),
        used=st.sampled_from(((-1, -1), (10, 40), (300, 100), (3000, 4000), (0, 0))),
        want=st.booleans(),
        twice=st.booleans(),
    )
    def finish(self, which: int, used: tuple[int, int], want: bool, twice: bool) -> None:
        if not self.grants:
            return
        pool, grant = self.replicas[which % 2], self.grants.pop(which % len(self.grants))
        pool.renew(*self.grants, grant)
        nonce = pool.nonce()
        ended = pool.state(grant.task_id) != "executing"
        for _ in range(2 if twice else 1):
            answer = pool.finish(grant, used=used, want=int(want), models=["m", "m2"], nonce=nonce)
        assert answer.outcome == ("late" if ended else "ok")
        if used[0] >= 0:
            self.settle(grant.task_id, sum(used))
        self.tasks.pop(grant.task_id)
        for granted in answer.grants:
            if granted not in self.grants:
                self.begun([granted])

    def settle(self, task_id: str, used: int | None) -> None:
        """A task used so many tokens; None = it came to nothing."""
        now_us = self.world.now_us
        for taken in self.tasks[task_id].taken:
            bucket, of_tokens = self.buckets[taken.subject], taken.setting.startswith("tokens")
            limit = bucket.limits.get(taken.setting)
            more = (0 if used is None else used if of_tokens else 1) - taken.amount
            if not limit or not more:
                continue
            step, tat = abs(more) * PERIODS[taken.setting] // limit, bucket.tats.get(taken.setting, 0)
            if more > 0:
                most = now_us + 2 * PERIODS[taken.setting]
                bucket.tats[taken.setting] = min(max(tat, now_us) + step, most)
            else:
                own = max(taken.own - now_us, 0) * taken.limit // limit
                bucket.tats[taken.setting] = tat - min(own, step)

    @rule(which=st.integers(0, 9), twice=st.booleans())
    def cancel(self, which: int, twice: bool) -> None:
        waiting = [task_id for task_id, task in self.tasks.items() if not task.running]
        if not waiting:
            return
        task_id = waiting[which % len(waiting)]
        for _ in range(2 if twice else 1):
            self.replicas[0].cancel(task_id)
        self.settle(task_id, None)
        self.tasks.pop(task_id)

    @rule(which=st.integers(0, 9))
    def stop(self, which: int) -> None:
        """A running task is cancelled: its worker runs it still, and says later what it used."""
        if self.grants:
            self.replicas[0].cancel(self.grants[which % len(self.grants)].task_id)

    @rule(which=st.integers(0, 9))
    def give_back(self, which: int) -> None:
        if not self.grants:
            return
        grant = self.grants.pop(which % len(self.grants))
        self.replicas[0].renew(*self.grants, grant, begun=False)
        answer = self.replicas[0].requeue(grant, "declined")
        if answer.outcome == "stale":  # it was cancelled: its estimate stands
            self.tasks.pop(grant.task_id)
        else:
            assert answer.outcome == "queued"
            self.tasks[grant.task_id].running = False

    @rule(ms=st.sampled_from((1, 700, 9000, 61_000, 600_000)))
    def pass_time(self, ms: int) -> None:
        """Some time, for which somebody keeps alive what runs."""
        for pool in self.replicas:
            pool.sweep()
        while ms > 0:
            self.world.advance(min(ms, 5000) if ms < 100_000 else 10_000)
            ms -= 5000 if ms < 100_000 else 10_000
            self.replicas[0].renew(*self.grants)
            for pool in self.replicas:
                pool.offer("m", "m2", hold_ms=FAR_MS)
                pool.sweep()
            slots = self.replicas[0].slots("m") | self.replicas[0].slots("m2")
            gone = [grant for grant in self.grants if grant.task_id not in slots]
            for grant in gone:  # cancelled, and its worker never said more
                self.grants.remove(grant)
                self.tasks.pop(grant.task_id)

    # ---- what always holds ----------

    def waiting(self, subject: str) -> int:
        return sum(subject in task.waits_for for task in self.tasks.values() if not task.running)

    def left(self, user: str) -> dict[tuple[bool, str], int]:
        of_key, of_user = self.limits
        found = self.replicas[0].left(user, key_limits=of_key, user_limits=of_user)
        return {(name.startswith("user "), name.removeprefix("user ")): left for name, left in found.items()}

    @invariant()
    def each_limit_has_as_much_left_as_the_model_says(self) -> None:
        audit(self.world, self.accepted)
        now_us = self.world.now_us
        for user in USERS:
            found = self.left(user)
            for subject, limits in self.subjects(user):
                bucket, of_user = self.buckets.get(subject), subject.startswith("u:")
                for setting, limit in limits.items():
                    if setting in RATES:
                        now = copy.deepcopy(bucket or Bucket())
                        now.bring_up(now_us, {name: most for name, most in limits.items() if name in RATES})
                        expected = max(now.left(setting, limit, now_us), 0)
                        assert found[of_user, setting] == expected, (user, setting)
                    elif setting == "max_running":
                        assert found[of_user, setting] <= limit
        running = [grant for grant in self.grants if self.replicas[0].state(grant.task_id) == "executing"]
        assert len({grant.task_id for grant in running}) == len(running)


@pytest.fixture
def machine(redis_server: Server) -> type[LimitsMachine]:
    return type("LimitsHere", (LimitsMachine,), {"server": redis_server})


@pytest.mark.feature("limits")
@pytest.mark.timeout(0)
def test_any_life_of_limits_is_as_the_model_says(
    machine: type[LimitsMachine], request: pytest.FixtureRequest
) -> None:
    live(machine, request.config, short=40, long=1500)
    assert machine.refusals > 20, "limits are reached"
