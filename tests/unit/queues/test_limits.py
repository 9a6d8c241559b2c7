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


@pytest.mark.parametrize(("limit", "period"), [("requests_per_minute", MINUTE), ("requests_per_day", DAY)])
@pytest.mark.parametrize("number", [1, 7, 100])
def test_so_many_are_accepted_at_once_and_one_more_as_each_part_of_the_period_is_over(
    world: World, limit: str, period: int, number: int
) -> None:
    callers = Callers(world, **{limit: number})
    assert callers.burst(number + 20) == number
    answer = refused(callers.submit())
    assert answer.reason == "rate_limited"
    assert answer.reached == LimitHit(limit, number, number, 1)
    assert answer.retry_ms == -(-period // number)
    world.advance(answer.retry_ms - 1.001)
    assert isinstance(callers.submit(), Rejection)
    world.advance(1.001)
    assert isinstance(callers.submit(), Submitted), "when it was told to come"
    assert isinstance(callers.submit(), Rejection)
    world.advance(period)
    assert callers.burst(number + 20) == number, "a whole period brings all of it back, and no more"
    callers.check()


def test_every_limit_of_key_and_user_holds_and_the_longest_wait_is_told(world: World) -> None:
    callers = Callers(world, users={"requests_per_minute": 2}, requests_per_minute=5, requests_per_day=6)
    assert callers.burst(9, user="acme/bob") == 2
    assert callers.burst(9, user="acme/eve") == 2
    answer = refused(callers.submit("acme/bob"))
    assert answer.reached == LimitHit("requests_per_minute", 2, 2, 1, of_user=True)
    assert callers.burst(9, user="acme") == 1, "users without a name are one, too"
    answer = refused(callers.submit("acme/bob"))
    assert answer.reached == LimitHit("requests_per_minute", 2, 2, 1, of_user=True), (
        "it waits longest for that"
    )
    world.advance(MINUTE)
    assert callers.burst(9, user="acme/joe") == 1
    answer = refused(callers.submit("acme/joe"))
    assert answer.reached is not None
    assert (answer.reached.setting, answer.reached.of_user) == ("requests_per_day", False)
    assert DAY / 6 - MINUTE - 1 <= answer.retry_ms <= DAY / 6
    assert isinstance(Callers(world, requests_per_day=6).submit("acme2/bob"), Submitted), "another key"


@pytest.mark.parametrize("why", ["full", "full_bytes", "no_worker", "too_long", "user_full"])
def test_what_is_refused_for_another_reason_uses_up_nothing_and_is_told_what_is_left(
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


def test_what_a_caller_is_told_is_what_is_left_of_the_tighter_limit(world: World) -> None:
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


# ---- tokens ----------


def test_tokens_are_estimated_by_what_the_user_wrote_before_and_settled_by_what_was_used(
    world: World,
) -> None:
    callers = Callers(world, tokens_per_day=100_000)
    callers.submit(estimated_input=100, max_output=500)
    assert callers.left() == {"tokens_per_day": 99_400}, (
        "nothing is known of the user: what it asks for at most"
    )
    (grant,) = callers.pool.take()
    callers.pool.finish(grant, used=(120, 80))
    assert callers.left() == {"tokens_per_day": 99_800}
    callers.submit(estimated_input=100, max_output=500)
    assert callers.left() == {"tokens_per_day": 99_620}, "the mean of its user"
    callers.submit(estimated_input=100, max_output=30)
    assert callers.left() == {"tokens_per_day": 99_490}, "but not more than it asks for"
    callers.check()


def test_what_was_used_beyond_the_estimate_is_a_debt(world: World) -> None:
    callers = Callers(world, tokens_per_minute=6000)
    callers.submit(estimated_input=900, max_output=100)
    (grant,) = callers.pool.take()
    callers.pool.finish(grant, used=(1000, 11_000))
    answer = refused(callers.submit(estimated_input=1, max_output=1))
    assert answer.reached == LimitHit("tokens_per_minute", 6000, 12_000, 2)
    assert answer.retry_ms == 60_020
    assert answer.rate_limits is not None
    assert answer.rate_limits.tokens == Remaining(6000, 0, 120_000)
    world.advance(answer.retry_ms)
    assert isinstance(callers.submit(estimated_input=1, max_output=1), Submitted)


@pytest.mark.parametrize("limit", [1, 1000, 8_000_000])
def test_a_wrong_count_of_a_worker_shuts_nobody_out_for_longer_than_two_periods(
    world: World, limit: int
) -> None:
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


def test_what_was_not_used_comes_back_as_far_as_time_has_not_brought_it_back(world: World) -> None:
    callers = Callers(world, tokens_per_minute=6000)
    callers.submit(estimated_input=1000, max_output=2000)
    (grant,) = callers.pool.take()
    world.advance(20_000)
    assert callers.left() == {"tokens_per_minute": 5000}, "2,000 of the 3,000 are back"
    callers.submit(estimated_input=1000, max_output=1000)
    assert callers.left() == {"tokens_per_minute": 3000}
    callers.pool.finish(grant, used=(0, 500))
    assert callers.left() == {"tokens_per_minute": 4000}, "1,000 come back, not the 2,500 that it did not use"


def test_a_task_that_is_guessed_to_be_larger_than_the_limit_waits_until_all_of_it_is_there(
    world: World,
) -> None:
    callers = Callers(world, tokens_per_minute=1000)
    callers.submit(estimated_input=99, max_output=1)
    answer = refused(callers.submit(estimated_input=112_500, max_output=1))
    assert (answer.retry_ms, answer.reached) == (6000, LimitHit("tokens_per_minute", 1000, 100, 1000))
    world.advance(6000)
    accepted = callers.submit(estimated_input=112_500, max_output=1, task="image")
    assert isinstance(accepted, Submitted)
    assert callers.left() == {"tokens_per_minute": 0}
    grants = callers.pool.take(want=2)
    (image,) = [grant for grant in grants if grant.task_id == "image"]
    callers.pool.finish(image, used=(300, 200))
    assert callers.left() == {"tokens_per_minute": 500}, "it used much less"


# ---- given back ----------


@pytest.mark.parametrize(
    "how", ["cancelled", "waited too long", "out of time", "its readers left", "worker lost"]
)
def test_what_came_to_nothing_is_given_back_whole_and_once(world: World, how: str) -> None:
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
        for number in range(2):
            (grant,) = pool.take()
            pool.requeue(grant, "lost", begun=True, who=f"w{number % 2}")
    else:
        world.advance(6)
        pool.sweep()
    pool.sweep()
    assert pool.state(task) in (State.FAILED, State.CANCELLED)
    assert callers.left() == full
    callers.check()


@pytest.mark.parametrize("then", ["finish", "requeue", "nothing more"])
def test_a_running_task_that_is_cancelled_is_settled_when_its_worker_has_stopped(
    world: World, then: str
) -> None:
    callers = Callers(world, requests_per_day=5, tokens_per_day=10_000)
    callers.submit(estimated_input=100, max_output=100)
    (grant,) = callers.pool.take()
    callers.pool.cancel(grant.task_id)
    assert callers.left() == {"requests_per_day": 4, "tokens_per_day": 9800}
    if then == "finish":
        for _ in range(2):
            callers.pool.finish(grant, used=(100, 20))
    if then == "requeue":
        callers.pool.requeue(grant)
    callers.pool.pass_time(70_000)
    came_back = 70_000 * 10_000 // DAY
    expected = (9880 if then == "finish" else 9800) + came_back
    assert abs(callers.left()["tokens_per_day"] - expected) <= 1
    callers.check()


# ---- other limits ----------


@pytest.mark.parametrize(("then", "left"), [(1000, 940), (120, 60), (60, 0), (30, 0)])
def test_under_another_limit_as_much_is_used_as_before(world: World, then: int, left: int) -> None:
    callers = Callers(world, requests_per_day=100, requests_per_minute=80)
    assert callers.burst(60) == 60
    callers.limits = pack({"requests_per_day": then})
    assert callers.left() == {"requests_per_day": left}
    assert callers.burst(1100) == left
    if then == 30:
        assert refused(callers.submit()).reached == LimitHit("requests_per_day", 30, 30, 1)
    for task in callers.accepted[:60]:
        callers.pool.cancel(task)
    assert callers.left() == {"requests_per_day": then - left if left else then}
    callers.limits = pack({"requests_per_minute": 80})
    assert callers.left() == {"requests_per_minute": 80}, "one that was taken away begins anew"


# ---- the clock ----------


# ---- waiting ----------


def test_so_many_of_a_key_may_wait_over_all_models_and_users(world: World) -> None:
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


def test_who_need_not_wait_is_not_refused_for_those_who_do(world: World) -> None:
    callers = Callers(world, max_waiting=1)
    callers.submit()
    callers.pool.offer("m2")
    assert isinstance(callers.submit(model="m2", want=1), Submitted)
    assert isinstance(callers.submit(model="m2"), Rejection)
    callers.check()
