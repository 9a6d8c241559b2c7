"""What nobody is to read any more goes: at once, or as soon as its task has ended and holds no slot."""

from typing import Any

from tests.support.direct import World, drive
from tests.support.pool import Pool

from fairlane.queues.tasks import State

HOUR_MS = 3_600_000


def end(pool: Pool, task: str, **more: Any) -> None:
    grant = pool.run(task, **{"keep_ms": 60_000, **more})
    pool.finish(grant, 1, chunks=[b"x" * 5000])
    pool.offer("m")


def there(world: World, task: str) -> int:
    left: int = world.call("EXISTS", world.keys("task", id=task), world.keys("log", id=task))
    return left


def drop(pool: Pool, task: str) -> bool:
    return drive(pool.scheduler.delete_task(task))


def test_an_ended_task_is_deleted_immediately_and_counted_no_more(world: World) -> None:
    pool = Pool(world)
    end(pool, "a", archive_ms=72 * HOUR_MS, archive_log=True)
    end(pool, "b")
    assert pool.kept() > 9000, "two logs of some 5,000 bytes, as the server holds them"
    assert drop(pool, "a")
    assert there(world, "a") == 0
    assert drop(pool, "b")
    pool.pass_time(3000)
    left = pool.kept()
    pool.pass_time(60_000)
    assert left < 8000, "of one that is kept for long it is known at once"
    assert pool.kept() == 0
    assert drop(pool, "a"), "it is gone"


def test_what_waits_or_runs_goes_as_soon_as_it_has_ended(world: World) -> None:
    pool = Pool(world)
    grant = pool.run("runs", archive_ms=72 * HOUR_MS, archive_log=True)
    pool.submit("waits", archive_ms=72 * HOUR_MS, archive_log=True)
    for task in ("runs", "waits"):
        assert drop(pool, task) is False
    pool.cancel("waits")
    pool.cancel("runs")
    assert world.call("PTTL", world.keys("task", id="runs")) == -1, "its worker is still to stop"
    assert not drop(pool, "runs")
    pool.finish(grant, 1, state=State.CANCELLED)
    for task in ("runs", "waits"):
        assert world.call("PTTL", world.keys("task", id=task)) <= 1000
    assert world.call("XLEN", world.keys("archive")) == 0


def test_its_idempotency_key_is_free_again(world: World) -> None:
    pool = Pool(world)
    end(pool, "a")
    world.call("HSET", world.keys("task", id="a"), "idempotency", "some-name 9999999999999")
    world.call("SET", world.keys("idempotency", digest="some-name"), "fingerprint a")
    drop(pool, "a")
    assert not world.call("EXISTS", world.keys("idempotency", digest="some-name"))
