"""What `cancel` answers, and what `sweep` ends, takes back and leaves alone."""

from typing import Any

import pytest
from tests.support.audit import audit
from tests.support.direct import World, drive
from tests.support.pool import Pool
from tests.support.servers import Server

from fairlane.queues.scheduler import Limits
from fairlane.queues.tasks import Ended, Submitted

GRACE = Limits().stop_grace_ms


# ---- cancel ----------


def test_a_queued_task_is_cancelled_immediately(world: World) -> None:
    pool = Pool(world)
    pool.submit("a")
    answer = pool.cancel("a")
    assert (answer.outcome, answer.state, answer.event_id, answer.kind) == (
        "ended",
        "cancelled",
        pool.last_id("a"),
        "cancelled",
    )
    assert pool.cancel("a") == Ended("over", "cancelled")
    assert pool.take() == []
    assert pool.cancel("nobody") == Ended("unknown", "")
    audit(world, "a")


def test_a_running_task_ends_immediately_and_its_replica_is_notified(
    world: World, any_server: Server
) -> None:
    owner, other = Pool(world, limit=1), Pool(world, "r2", set_up=False)
    ears = owner.ears(any_server.socket_path)
    try:
        grant = owner.run("a", follow=True)
        owner.append(grant, 2)
        end = other.cancel("a").event_id
        assert end == owner.last_id("a")
        told = ears.drain()
        assert told[0].startswith(f"event\na\n{end}\ncancelled\n".encode())
        assert told[1] == f"stop\na\n{grant.epoch}\nclient".encode()
    finally:
        ears.close()
    assert owner.slots() == {"a": GRACE}, "the model is still busy"
    assert owner.append(grant, 3) == ("stale", 0)
    assert world.call("PTTL", world.keys("task", id="a")) == -1
    assert owner.finish(grant).outcome == "late"
    assert owner.slots() == {}
    assert world.call("PTTL", world.keys("task", id="a")) > 0
    audit(world, "a")


# ---- sweep: time ----------


@pytest.mark.parametrize(
    ("limits", "state", "code"),
    [
        ({"timeout_ms": 3000}, "failed", "TOTAL_TIMEOUT"),
        ({"wait_ms": 3000}, "failed", "QUEUE_TIMEOUT"),
        ({"linger_ms": 3000}, "cancelled", "CANCELLED"),
        ({"timeout_ms": 3000, "wait_ms": 3000}, "failed", "TOTAL_TIMEOUT"),
    ],
)
def test_a_waiting_task_ends_at_its_limit_to_the_millisecond(
    world: World, limits: dict[str, Any], state: str, code: str
) -> None:
    pool = Pool(world)
    pool.submit("a", **limits)
    assert pool.sweep() == (1000, 0)
    pool.pass_time(2000)
    world.advance(999)
    assert pool.sweep() == (1, 0), "the next sweep is asked for at that instant"
    world.advance(1)
    assert pool.sweep()[1] == 1
    assert (pool.state("a"), pool.code("a")) == (state, code)
    audit(world, "a")


@pytest.mark.parametrize("limits", [{"timeout_ms": 2000}, {"run_ms": 2000}])
def test_a_running_task_ends_at_its_deadline_and_its_worker_is_stopped(
    world: World, any_server: Server, limits: dict[str, Any]
) -> None:
    pool = Pool(world)
    pool.sweep()
    ears = pool.ears(any_server.socket_path)
    try:
        grant = pool.run("a", **limits)
        pool.renew(grant)
        pool.pass_time(1999)
        assert pool.state("a") == "executing"
        pool.pass_time(1)
        assert (pool.state("a"), pool.code("a")) == ("failed", "TOTAL_TIMEOUT")
        assert ears.drain() == [f"stop\na\n{grant.epoch}\ntimeout".encode()]
        assert pool.slots() == {"a": GRACE}
    finally:
        ears.close()


# ---- sweep: leases ----------


