"""Limits of a key and of its users over time: what is taken, what comes back, and what a refusal says."""

import itertools
from typing import Any

import pytest
from tests.support.audit import Snapshot, audit
from tests.support.direct import World, drive
from tests.support.pool import Pool

from fairlane.queues.limits import Allowed, Remaining, pack
from fairlane.queues.tasks import LimitHit, Rejection, State, Submitted

MINUTE, DAY = 60_000, 86_400_000


class Callers:
    """Callers of one key, whose limits these are, and of its users."""

    def __init__(self, world: World, *, users: dict[str, int] | None = None, **limits: int) -> None:
        self.world = world
        self.pool = Pool(world)
        self.limits = pack(limits)
        self.user_limits = pack(users or {})
        self.pool.offer("m", hold_ms=1000 * DAY)
        self.numbers = itertools.count(1)
        self.accepted: list[str] = []

    def submit(self, user: str = "acme/bob", **more: Any) -> Submitted | Rejection:
        task = more.pop("task", f"t{next(self.numbers)}")
        pool = more.pop("pool", self.pool)
        answer: Submitted | Rejection = pool.submit(
            task, user=user, key_limits=self.limits, user_limits=self.user_limits, **more
        )
        if isinstance(answer, Submitted) and task not in self.accepted:
            self.accepted.append(task)
        return answer

    def burst(self, most: int = 1000, **more: Any) -> int:
        """How many are accepted at once."""
        return sum(isinstance(self.submit(**more), Submitted) for _ in range(most))

    def left(self, user: str = "acme/bob") -> dict[str, int]:
        found: list[Allowed] = drive(self.pool.scheduler.allowance(user, self.limits, self.user_limits))
        return {f"{'user ' if one.of_user else ''}{one.setting}": one.remaining for one in found}

    def check(self) -> None:
        audit(self.world, self.accepted)


def refused(answer: Submitted | Rejection) -> Rejection:
    assert isinstance(answer, Rejection), answer
    return answer


@pytest.mark.parametrize("why", ["full", "full_bytes", "no_worker", "too_long", "user_full"])
def test_a_rejection_for_another_reason_uses_up_nothing_and_reports_the_remainder(
    world: World, why: str
) -> None:
    callers = Callers(world, requests_per_minute=5, tokens_per_minute=5000)
    pool = callers.pool
    pool.submit("other", user="other", payload=b"x" * 20)
    if why == "full":
        pool.configure(max_length=1)
        pool.submit("more", user="acme/bob")
    if why == "user_full":
        pool.set_model(max_waiting_per_user=1)
        pool.submit("more", user="acme/bob")
    if why == "full_bytes":
        pool.scheduler.limits = type(world.limits)(max_queued_bytes=25)
    if why == "no_worker":
        pool.offer(withdrawn=["m"])
        world.advance(20_000)
    if why == "too_long":
        pool.set_queue("free", admission="adaptive")
        for number in range(20):
            pool.submit(f"x{number}", user=f"v{number}")
        for _ in range(4):
            (grant,) = pool.take()
            world.advance(10_000)
            pool.finish(grant)
    answer = refused(callers.submit(payload=b"x" * 20, timeout_ms=1000 if why == "too_long" else 0))
    assert answer.reason == why
    assert answer.rate_limits is not None
    assert answer.rate_limits.requests == Remaining(5, 5, 0)
    assert answer.rate_limits.tokens == Remaining(5000, 5000, 0)
    assert Snapshot(world).by_kind["limit"] == {}


