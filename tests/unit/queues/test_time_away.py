"""Redis was away for some seconds, or its clock moved: nobody loses what he could not renew, and nothing dead lives for ever."""

import pytest
from tests.support.audit import audit
from tests.support.direct import World
from tests.support.pool import Pool

from fairlane.queues.tasks import Rejection, Submitted

AWAY_MS = (1600, 3000, 4000, 5000, 9000, 60_000)


@pytest.mark.parametrize("away_ms", AWAY_MS)
def test_a_fresh_grant_outlives_the_time_in_which_redis_was_away(world: World, away_ms: int) -> None:
    """Another replica sweeps first; the owner comes back a second and a half later, and renews."""
    pool, other = Pool(world), Pool(world, "r2", set_up=False)
    pool.sweep()
    quiet, writing = pool.run("quiet"), pool.run("writing")
    pool.append(writing, 2)
    world.advance(900)  # their renewal was about to come
    other.sweep()
    world.advance(away_ms)
    other.sweep()
    for ms in (700, 700):
        world.advance(ms)
        other.sweep()
    assert pool.renew(quiet, writing) == [1, 1]
    assert (pool.state("quiet"), pool.state("writing")) == ("executing", "executing")
    audit(world, ["quiet", "writing"])


@pytest.mark.parametrize("away_ms", AWAY_MS)
def test_a_reader_that_could_not_renew_its_interest_has_not_left(world: World, away_ms: int) -> None:
    pool = Pool(world)
    pool.sweep()
    running = pool.run("runs", linger_ms=3000)
    pool.submit("waits", linger_ms=3000)
    pool.renew(running, read=["waits", "runs"])
    world.advance(900)
    pool.sweep()
    world.advance(away_ms)
    pool.sweep()
    for ms in (700, 700):
        world.advance(ms)
        pool.sweep()
    assert (pool.state("waits"), pool.state("runs")) == ("queued", "executing")
    pool.renew(running, read=["waits", "runs"])
    audit(world, ["waits", "runs"])


def test_a_fail_over_to_a_clock_that_is_ahead_takes_nothing_from_anybody(world: World) -> None:
    """The new primary counts on from another second, and nobody was away."""
    pool = Pool(world)
    pool.sweep()
    grant = pool.run("a", waiting=True)
    pool.append(grant, 2)
    world.advance(4000)
    pool.sweep()
    assert pool.renew(grant) == [1]
    assert pool.state("a") == "executing"


@pytest.mark.parametrize("late_ms", [1600, 2500, 10_000])
def test_sweeps_that_are_always_late_end_a_dead_lease_all_the_same(world: World, late_ms: int) -> None:
    pool = Pool(world)
    pool.sweep()
    grant = pool.run("dead")
    pool.renew(grant)
    pool.submit("left", linger_ms=3000, user="v")
    sweeps = 0
    while pool.state("dead") == "executing" or pool.state("left") == "queued":
        world.advance(late_ms)
        pool.offer("m")
        pool.sweep()
        sweeps += 1
        assert sweeps <= 31, "each pass brings its end half a second nearer"


def test_what_had_ended_before_is_not_brought_back(world: World) -> None:
    """An offer whose time was over when Redis was last seen."""
    pool, gone = Pool(world), Pool(world, "gone", set_up=False)
    pool.sweep()
    gone.offer("m2", hold_ms=3000)
    pool.pass_time(4000)
    world.advance(20_000)
    pool.sweep()
    assert isinstance(pool.submit("a", "m2"), Rejection)
    assert isinstance(pool.submit("a"), Submitted)


def test_a_deadline_ends_its_task_in_the_same_pass(world: World) -> None:
    pool = Pool(world)
    pool.sweep()
    grant = pool.run("a", timeout_ms=3000)
    pool.renew(grant)
    pool.submit("b", wait_ms=3000, user="v")
    world.advance(4000)
    pool.sweep()
    assert (pool.code("a"), pool.code("b")) == ("TOTAL_TIMEOUT", "QUEUE_TIMEOUT")


def test_the_only_offer_of_a_model_holds_until_its_replica_is_back(world: World) -> None:
    pool = Pool(world)
    pool.sweep()
    grant = pool.run("a", waiting=True)
    world.advance(20_000)
    pool.sweep()
    assert pool.requeue(grant).outcome == "queued", "its model is offered"


def test_a_grant_of_a_lost_reply_is_repeated_after_redis_was_away(world: World) -> None:
    """Ended from outside; the answer that brought the next task was lost with the connection."""
    pool = Pool(world, limit=1)
    pool.sweep()
    grant = pool.run("a")
    pool.submit("b")
    pool.cancel("a")
    answer = pool.finish(grant, want=1, nonce="n")
    assert [given.task_id for given in answer.grants] == ["b"]
    world.advance(4000)
    pool.sweep()
    assert pool.finish(grant, want=1, nonce="n").grants == answer.grants
