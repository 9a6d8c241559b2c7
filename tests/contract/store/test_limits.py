"""Limits of an API key and of its users: over time, of waiting and of running tasks, and uses of signed tokens."""

import itertools
from collections import Counter
from typing import Any

import pytest
from tests.contract.store.store import Accepted, Answer, Left, Rejected, Store, uses

pytestmark = pytest.mark.feature("limits")

DAY = 86_400_000
FAR_MS = 1000 * DAY


class Clients:
    """Clients of one key with limits, and of its users."""

    def __init__(self, store: Store, *, users: dict[str, int] | None = None, **limits: int) -> None:
        self.store = store
        self.limits: dict[str, Any] = {"key_limits": limits, "user_limits": users or {}}
        self.numbers = itertools.count(1)
        store.offer("m", hold_ms=FAR_MS)

    def submit(self, user: str = "acme/bob", model: str = "m", **more: Any) -> Answer:
        return self.store.submit(f"t{next(self.numbers)}", model, user=user, **self.limits, **more)

    def accept(self, user: str = "acme/bob", **more: Any) -> Accepted:
        answer = self.submit(user, **more)
        assert isinstance(answer, Accepted), answer
        return answer

    def reject(self, user: str = "acme/bob", **more: Any) -> Rejected:
        answer = self.submit(user, **more)
        assert isinstance(answer, Rejected), answer
        return answer

    def burst(self, most: int = 9, **more: Any) -> int:
        """How many of so many tasks are accepted."""
        return sum(isinstance(self.submit(**more), Accepted) for _ in range(most))

    def left(self, user: str = "acme/bob") -> dict[str, int]:
        return self.store.left(user, **self.limits)


