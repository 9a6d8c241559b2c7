"""What ended tasks leave behind is counted, and beyond a budget those that ended first are dropped."""

from typing import Any

import pytest
from tests.support.audit import audit
from tests.support.direct import World, drive
from tests.support.pool import Pool

from fairlane.queues.metrics import RESULTS_DROPPED, Recorder
from fairlane.queues.scheduler import Limits
from fairlane.queues.tasks import State

HOUR_MS = 3_600_000


def kept(pool: Pool) -> int:
    return int(pool.world.call("HGET", pool.world.keys("pool"), "kept") or 0)


def ended(pool: Pool, *ids: str, size: int = 5000, **more: Any) -> None:
    """Tasks that have ended with so many bytes of output, each a second after the one before."""
    for task in ids:
        grant = pool.run(task, **more)
        pool.finish(grant, chunks=[b"x" * size])
        pool.offer("m")
        pool.pass_time(1000)


def there(pool: Pool, *ids: str) -> list[str]:
    return [task for task in ids if pool.record(task)]


def test_ended_tasks_are_counted_until_they_expire(world: World) -> None:
    pool = Pool(world)
    pool.sweep()
    ended(pool, "a", "b", keep_ms=60_000)
    ended(pool, "long", keep_ms=24 * HOUR_MS)
    pool.sweep()
    assert 15_000 < kept(pool) < 40_000
    audit(world, ["a", "b", "long"])
    pool.pass_time(60_000)
    assert 5000 < kept(pool) < 14_000, "the long one is there"
    pool.pass_time(24 * HOUR_MS, step_ms=HOUR_MS)
    pool.pass_time(3000)
    assert kept(pool) == 0
    assert not world.call("EXISTS", world.keys("ended"), world.keys("expiries"), world.keys("endings"))


def test_beyond_the_budget_those_that_ended_first_go_first(world: World) -> None:
    """However long their callers want them: one who asks for a day does not cost others their minutes."""
    world.limits = Limits(max_retained_bytes=60_000)
    pool = Pool(world)
    pool.sweep()
    greedy, others = [f"greedy{n}" for n in range(12)], [f"other{n}" for n in range(3)]
    ended(pool, *greedy, keep_ms=24 * HOUR_MS)
    ended(pool, *others, keep_ms=60_000)
    pool.sweep()
    assert kept(pool) <= 60_000
    gone = len(greedy) - len(there(pool, *greedy))
    assert 3 <= gone < 12
    assert there(pool, *greedy) == greedy[gone:]
    assert there(pool, *others) == others
    assert [pool.events(task) for task in greedy[:gone]] == [[]] * gone, "log and record go together"
    assert int(world.call("HGET", world.keys("pool"), "dropped")) == gone
    assert drive(pool.scheduler.position(greedy[0])) is None
    assert drive(pool.scheduler.follow(greedy[0])) is None


def test_what_a_record_holds_counts_too(world: World) -> None:
    """A task's metadata is kept with its record, not in its log."""
    pool = Pool(world)
    pool.sweep()
    pool.submit("small")
    pool.cancel("small")
    pool.sweep()
    small = kept(pool)
    pool.submit("large", metadata=b'"' + b"x" * 8000 + b'"')
    pool.cancel("large")
    pool.sweep()
    assert kept(pool) - small > 8000


def test_a_pass_drops_a_bounded_number_and_the_next_follows_immediately(world: World) -> None:
    pool = Pool(world)
    pool.sweep()
    ids = [f"t{n}" for n in range(1200)]
    for task in ids:
        pool.submit(task, user=task)
        pool.cancel(task)
    pool.scheduler.limits = Limits(max_retained_bytes=0)
    waits, left = [], []
    for _ in range(6):
        due_ms, _ = pool.sweep()
        waits.append(due_ms)
        left.append(int(world.call("EXISTS", *(world.keys("task", id=task) for task in ids))))
    assert left == [700, 200, 0, 0, 0, 0]
    assert waits[:2] == [0, 0]
    assert waits[-1] > 0
    assert kept(pool) == 0


def test_dropped_results_are_counted(world: World) -> None:
    world.limits = Limits(max_retained_bytes=1)
    pool = Pool(world)
    pool.scheduler.metrics = Recorder()
    ended(pool, "a", "b")
    pool.sweep()
    pool.sweep()
    assert isinstance(pool.scheduler.metrics, Recorder)
    assert pool.scheduler.metrics.values[RESULTS_DROPPED.name] == {(): 2}


def test_what_still_runs_is_never_dropped(world: World) -> None:
    """One that was cancelled holds its slot until its worker has stopped, and its record as long."""
    world.limits = Limits(max_retained_bytes=0)
    pool = Pool(world)
    pool.sweep()
    grant = pool.run("a")
    pool.renew(grant)
    pool.cancel("a")
    pool.submit("queued")
    pool.pass_time(2000)
    assert pool.state("a") == "cancelled"
    assert pool.state("queued") == "queued"
    pool.finish(grant, state=State.CANCELLED)
    pool.pass_time(2000)
    assert not pool.record("a")
    assert pool.slots() == {}


@pytest.mark.parametrize("ends", ["finish", "cancel", "sweep"])
def test_a_task_is_counted_however_it_ends(world: World, ends: str) -> None:
    pool = Pool(world)
    pool.sweep()
    if ends == "finish":
        pool.finish(pool.run("a"))
    else:
        pool.submit("a", wait_ms=500)
    if ends == "cancel":
        pool.cancel("a")
    pool.pass_time(2000)
    assert kept(pool) > 1000
    audit(world, ["a"])
