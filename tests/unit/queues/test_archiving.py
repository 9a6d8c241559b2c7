"""What the archive shall have of an ended task stays until it has it; then, and once it was read, it goes earlier."""

from typing import Any

from tests.contract.store.store import World, drive
from tests.support.pool import Pool

from fairlane.queues.scheduler import Limits
from fairlane.queues.tasks import State

HOUR_MS = 3_600_000
GROUP = "sql"


def entries(world: World) -> list[tuple[bytes, str]]:
    return [
        (entry, flat[1].decode()) for entry, flat in world.call("XRANGE", world.keys("archive"), "-", "+")
    ]


def archived(pool: Pool, *tasks: str) -> int:
    world = pool.world
    pairs = [part for entry, task in entries(world) if task in tasks for part in (entry, task)]
    gone: int = world.link.run("confirm_archived", GROUP, *pairs).result()
    return gone


def left_ms(world: World, task: str, kind: str = "task") -> int:
    left: int = world.call("PTTL", world.keys(kind, id=task))
    return left


def end(pool: Pool, task: str, **more: Any) -> None:
    grant = pool.run(task, **{"keep_ms": 60_000, "archive_ms": 72 * HOUR_MS, **more})
    pool.finish(grant, 1, chunks=[b"x" * 5000])
    pool.offer("m")


def test_it_is_kept_as_long_as_the_archive_would_until_that_has_it(world: World) -> None:
    pool = Pool(world)
    end(pool, "a")
    end(pool, "other", archive_ms=0)
    assert [task for _, task in entries(world)] == ["a"]
    assert min(left_ms(world, "a"), left_ms(world, "a", "log")) > 71 * HOUR_MS
    assert left_ms(world, "other") <= 60_000
    both = pool.kept()
    assert archived(pool, "a") == 1
    assert max(left_ms(world, "a"), left_ms(world, "a", "log")) <= 60_000
    assert pool.kept() == both, "it is there still, and counted once"
    assert archived(pool, "a") == 0
    assert entries(world) == []
    pool.pass_time(62_000)
    assert pool.kept() == 0


def test_it_expires_immediately_when_it_is_archived_late(world: World) -> None:
    pool = Pool(world)
    end(pool, "a")
    pool.sweep()
    world.advance(2 * HOUR_MS)
    archived(pool, "a")
    assert left_ms(world, "a") <= 1000


def test_the_request_is_kept_with_it_where_that_is_wanted_and_goes_with_the_end(world: World) -> None:
    pool = Pool(world)
    grant = pool.run("a", payload=b'{"secret":1}', archive_ms=HOUR_MS, archive_request=True)
    pool.append(grant, 1)
    assert drive(pool.scheduler.payload("a")) is None
    assert drive(pool.scheduler.request("a")) == b'{"secret":1}'
    assert pool.world.call("HGET", world.keys("pool"), "bytes") == b"0"
    pool.finish(grant, 2)
    assert left_ms(world, "a", "request") > 0
    archived(pool, "a")
    assert drive(pool.scheduler.request("a")) is None

    pool.offer("m")
    pool.submit("b", payload=b'{"secret":2}', archive_ms=HOUR_MS, archive_request=True)
    pool.cancel("b")
    assert drive(pool.scheduler.request("b")) == b'{"secret":2}'
    assert [task for _, task in entries(world)] == ["b"]


def test_a_task_is_archived_once_its_worker_has_stopped(world: World) -> None:
    pool = Pool(world)
    grant = pool.run("a", archive_ms=HOUR_MS)
    pool.cancel("a")
    assert entries(world) == []
    pool.finish(grant, 1, state=State.CANCELLED)
    assert [task for _, task in entries(world)] == ["a"]


def test_beyond_the_budget_it_goes_as_others_do(world: World) -> None:
    world.limits = Limits(max_retained_bytes=20_000)
    pool = Pool(world)
    for number in range(6):
        end(pool, f"a{number}", archive_request=True)
        pool.pass_time(1000)
    assert pool.kept() <= 20_000
    assert not pool.record("a0")
    assert not world.call("EXISTS", world.keys("request", id="a0"))
    assert archived(pool, "a0", "a5") == 2
    assert pool.record("a5")


def test_who_has_read_an_end_lets_it_go_earlier_once(world: World) -> None:
    pool = Pool(world)
    end(pool, "a", archive_ms=0, after_read_ms=20_000)
    end(pool, "b", archive_ms=0)
    for task in ("a", "b", "unknown"):
        drive(pool.scheduler.mark_read(task))
    assert max(left_ms(world, "a"), left_ms(world, "a", "log")) <= 20_000
    assert left_ms(world, "b") > 50_000
    both = pool.kept()
    drive(pool.scheduler.mark_read("a"))
    assert pool.kept() == both
    pool.pass_time(22_000)
    assert 0 < pool.kept() < both


def test_a_result_that_was_read_before_its_slot_was_free_expires_early(world: World) -> None:
    pool = Pool(world)
    grant = pool.run("a", keep_ms=48 * HOUR_MS, after_read_ms=20_000)
    pool.cancel("a")
    drive(pool.scheduler.mark_read("a"))
    assert pool.record("a"), "the slot is not free"
    pool.finish(grant, 1, state=State.CANCELLED)
    assert 0 < left_ms(world, "a") <= 20_000


def test_what_was_read_before_it_was_archived_goes_early_when_it_is(world: World) -> None:
    pool = Pool(world)
    end(pool, "a", after_read_ms=20_000)
    drive(pool.scheduler.mark_read("a"))
    assert left_ms(world, "a") > 71 * HOUR_MS, "the archive does not have it"
    archived(pool, "a")
    assert left_ms(world, "a") <= 20_000
    end(pool, "short", after_read_ms=120_000)
    drive(pool.scheduler.mark_read("short"))
    archived(pool, "short")
    assert left_ms(world, "short") <= 60_000, "reading makes nothing longer"