def test_an_unknown_grant_expires_after_three_seconds_and_costs_no_try(world: World) -> None:
    pool = Pool(world, limit=1)
    pool.sweep()
    pool.run("a")
    pool.pass_time(2999)
    assert pool.state("a") == "executing"
    pool.pass_time(1)
    assert pool.state("a") == "queued"
    (grant,) = pool.take()
    assert (grant.attempt, grant.tries) == (2, 0)
    audit(world, "a")


def test_a_lease_that_is_not_renewed_ends_after_fifteen_seconds_and_costs_a_try(world: World) -> None:
    pool = Pool(world, limit=1)
    pool.sweep()
    grant = pool.run("a")
    pool.renew(grant)
    pool.pass_time(14_999)
    assert pool.state("a") == "executing"
    pool.pass_time(1)
    assert pool.state("a") == "queued"
    pool.offer("m")
    assert pool.take()[0].tries == 1


def test_after_output_a_lost_lease_ends_the_task(world: World) -> None:
    pool = Pool(world)
    pool.sweep()
    grant = pool.run("a")
    pool.append(grant, 2)
    pool.pass_time(3000)
    assert (pool.state("a"), pool.code("a")) == ("failed", "WORKER_LOST")
    audit(world, "a")


def test_many_tasks_are_swept_a_hundred_at_a_time(world: World) -> None:
    pool = Pool(world)
    pool.sweep()
    for n in range(250):
        pool.submit(f"t{n}", timeout_ms=1000)
    world.advance(1000)
    assert [pool.sweep() for _ in range(4)] == [(0, 100), (0, 100), (1000, 50), (1000, 0)]
    audit(world, [f"t{n}" for n in range(250)])


def test_a_task_that_its_worker_has_still_is_forgotten_when_it_is_let_go(world: World) -> None:
    pool = Pool(world)
    stopping = pool.run("stopping", user="u")
    pool.cancel("stopping")
    for _ in range(2):
        assert drive(pool.scheduler.erase_user("u", world.now_ms)) == (0, 1)
    assert pool.finish(stopping).outcome == "late"
    assert drive(pool.scheduler.erase_user("u", world.now_ms)) == (1, 0)
    for key in ("task", "log"):
        assert not world.call("KEYS", world.keys(key, id="*"))
    assert drive(pool.scheduler.erase_user("u", world.now_ms)) == (0, 0)


# ---- sweep: after Redis was down ----------


def test_time_that_redis_was_down_is_not_lease_time(world: World) -> None:
    pool = Pool(world)
    pool.sweep()
    running = pool.run("running")
    pool.renew(running)
    pool.run("unknown")
    stopping = pool.run("stopping")
    pool.cancel("stopping")
    pool.submit("read", linger_ms=4000, user="v")
    pool.submit("late", timeout_ms=10_000, user="v")
    world.advance(120_000)
    pool.sweep()
    states = [pool.state(n) for n in ("running", "unknown", "read", "late")]
    assert states == ["executing", "executing", "queued", "failed"], (
        "a deadline is the caller's: it does not move"
    )
    assert pool.slots() == {"unknown": 2500, "running": 14_500, "stopping": GRACE - 500}
    assert isinstance(pool.submit("new"), Submitted), "the offers of before hold on"
    assert pool.renew(running) == [1]
    pool.pass_time(3000)
    assert pool.state("unknown") == "queued"
    assert pool.finish(stopping).outcome == "late"
    audit(world, ["running", "unknown", "stopping", "read", "late", "new"])


def test_a_long_stop_survives_in_its_record_as_long_as_its_slot(world: World) -> None:
    """The record of a task that holds a slot never expires, or the slot could not be freed."""
    pool = Pool(world, limit=1)
    pool.sweep()
    pool.run("a", keep_ms=1000)
    pool.cancel("a")
    assert world.call("PTTL", world.keys("task", id="a")) == -1
    pool.pass_time(GRACE)
    assert pool.slots() == {}
    assert 0 < world.call("PTTL", world.keys("task", id="a")) <= 1000
