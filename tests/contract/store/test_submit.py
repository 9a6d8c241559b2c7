"""Which tasks a pool accepts: full queues, fair room for each user, adaptive admission, and what a submission returns."""

from typing import Any

import pytest
from tests.contract.store.store import Grant, Rejected, Store

LARGE = b"x" * 20_000


def fill(store: Store, user: str, most: int = 10_000, **more: Any) -> int:
    """How many tasks of a user are accepted before one is rejected."""
    for n in range(most):
        if isinstance(store.submit(f"{user}-{n}", user=user, **more), Rejected):
            return n
    return most


def flowing(store: Store, *, number: int = 25) -> Grant:
    """A lane with one slot that has measured its pace: a task a second. Return the one that runs at the end; none waits."""
    store.configure(1)
    for n in range(number):
        store.submit(f"warm{n}", user=f"w{n}")
        if n % 5 == 0:
            store.offer("m")
    (running,) = store.take()
    for _ in range(number - 1):
        store.world.advance(1000)
        (running,) = store.finish(running, want=1).grants
    store.offer("m")
    return running


# ---- replies ----------


def test_a_task_that_can_start_immediately_is_granted_by_its_own_submit(store: Store) -> None:
    answer = store.accept("a", want=1, metadata='{"x":1}', key="acme", stream=True, waiting=True)
    assert (answer.state, answer.place.position) == ("executing", 0)
    (grant,) = answer.grants
    assert (grant.task_id, grant.attempt, grant.start_seq, grant.key) == ("a", 1, 1, "acme")
    assert (grant.stream, grant.waiting, grant.enqueued_ms) == (True, True, store.world.now_ms)
    assert store.task("a").metadata == '{"x":1}'
    assert store.slots() == {"a": 3000}
    assert store.events("a") == ["1.1 start"]


def test_a_repeated_submit_gives_the_same_grants_while_they_hold(store: Store) -> None:
    first = store.accept("a", want=1, nonce="n")
    assert store.submit("a", want=1, nonce="n") == first
    store.requeue(first.grants[0])
    again = store.accept("a", want=1, nonce="n")
    assert (again.grants, again.state) == ([], "queued")


def test_so_does_one_that_was_granted_other_tasks_beside_its_own(store: Store) -> None:
    store.submit("before", user="other")
    first = store.accept("a", want=2, nonce="n")
    assert set(first.granted) == {"before", "a"}
    assert store.accept("a", want=2, nonce="n").grants == first.grants


def test_position_counts_from_one_and_is_zero_while_running(store: Store) -> None:
    store.run("running")
    for n in range(3):
        store.world.advance(1)
        store.submit(f"t{n}")
    assert [store.place(f"t{n}").position for n in range(3)] == [1, 2, 3]
    assert (store.place("running").position, store.state("running")) == (0, "executing")
    assert store.position("nobody") is None


def test_a_submit_after_its_cancel_is_rejected(store: Store) -> None:
    for _ in range(2):
        assert store.cancel("a", tombstone_ms=60_000).outcome == "unknown"
    assert store.reject("a", want=1).reason == "cancelled"
    assert store.position("a") is None


@pytest.mark.parametrize(("offered", "others"), [((), False), (("other",), True)])
def test_a_task_for_a_model_without_workers_is_rejected_and_leaves_nothing(
    bare: Store, offered: tuple[str, ...], others: bool
) -> None:
    bare.configure()
    if offered:
        bare.offer(*offered)
    names = bare.world.names()
    answer = bare.reject("a")
    assert (answer.reason, answer.others_offered, answer.retry_ms) == ("no_worker", others, 60_000)
    assert bare.world.names() == names


def test_a_model_that_has_just_lost_its_worker_is_still_known(store: Store) -> None:
    store.offer("other", "gone")
    store.offer(withdrawn=["gone"])
    for model, known in (("gone", True), ("misspelt", False)):
        assert store.reject("a", model).others_offered is not known


def test_a_full_store_rejects_a_submit_as_a_whole(store: Store) -> None:
    store.set_model(tokens_per_minute=100_000)
    store.finish(store.run("a"))
    store.world.advance(62_000)
    store.offer("m")
    with store.world.full(), pytest.raises(Exception, match="OOM"):
        store.submit("b", want=1, payload=b"x" * 1000)


# ---- full queues ----------


def test_a_queue_is_full_over_all_models_and_counts_waiting_tasks_only(store: Store) -> None:
    store.configure(max_length=2)
    store.offer("m", "m2")
    store.run("running")
    store.submit("a", "m")
    store.submit("b", "m2")
    answer = store.reject("c", "m")
    assert (answer.reason, answer.waiting, answer.limit, answer.retry_ms) == ("full", 2, 2, 500)
    store.accept("d", "m", queue="paid")
    store.cancel("a")
    store.accept("e", "m")


def test_each_user_who_fills_a_queue_leaves_room_for_the_next(store: Store) -> None:
    store.configure(max_length=100)
    assert [fill(store, f"u{n}") for n in range(6)] == [100, 50, 25, 13, 6, 3]
    store.accept("one more", user="late")