def test_the_reported_remainder_is_that_of_the_tighter_limit(store: Store) -> None:
    clients = Clients(store, users={"requests_per_minute": 10}, requests_per_minute=60, requests_per_day=3)
    answer = clients.accept()
    assert (answer.requests, answer.tokens) == (Left(3, 2, DAY // 3), None)
    store.world.advance(DAY)
    assert clients.burst(4, user="acme/eve") == 3
    rejected = clients.reject("acme/eve")
    assert (rejected.reason, rejected.requests) == ("rate_limited", Left(3, 0, DAY))
    assert rejected.reached["setting"] == "requests_per_day"
    assert rejected.retry_ms == DAY // 3


@pytest.mark.parametrize("limit", [1, 1000, 8_000_000])
def test_a_wrong_usage_report_blocks_a_user_for_two_periods_at_most(store: Store, limit: int) -> None:
    clients = Clients(store, users={"tokens_per_minute": limit}, tokens_per_day=limit)
    for _ in range(3):
        store.world.advance(2 * DAY)
        store.offer("m", hold_ms=FAR_MS)
        (grant,) = clients.accept(want=1, estimated_input=1, max_output=1).grants
        store.finish(grant, used=(4_194_304, 4_194_304))
        answer = clients.reject(estimated_input=limit)
        assert answer.tokens is not None
        assert max(answer.retry_ms, answer.tokens.reset_ms) <= 2 * DAY


def test_unused_tokens_come_back_as_far_as_time_has_not_brought_them_back(store: Store) -> None:
    clients = Clients(store, tokens_per_minute=6000)
    clients.submit(estimated_input=1000, max_output=2000)
    (grant,) = store.take()
    store.world.advance(20_000)
    assert clients.left() == {"tokens_per_minute": 5000}, "2,000 of the 3,000 are back"
    clients.submit(estimated_input=1000, max_output=1000)
    assert clients.left() == {"tokens_per_minute": 3000}
    store.finish(grant, used=(0, 500))
    assert clients.left() == {"tokens_per_minute": 4000}, "1,000 come back, not the 2,500 that it did not use"


@pytest.mark.parametrize("how", ["cancelled", "wait_ms", "timeout_ms", "linger_ms", "worker lost"])
def test_a_task_that_came_to_nothing_is_refunded_whole_and_once(store: Store, how: str) -> None:
    clients = Clients(store, users={"requests_per_minute": 5}, requests_per_day=5, tokens_per_day=10_000)
    full = clients.left()
    clients.accept(estimated_input=100, **({how: 5} if how.endswith("_ms") else {}))
    assert clients.left() != full
    if how == "cancelled":
        for _ in range(2):
            store.cancel("t1")
    elif how == "worker lost":
        for _ in range(3):
            store.requeue(store.take()[0], "lost", begun=True)
    store.world.advance(6)
    for _ in range(2):
        store.sweep()
    assert store.state("t1") in ("failed", "cancelled")
    assert clients.left() == full


# ---- waiting tasks ----------


def test_a_limit_of_waiting_tasks_counts_over_all_models_and_users_of_a_key(store: Store) -> None:
    clients = Clients(store, max_waiting=3)
    store.offer("m2")
    assert clients.burst(2) == 2
    clients.accept("acme/eve", model="m2", queue="paid")
    answer = clients.reject("acme/joe")
    assert answer.reached == {"setting": "max_waiting", "limit": 3, "used": 3, "asked": 1, "of_user": False}
    assert answer.retry_ms > 0
    (grant,) = store.take()
    assert clients.burst() == 1
    assert store.requeue(grant).outcome == "queued", "an accepted task is not rejected later"
    assert clients.left() == {"max_waiting": 0}
    store.world.check()
    for task in ("t1", "t2"):
        store.cancel(task)
    assert clients.burst() == 1


def test_a_task_that_need_not_wait_is_not_rejected_for_waiting_ones(store: Store) -> None:
    clients = Clients(store, max_waiting=1)
    clients.accept()
    store.offer("m2")
    clients.accept(model="m2", want=1)
    clients.reject(model="m2")


# ---- running tasks ----------


def of(running: int = 0, user_running: int = 0) -> dict[str, dict[str, int]]:
    """Limits of a key and of its users."""
    return {"key_limits": {"max_running": running}, "user_limits": {"max_running": user_running}}


@pytest.mark.parametrize(
    ("running", "user_running", "expected"), [(3, 0, 3), (0, 1, 3), (2, 1, 2), (9, 2, 6)]
)
def test_no_more_tasks_run_over_all_models_users_and_replicas(
    store: Store, running: int, user_running: int, expected: int
) -> None:
    store.offer("m", "m2", hold_ms=FAR_MS)
    other = store.replica("r2")
    for number in range(24):
        user = f"acme/{'abc'[number % 3]}"
        store.submit(f"t{number:02}", ("m", "m2")[number % 2], user=user, **of(running, user_running))
    store.submit("else", user="else")
    grants = store.take("m", "m2", want=2) + other.take("m", "m2", want=64)
    assert len([grant for grant in grants if grant.user != "else"]) == expected
    assert "else" in {grant.task_id for grant in grants}, "a user without a limit passes"
    ended = 0
    while grants:
        store.world.advance(1)
        store.renew(*grants)
        replica = (store, other)[ended % 2]
        grants = grants[1:] + replica.finish(grants[0], want=1, models=["m", "m2"]).grants
        ended += 1
        users = Counter(grant.user for grant in grants if grant.user != "else")
        assert sum(users.values()) <= (running or 99)
        assert not user_running or max(users.values(), default=0) <= user_running
    assert ended == 25, "and each has its turn"


def test_a_submit_with_a_free_slot_waits_at_the_limit(store: Store) -> None:
    first, second = (store.accept(task, want=1, user="acme", **of(1)) for task in "ab")
    assert (first.granted, second.granted) == (["a"], [])
    assert (second.state, second.place.position) == ("queued", 1)
    assert store.finish(first.grants[0], want=1).granted == ["b"]


def test_parked_users_of_a_key_have_their_turns_by_lane_and_user(store: Store) -> None:
    store.configure(0, "requests", max_length=5000)
    store.offer("m", hold_ms=FAR_MS)
    for number in range(60):
        for user in "ab":
            store.submit(f"{user}{number:02}", user=f"acme/{user}", queue="free", **of(1))
        store.submit(f"p{number:02}", user="acme/p", queue="paid", **of(1))
    (running,) = store.take(want=9)
    turns = Counter[str]()
    for _ in range(60):
        turns[running.user[-1]] += 1
        store.world.advance(10)
        (running,) = store.finish(running, want=1).grants
    assert abs(turns["p"] - 48) <= 2, "by the weights of the queues, 4 to 1"
    assert abs(turns["a"] - turns["b"]) <= 1


def test_a_user_parked_before_a_change_of_the_unit_of_cost_has_turns_after_it(store: Store) -> None:
    store.offer("m", hold_ms=FAR_MS)
    for number in range(2):
        store.submit(f"a{number}", user="acme/a", estimated_input=3000, **of(1))
    running = store.take(want=9)
    for number in range(9):
        store.submit(f"b{number}", user="acme/b", **of(1))
    assert [grant.task_id for grant in running + store.take(want=9)] == ["a0"]
    store.apply(models={"m": {"cost": "requests"}})
    ended = []
    while running:
        ended.append(running[0].user)
        running = store.finish(running[0], want=1).grants
    assert "acme/a" in ended[1:4]


def test_many_users_of_a_key_at_its_limit_do_not_stop_others(store: Store) -> None:
    store.configure(max_length=5000)
    store.offer("m", hold_ms=FAR_MS)
    for number in range(1500):
        store.submit(f"a{number}", user=f"acme/u{number:04}", **of(2))
    first = store.take(want=2)
    store.submit("last", user="z")
    assert store.taken() + store.taken() == ["last"], "1,000 are looked at in a step"
    for grant in first:
        store.finish(grant)
        assert len(store.take(want=9)) == 1


def test_tasks_from_before_a_limit_do_not_count_and_are_not_lost(store: Store) -> None:
    for task, limits in (("a", {}), ("b", of(1)), ("c", {}), ("d", of(1))):
        store.submit(task, user="acme", **limits)  # type: ignore[arg-type]
    grants = store.take(want=9)
    assert [grant.task_id for grant in grants] == ["a", "b", "c"]
    store.finish(grants[1])
    assert store.taken(want=9) == ["d"]


# ---- uses of signed tokens ----------


@pytest.mark.feature("signed_tokens")
def test_a_number_of_tasks_is_accepted_over_all_replicas_and_another_name_has_its_own(store: Store) -> None:
    replicas = [store, store.replica("r2")]
    answers = [replicas[n % 2].submit(f"t{n}", uses=uses("site/a b", 3)) for n in range(10)]
    assert [isinstance(answer, Accepted) for answer in answers] == [True] * 3 + [False] * 7
    assert {(a.reason, a.limit) for a in answers if isinstance(a, Rejected)} == {("used_up", 3)}
    store.accept("other", uses=uses("site/b", 3))
    assert store.reject("more", uses=uses("site/a b", 2)).limit == 2, "a token of fewer uses"


@pytest.mark.feature("signed_tokens")
def test_a_submit_that_is_repeated_is_one_use(store: Store) -> None:
    for _ in range(3):
        store.accept("t", nonce="n", uses=uses("site/a", 1))
    assert store.reject("other", uses=uses("site/a", 1)).reason == "used_up"


@pytest.mark.feature("signed_tokens")
def test_a_rejection_counts_as_no_use_and_a_rejected_use_takes_nothing_of_a_limit(store: Store) -> None:
    store.configure(max_length=1)
    store.accept("first")
    assert store.reject("t", uses=uses("k/a", 1)).reason == "full"
    store.configure(max_length=9)
    limits: dict[str, Any] = {"user": "k/a", "key_limits": {"requests_per_day": 2}}
    store.accept("second", **limits, uses=uses("k/a", 1))
    for number in range(3):
        assert store.reject(f"u{number}", **limits, uses=uses("k/a", 1)).reason == "used_up"
    store.accept("third", **limits)


@pytest.mark.feature("signed_tokens")
def test_uses_are_remembered_until_the_last_token_of_their_name_ends(store: Store) -> None:
    for ttl_ms in (60_000, 90_000, 1000):
        store.accept(f"t{ttl_ms}", uses=uses("site/a", 9, ttl_ms))
    assert 60_000 < store.world.check().ttl("uses", "site/a") <= 90_000
