"""What happens to the scheduler, rather than by it: the store is full, weights are extreme."""

import contextlib
from collections.abc import Iterator

import pytest
from hiredis import ReplyError
from tests.support.audit import audit
from tests.support.direct import World
from tests.support.pool import Pool


@contextlib.contextmanager
def full(world: World) -> Iterator[None]:
    """A store that has no room for anything."""
    world.call("CONFIG", "SET", "maxmemory", 1)
    try:
        yield
    finally:
        world.call("CONFIG", "SET", "maxmemory", 0)


@pytest.mark.parametrize("rule", [{"paused": True}, {"max_running": 1}])
def test_a_full_store_hands_out_tasks_past_a_queue_that_may_start_none(
    world: World, rule: dict[str, bool | int]
) -> None:
    pool = Pool(world)
    pool.submit("running", queue="free", user="a")
    pool.take()
    pool.set_queue("free", **rule)
    pool.submit("stays", queue="free")
    pool.submit("goes", queue="paid")
    with full(world):
        assert pool.taken() == ["goes"]
    audit(world, ["running", "stays", "goes"])


def test_a_full_store_requeues_a_task_after_a_429_and_starts_a_cooldown(world: World) -> None:
    pool = Pool(world)
    pool.submit("a")
    (grant,) = pool.take()
    with full(world):
        assert pool.requeue(grant, "failed", hold_ms=5000).outcome == "queued"
    assert pool.state("a") == "queued"
    assert pool.ask().retry_at == (("m", 5000),)


def test_a_full_store_rejects_a_submit_also_where_old_seconds_of_a_throttle_are_over(world: World) -> None:
    pool = Pool(world)
    pool.set_model(tokens_per_minute=100_000)
    pool.finish(pool.run("a"))
    world.advance(62_000)
    pool.offer("m")
    with full(world), pytest.raises(ReplyError, match="OOM"):
        pool.submit("b", want=1, payload=b"x" * 1000)


@pytest.mark.parametrize("weight", [1e-9, 1e-3, 1e6])
def test_no_weight_breaks_a_grant_or_a_settlement(world: World, weight: float) -> None:
    pool = Pool(world, limit=1)
    names = [f"x{number:02}" for number in range(40)]
    for name in names:
        pool.submit(name, user="u", weight=weight, estimated_input=1_000_000)
    for name in names:
        (grant,) = pool.take()
        assert grant.task_id == name
        pool.finish(grant, used=(1_000_000, 1_000_000))
    audit(world, names)