def test_flooding_users_share_the_queue_and_a_light_user_is_never_rejected(store: Store) -> None:
    """Ten tasks a second leave; one user sends twenty, the other two."""
    store.configure(10, "requests", max_length=100)
    rejected = {"flooder": 0, "light": 0}
    number, running = 0, list[Grant]()
    for _ in range(30):
        store.offer("m")
        for user in ["flooder"] * 20 + ["light"] * 2:
            number += 1
            rejected[user] += isinstance(store.submit(f"t{number}", user=user), Rejected)
        for grant in running:
            store.finish(grant)
        running = store.take(want=10)
        store.renew(*running)
        store.pass_time(1000)
    assert rejected["light"] == 0
    assert rejected["flooder"] > 200


def test_the_time_to_retry_grows_with_the_tasks_that_a_user_has_too_many(store: Store) -> None:
    store.configure(max_length=10)
    fill(store, "mallory")
    first = store.reject("x", user="mallory")
    assert (first.reason, first.waiting, first.limit) == ("full", 10, 10)
    fill(store, "alice", 3)
    assert store.reject("x", user="mallory").retry_ms == 4 * first.retry_ms > 0, "three more have to leave"


def test_one_user_takes_half_of_the_room_for_bodies_and_the_next_finds_some(store: Store) -> None:
    store.world.bound(max_queued_bytes=1_000_000)
    accepted = [fill(store, f"u{n}", payload=LARGE) for n in range(5)]
    assert accepted == [25, 12, 6, 3, 2]
    store.accept("small", user="v")
    store.world.check()
    for task in list(store.world.accepted):
        store.cancel(task)
    assert store.stored_bytes() == 0
    assert fill(store, "again", payload=LARGE) == 25


def test_one_body_of_each_user_fits_while_there_is_room_at_all(store: Store) -> None:
    store.world.bound(max_queued_bytes=100_000)
    store.accept("a", user="u", payload=b"x" * 60_000)
    store.accept("b", user="v", payload=b"x" * 40_000)
    assert store.reject("c", user="w", payload=LARGE).reason == "full_bytes"


# ---- the wait to expect ----------


def test_an_adaptive_queue_takes_what_can_leave_within_its_longest_wait(store: Store) -> None:
    flowing(store)
    store.set_queue("free", admission="adaptive", max_wait_ms=10_000)
    answers = [store.submit(f"t{n}", user=f"u{n}") for n in range(30)]
    rejected = [answer for answer in answers if isinstance(answer, Rejected)]
    assert 8 <= 30 - len(rejected) <= 11, "ten seconds at one a second"
    for one in rejected:
        assert one.reason == "too_long"
        assert one.waiting > one.limit == 10_000
        assert one.retry_ms > 0


def test_a_task_with_a_short_wait_is_rejected_and_a_patient_one_is_not(store: Store) -> None:
    flowing(store)
    store.set_queue("free", admission="adaptive", max_wait_ms=10_000)
    for n in range(5):
        store.accept(f"t{n}", user=f"u{n}")
    for limit in ({"wait_ms": 2000}, {"timeout_ms": 3000}):
        answer = store.reject("hasty", user="h", **limit)
        assert (answer.reason, answer.limit) == ("too_long", *limit.values())
    store.accept("patient", user="p")


def test_while_no_pace_is_known_the_fixed_length_holds(store: Store) -> None:
    store.configure(1)
    store.set_queue("free", admission="adaptive", max_wait_ms=1, max_length=3)
    assert fill(store, "u") == 3
    assert store.reject("x").reason == "full"


def test_time_without_waiting_tasks_is_no_stall(store: Store) -> None:
    """After a quiet night the first task that has to wait is accepted."""
    grant = flowing(store)
    store.set_queue("free", admission="adaptive", max_wait_ms=10_000)
    store.finish(grant)
    store.world.advance(7_200_000)
    store.offer("m")
    store.run("busy", queue="paid", user="p")
    answer = store.accept("first")
    assert 0 < answer.place.wait_ms < 5000
    assert answer.place == store.place("first")


def test_a_task_that_would_certainly_expire_is_rejected_in_every_queue(store: Store) -> None:
    flowing(store)
    for n in range(30):
        store.submit(f"t{n}", user="u")
    late = store.reject("late", user="u", timeout_ms=8000)
    assert (late.reason, late.limit) == ("too_long", 8000)
    assert 0 < late.retry_ms < late.waiting
    assert late.waiting > 25_000
    store.accept("patient", user="u", timeout_ms=60_000)
    store.accept("perhaps", user="u", timeout_ms=20_000)
    store.accept("other", user="v", timeout_ms=8000)


def test_the_wait_is_the_lanes_measured_pace_and_its_bounds_embrace_it(store: Store) -> None:
    flowing(store, number=40)
    for n in range(20):
        store.submit(f"t{n}", user=f"u{n}")
    for n in range(20):
        place = store.place(f"t{n}")
        assert place.position == n + 1
        assert abs(place.wait_ms - 1000 * (n + 1)) <= 60 * (n + 1)
        assert 0 <= place.low_ms <= place.wait_ms <= place.high_ms
