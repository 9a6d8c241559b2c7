"""What `submit`, `take`, `position`, `offer` and `configure` answer, and whom they wake."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.audit import audit
from tests.support.direct import Subscription, World, drive
from tests.support.pool import Pool

from fairlane.queues.keys import ANY_MODEL
from fairlane.queues.scheduler import Limits
from fairlane.queues.tasks import Rejection, State, Submitted


def ids(answer: object) -> list[str]:
    assert isinstance(answer, Submitted)
    return [grant.task_id for grant in answer.grants]


def test_a_task_that_can_start_immediately_is_granted_by_its_own_submit(world: World) -> None:
    pool = Pool(world)
    answer = pool.submit("a", want=1, metadata=b'{"x":1}', key="acme", stream=True, waiting=True)
    assert isinstance(answer, Submitted)
    assert (answer.state, answer.place.position) == (State.EXECUTING, 0)
    (grant,) = answer.grants
    assert (grant.task_id, grant.attempt, grant.start_seq, grant.stream, grant.key) == (
        "a",
        1,
        1,
        True,
        "acme",
    )
    assert (grant.waiting, grant.enqueued_ms) == (True, world.now_ms)
    assert pool.record("a")["metadata"] == '{"x":1}'
    assert pool.slots() == {"a": Limits().grant_ms}
    assert pool.events("a") == [("1-1", "start")]
    audit(world, ["a"])


def test_a_repeated_submit_gives_the_same_grants_while_they_hold(world: World) -> None:
    pool = Pool(world)
    first = pool.submit("a", want=1, nonce="n")
    assert pool.submit("a", want=1, nonce="n") == first
    pool.requeue(first.grants[0])  # type: ignore[union-attr]
    again = pool.submit("a", want=1, nonce="n")
    assert (ids(again), again.state) == ([], State.QUEUED)  # type: ignore[union-attr]


@pytest.mark.parametrize(("offered", "others"), [((), False), (("other",), True)])
def test_a_task_for_a_model_without_workers_is_rejected(
    world: World, offered: tuple[str, ...], others: bool
) -> None:
    pool = Pool(world, set_up=False)
    pool.configure()
    if offered:
        pool.offer(*offered)
    names = world.call("KEYS", "*")
    assert pool.submit("a") == Rejection("no_worker", others_offered=others, retry_ms=60_000)
    assert sorted(world.call("KEYS", "*")) == sorted(names)


def test_a_queue_is_full_over_all_models_and_counts_waiting_tasks_only(world: World) -> None:
    pool = Pool(world)
    pool.configure(max_length=2)
    pool.offer("m", "m2")
    pool.run("running")
    pool.submit("a", "m")
    pool.submit("b", "m2")
    assert pool.submit("c", "m") == Rejection("full", waiting=2, limit=2, retry_ms=500)
    assert isinstance(pool.submit("d", "m", queue="paid"), Submitted), "the other queue is not full"
    pool.cancel("a")
    assert isinstance(pool.submit("e", "m"), Submitted)
    audit(world, ["running", "a", "b", "d", "e"])


def test_a_submit_after_its_cancel_is_rejected(world: World) -> None:
    pool = Pool(world)
    assert pool.cancel("a", tombstone_ms=60_000).outcome == "unknown"
    assert pool.cancel("a", tombstone_ms=60_000).outcome == "unknown"
    assert pool.submit("a", want=1) == Rejection("cancelled")
    assert drive(pool.scheduler.position("a")) is None
    audit(world, [])


def test_priority_is_bounded_to_five_steps_of_two_seconds(world: World) -> None:
    pool = Pool(world)
    pool.submit("first")
    world.advance(9_999)
    pool.submit("urgent", priority=1000)
    assert [grant.task_id for grant in pool.take(want=2)] == ["urgent", "first"]
    pool.submit("second")
    world.advance(10_001)
    pool.offer("m")
    pool.submit("late", priority=1000)
    pool.submit("negative", priority=-1000)
    assert [grant.task_id for grant in pool.take(want=3)] == ["second", "late", "negative"]


def test_a_repeated_take_gives_the_same_grants_while_they_hold(world: World) -> None:
    pool = Pool(world)
    for name in "abc":
        pool.submit(name)
    first = pool.take(want=2, nonce="n")
    assert pool.take(want=2, nonce="n") == first
    pool.finish(first[0])
    assert pool.take(want=2, nonce="n") == first[1:]


def test_a_worker_of_several_models_serves_the_least_recently_served_first(world: World) -> None:
    pool = Pool(world)
    pool.offer("m", "m2", "m3")
    for n in range(3):
        pool.submit(f"a{n}", "m")
        pool.submit(f"b{n}", "m2")
    pool.submit("c", "m3")
    order: list[str] = []
    for _ in range(7):
        world.advance(1)
        order.append(pool.take("m", "m2")[0].model if len(order) < 4 else pool.take(ANY_MODEL)[0].model)
    assert order[:4] in (["m", "m2"] * 2, ["m2", "m"] * 2)
    assert order[4] == "m3"


@pytest.mark.parametrize("limit", ["timeout_ms", "wait_ms"])
def test_an_expired_task_is_not_granted(world: World, limit: str) -> None:
    pool = Pool(world)
    pool.sweep()
    limits: dict[str, Any] = {limit: 1000}
    pool.submit("late", **limits)
    pool.submit("good")
    world.advance(1000)
    assert [grant.task_id for grant in pool.take(want=2)] == ["good"]
    audit(world, ["late", "good"])
    pool.sweep()
    assert pool.state("late") == "failed"
    audit(world, ["late", "good"])


def test_a_task_without_a_record_does_not_block_its_lane(world: World) -> None:
    pool = Pool(world)
    pool.submit("destroyed")
    pool.submit("good")
    world.call("DEL", world.keys("task", id="destroyed"))
    assert [grant.task_id for grant in pool.take(want=1)] == ["good"]
    pool.sweep()


def test_position_counts_from_one_and_is_zero_while_running(world: World) -> None:
    pool = Pool(world)
    pool.run("running")
    for n in range(3):
        world.advance(1)
        pool.submit(f"t{n}")
    places = [drive(pool.scheduler.position(f"t{n}")).place.position for n in range(3)]
    assert places == [1, 2, 3]
    assert drive(pool.scheduler.position("running")).place.position == 0
    assert drive(pool.scheduler.position("running")).state is State.EXECUTING
    assert drive(pool.scheduler.position("nobody")) is None


# ---- waking ----------


def test_a_task_that_cannot_start_here_wakes_one_idle_replica(
    world: World, ears: Callable[[Pool], Subscription]
) -> None:
    here, there, third = Pool(world), Pool(world, "r2", set_up=False), Pool(world, "r3", set_up=False)
    there_hears, third_hears = ears(there), ears(third)
    for pool in (there, third):
        pool.offer("m")
        assert pool.take(want=2) == []
        world.advance(1)
    here.submit("a")
    assert (there_hears.drain(), third_hears.drain()) == ([b"wake\nm"], [])
    assert there.take("m", want=0) == [], "it has no slot after all and hands the wake-up on"
    assert (there_hears.drain(), third_hears.drain()) == ([], [b"wake\nm"])
    assert [grant.task_id for grant in third.take(want=2)] == ["a"]
    here.submit("b")
    assert third_hears.drain() == [b"wake\nm"], "it was left with a free slot"


def test_a_filled_take_wakes_the_next_for_what_is_left(
    world: World, ears: Callable[[Pool], Subscription]
) -> None:
    here, other = Pool(world), Pool(world, "r2", set_up=False)
    hears = ears(other)
    here.offer("m", "m2")
    for name in "abc":
        here.submit(name)
    here.submit("d", "m2")
    assert other.take("m3") == []
    other.take("m2", want=2)
    hears.drain()
    here.submit("e", "m2")
    assert hears.drain() == [b"wake\nm2"]


@pytest.mark.parametrize(
    "how", ["finish", "late finish", "requeue", "raised limit", "lease over", "stop over"]
)
def test_whatever_frees_a_slot_wakes_an_idle_replica(
    world: World, ears: Callable[[Pool], Subscription], how: str
) -> None:
    here, other = Pool(world, limit=1), Pool(world, "r2", set_up=False)
    hears = ears(other)
    grant = here.run("running")
    here.submit("next", user="v")
    here.sweep()
    other.offer("m")
    assert other.take("m") == []
    if "late" in how or "stop" in how:
        here.cancel("running")
    assert hears.drain() == []
    if "finish" in how:
        here.finish(grant)
    elif how == "requeue":
        here.requeue(grant)
    elif how == "raised limit":
        here.configure(2)
    else:
        for _ in range(70 if how == "stop over" else 3):
            world.call("HSET", world.keys("pool"), "woke", world.now_ms + 1000)
            here.pass_time(1000)
    assert b"wake\nm" in hears.drain()


def test_the_sweep_repeats_wake_ups_to_all_replicas_once_a_second(
    world: World, ears: Callable[[Pool], Subscription]
) -> None:
    here, other, wild = Pool(world), Pool(world, "r2", set_up=False), Pool(world, "r3", set_up=False)
    hears, wild_hears = ears(other), ears(wild)
    other.offer("m")
    wild.offer(ANY_MODEL)
    here.submit("a")
    here.sweep()
    assert (hears.drain(), wild_hears.drain()) == ([b"wake_all\nm"], [b"wake_all\nm"])
    world.advance(500)
    here.sweep()
    assert hears.drain() == []
    world.advance(500)
    here.sweep()
    assert hears.drain() == [b"wake_all\nm"]


# ---- presence ----------


def test_offers_end_by_themselves_and_a_withdrawal_may_have_a_grace(world: World) -> None:
    pool = Pool(world)
    world.advance(14_999)
    assert isinstance(pool.submit("a"), Submitted)
    world.advance(1)
    world.advance(7000)
    assert pool.submit("b") == Rejection("no_worker", retry_ms=7000), "as long again as it has been away"
    pool.offer("m")
    pool.offer(withdrawn=["m"], grace_ms=100_000)
    world.advance(99_999)
    assert isinstance(pool.submit("c"), Submitted)
    world.advance(1)
    assert pool.submit("d") == Rejection("no_worker", retry_ms=1000)


def test_a_dead_replica_leaves_nothing(world: World) -> None:
    pool, dead = Pool(world), Pool(world, "dead", set_up=False)
    dead.offer("m")
    dead.take("m")
    pool.sweep()
    for _ in range(80):
        pool.offer("m")
        pool.pass_time(1000)
    assert world.call("ZRANGE", world.keys("replicas"), 0, -1) == [b"r1"]
    assert not world.call("EXISTS", world.keys("idle", model="m"))
    world.advance(10 * 60_000)
    pool.offer("m")
    assert world.call("ZRANGE", world.keys("offers", model="m"), 0, -1) == [b"r1"]


def test_configuration_that_is_left_out_no_longer_holds(world: World) -> None:
    pool = Pool(world, limit=1)
    pool.submit("a")
    pool.submit("b")
    assert len(pool.take(want=2)) == 1
    drive(pool.scheduler.configure({}, {}))
    assert len(pool.take(want=2)) == 1


def test_a_model_idle_for_an_hour_is_forgotten_with_its_tags(world: World) -> None:
    pool = Pool(world, set_up=False)
    pool.offer("m")
    pool.finish(pool.run("a"))
    pool.pass_time(3_602_000, step_ms=4_000)
    left = {name.decode().removeprefix(world.prefix) for name in world.call("KEYS", "*")}
    assert not {name for name in left if name.startswith(("model:", "debts:", "lifts:"))}
    assert not world.call("EXISTS", world.keys("models"))