def test_the_reported_remainder_is_that_of_the_tighter_limit(world: World) -> None:
    callers = Callers(world, users={"requests_per_minute": 10}, requests_per_minute=60, requests_per_day=3)
    answer = callers.submit()
    assert answer.rate_limits is not None
    assert answer.rate_limits.requests == Remaining(3, 2, DAY // 3)
    assert answer.rate_limits.tokens is None
    world.advance(DAY)
    for user in ("acme/eve", "acme/eve"):
        callers.submit(user)
    standing = refused([callers.submit("acme/eve") for _ in range(2)][1]).rate_limits
    assert standing is not None
    assert standing.requests == Remaining(3, 0, DAY)


@pytest.mark.parametrize("limit", [1, 1000, 8_000_000])
def test_a_wrong_usage_report_blocks_a_user_for_two_periods_at_most(world: World, limit: int) -> None:
    callers = Callers(world, users={"tokens_per_minute": limit}, tokens_per_day=limit)
    grants = []
    for _ in range(3):
        world.advance(2 * DAY)
        callers.pool.offer("m", hold_ms=1000 * DAY)
        answer = callers.submit(want=1, estimated_input=1, max_output=1)
        assert isinstance(answer, Submitted), "after two periods"
        grants = answer.grants
        callers.pool.finish(grants[0], used=(4_194_304, 4_194_304))
        answer = refused(callers.submit(estimated_input=limit))
        assert answer.retry_ms <= 2 * DAY
        assert answer.rate_limits is not None
        assert answer.rate_limits.tokens is not None
        assert answer.rate_limits.tokens.reset_ms <= 2 * DAY


def test_unused_tokens_come_back_as_far_as_time_has_not_brought_them_back(world: World) -> None:
    callers = Callers(world, tokens_per_minute=6000)
    callers.submit(estimated_input=1000, max_output=2000)
    (grant,) = callers.pool.take()
    world.advance(20_000)
    assert callers.left() == {"tokens_per_minute": 5000}, "2,000 of the 3,000 are back"
    callers.submit(estimated_input=1000, max_output=1000)
    assert callers.left() == {"tokens_per_minute": 3000}
    callers.pool.finish(grant, used=(0, 500))
    assert callers.left() == {"tokens_per_minute": 4000}, "1,000 come back, not the 2,500 that it did not use"


@pytest.mark.parametrize(
    "how", ["cancelled", "waited too long", "out of time", "its readers left", "worker lost"]
)
def test_a_task_that_came_to_nothing_is_refunded_whole_and_once(world: World, how: str) -> None:
    callers = Callers(world, users={"requests_per_minute": 5}, requests_per_day=5, tokens_per_day=10_000)
    pool, full = callers.pool, callers.left()
    times = {
        "waited too long": {"wait_ms": 5},
        "out of time": {"timeout_ms": 5},
        "its readers left": {"linger_ms": 5},
    }
    callers.submit(estimated_input=100, **times.get(how, {}))
    task = callers.accepted[0]
    assert callers.left() != full
    if how == "cancelled":
        pool.cancel(task)
        pool.cancel(task)
    elif how == "worker lost":
        for _ in range(3):
            (grant,) = pool.take()
            pool.requeue(grant, "lost", begun=True)
    else:
        world.advance(6)
        pool.sweep()
    pool.sweep()
    assert pool.state(task) in (State.FAILED, State.CANCELLED)
    assert callers.left() == full
    callers.check()


def test_a_limit_of_waiting_tasks_counts_over_all_models_and_users_of_a_key(world: World) -> None:
    callers = Callers(world, max_waiting=3)
    callers.pool.offer("m2")
    assert callers.burst(2, user="acme/bob") == 2
    assert isinstance(callers.submit("acme/eve", model="m2", queue="paid"), Submitted)
    answer = refused(callers.submit("acme/joe"))
    assert answer.reached == LimitHit("max_waiting", 3, 3, 1)
    assert answer.retry_ms > 0
    (grant,) = callers.pool.take()
    assert callers.burst(9) == 1
    callers.check()
    assert callers.pool.requeue(grant).outcome == "queued", "what came once is not refused later"
    assert callers.left() == {"max_waiting": 0}
    callers.check()
    for task in callers.accepted[:2]:
        callers.pool.cancel(task)
    assert callers.burst(9) == 1
    callers.check()


def test_a_task_that_need_not_wait_is_not_rejected_for_waiting_ones(world: World) -> None:
    callers = Callers(world, max_waiting=1)
    callers.submit()
    callers.pool.offer("m2")
    assert isinstance(callers.submit(model="m2", want=1), Submitted)
    assert isinstance(callers.submit(model="m2"), Rejection)
    callers.check()
