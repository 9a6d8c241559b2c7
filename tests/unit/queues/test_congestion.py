"""How long a model's queue makes new tasks wait."""

import pytest
from tests.support.direct import World, drive
from tests.support.pool import Pool

from fairlane.queues.inspect.load import ModelLoad

HOUR_MS = 3_600_000


def look(pool: Pool, model: str = "m") -> ModelLoad:
    found: ModelLoad = drive(pool.scheduler.model_load(model))
    return found


def flowing(pool: Pool, number: int, every_ms: int = 1000) -> None:
    """So many tasks leave a lane in which others wait, one after the other; the last one runs."""
    pool.offer("m", hold_ms=HOUR_MS)
    pool.submit("f0")
    (running,) = pool.take()
    for i in range(1, number):
        pool.submit(f"f{i}")
        pool.world.advance(every_ms)
        pool.finish(running)
        (running,) = pool.take()


def test_an_unknown_model_has_no_wait(world: World) -> None:
    assert look(Pool(world), model="nobody") == ModelLoad("no_worker", 0)


def test_an_idle_model_has_no_wait(world: World) -> None:
    pool = Pool(world, limit=1)
    flowing(pool, 10)
    assert look(pool) == ModelLoad("", 0)


def test_the_wait_is_what_waits_at_the_pace_at_which_it_leaves(world: World) -> None:
    pool = Pool(world, limit=1)
    flowing(pool, 40)
    for i in range(20):
        pool.submit(f"w{i}")
    found = look(pool)
    assert found.stopped == ""
    assert found.wait_ms == pytest.approx(20_000, rel=0.05)
    world.advance(15_000)
    assert (look(pool).wait_ms or 0) > 25_000, "nothing has left since"


def test_lanes_that_leave_together_are_reckoned_together(world: World) -> None:
    """Two lanes of ten, served in turns of one a second: who comes now waits for twenty tasks, wherever he stands."""
    pool = Pool(world, limit=1)
    pool.offer("m", hold_ms=HOUR_MS)
    pool.set_queue("paid", weight=1)
    for queue in ("free", "paid"):
        for i in range(30):
            pool.submit(f"{queue}{i}", queue=queue)
    (running,) = pool.take()
    for _ in range(40):
        world.advance(1000)
        pool.finish(running)
        (running,) = pool.take()
    assert look(pool).wait_ms == pytest.approx(20_000, rel=0.1)


def test_too_little_is_known_before_anything_has_completed(world: World) -> None:
    pool = Pool(world, limit=1)
    pool.submit("r")
    pool.take()
    pool.submit("w")
    assert look(pool).wait_ms is None


@pytest.mark.parametrize("stopped", ["paused", "cooldown", "no_worker", "throttled"])
def test_a_model_that_starts_nothing_has_a_reason(world: World, stopped: str) -> None:
    pool = Pool(world, limit=1)
    grant = pool.run("a")
    if stopped == "paused":
        pool.set_model(paused=True)
    elif stopped == "cooldown":
        pool.requeue(grant, "declined", hold_ms=5000)
    elif stopped == "throttled":
        pool.finish(grant)
        pool.set_model(requests_per_minute=1)
        pool.run("b")
    else:
        pool.offer(withdrawn=["m"])
    assert look(pool).stopped == stopped


def test_a_lane_that_may_start_nothing_makes_no_newcomer_wait(world: World) -> None:
    pool = Pool(world, limit=1)
    flowing(pool, 20)
    for i in range(5):
        pool.submit(f"w{i}")
    assert (look(pool).wait_ms or 0) > 4000
    pool.set_queue("free", paused=True)
    assert look(pool).wait_ms == 0
