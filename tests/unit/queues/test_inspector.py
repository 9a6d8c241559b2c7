"""What a survey says of a store whose clock is moved by hand."""

from collections.abc import Callable

import pytest
from msgspec import msgpack
from tests.contract.store.store import Store, World

from fairlane.queues.inspect.inspector import MAX_USERS, SHARE_SPAN_S, Blocked, Lane, Model, Shares, model_of
from fairlane.queues.replies import decode_map, decode_values
from fairlane.queues.rules import effective


def look(pool: Store, model: str = "m", *, users: int = MAX_USERS) -> tuple[Model, dict[str, Lane]]:
    ask = msgpack.encode({"model": model, "most_users": users})
    reply, packed = pool.world.link.run("inspect_model", ask).result()
    settings = effective("model", model, decode_values(packed), {})
    seen, lanes = model_of(model, settings, decode_map(reply), pool.world.now_ms)
    return seen, {lane.queue: lane for lane in lanes}


def test_an_unknown_model_is_empty(world: World) -> None:
    model, lanes = look(Store(world), "nobody")
    assert (model.running, model.waiting, model.limit, lanes) == (0, 0, None, {})


def test_what_runs_and_waits_is_counted_by_lane(world: World) -> None:
    pool = Store(world, limit=3)
    for i in range(3):
        pool.run(f"p{i}", queue="paid", user=f"u{i}")
    for i in range(4):
        pool.submit(f"f{i}", queue="free", user=f"u{i % 2}")
    model, lanes = look(pool)
    assert (model.running, model.limit, model.waiting, model.cost) == (3, 3, 4, "tokens")
    paid, free = lanes["paid"], lanes["free"]
    assert (paid.running, paid.waiting, paid.users, paid.oldest_wait_ms) == (3, 0, 0, None)
    assert (free.running, free.waiting, free.users, free.parked) == (0, 4, 2, 0)
    assert paid.charged == 3 * 512


Block = Callable[[Store], object]
BLOCKS: dict[Blocked, Block] = {
    Blocked.MODEL_PAUSED: lambda pool: pool.set_model(paused=True),
    Blocked.QUEUE_PAUSED: lambda pool: pool.set_queue("free", paused=True),
    Blocked.NO_WORKER: lambda pool: pool.offer(withdrawn=["m"]),
}


@pytest.mark.parametrize("why", BLOCKS)
def test_a_blocked_lane_has_a_reason_and_no_wait(world: World, why: Blocked) -> None:
    pool = Store(world, limit=2)
    pool.finish(pool.run("a"))
    pool.submit("b")
    model, lanes = look(pool)
    assert (model.blocked, lanes["free"].blocked, pool.place("b").wait_ms < 0) == ({}, None, False)
    BLOCKS[why](pool)
    model, lanes = look(pool)
    assert (model.blocked, lanes["free"].blocked) == ({"free": why}, why)
    assert (pool.place("b").position, pool.place("b").wait_ms) == (1, -1)
    assert pool.taken() == [] or why is Blocked.NO_WORKER


def test_the_oldest_task_is_found_at_either_end_of_the_line(world: World) -> None:
    pool = Store(world, limit=1)
    pool.run("running", user="heavy", max_output=4000)
    pool.submit("first", user="heavy", max_output=4000)  # its user stands behind all who come now
    for i in range(20):
        world.advance(100)
        pool.submit(f"t{i}", user=f"u{i}")
    assert look(pool)[1]["free"].oldest_wait_ms == 2000
    assert look(pool, users=2)[1]["free"].oldest_wait_ms == 2000


def test_parked_users_wait_too(world: World) -> None:
    pool = Store(world)
    pool.set_model(max_running_per_user=1)
    pool.run("a")
    pool.submit("b")
    world.advance(700)
    pool.submit("c", user="other")
    assert pool.taken(want=2) == ["c"]
    lane = look(pool)[1]["free"]
    assert (lane.waiting, lane.users, lane.parked, lane.oldest_wait_ms) == (1, 0, 1, 700)


def test_a_throttle_and_a_cooldown_are_reported_apart(world: World) -> None:
    pool = Store(world)
    pool.set_model(requests_per_minute=6)
    grant = pool.run("a")
    model, _ = look(pool)
    assert model.next_start_at is not None
    assert model.next_start_at - world.now_ms == 10_000
    assert model.cooldown_until is None
    pool.requeue(grant, "declined", hold_ms=25_000)
    model, _ = look(pool)
    assert (model.cooldown_until, model.next_start_at) == (world.now_ms + 25_000, world.now_ms + 10_000)
    world.advance(30_000)
    model, _ = look(pool)
    assert (model.cooldown_until, model.next_start_at) == (None, None)


# ---- shares ----------


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def lanes(**charged: float) -> list[Lane]:
    return [Lane(queue, "m", charged=cost) for queue, cost in charged.items()]


def test_shares_are_of_what_was_served_since_the_oldest_reading() -> None:
    shares = Shares(Clock())
    assert shares.by_queue(lanes(a=5.0)) == {"a": 1.0}, "without a reading since the beginning"
    shares.remember(lanes(a=1000.0, b=1000.0))
    assert shares.by_queue(lanes(a=1300.0, b=1100.0, new=400.0)) == {"a": 0.375, "b": 0.125, "new": 0.5}
    assert shares.by_queue(lanes(a=900.0, b=1100.0)) == {"a": 0.0, "b": 1.0}, "a refund is no service"
    assert shares.by_queue(lanes(a=1000.0, b=1000.0)) == {}


def test_what_is_older_than_the_span_is_forgotten() -> None:
    clock = Clock()
    shares = Shares(clock)
    shares.remember(lanes(a=0.0, b=0.0))
    clock.now = SHARE_SPAN_S / 2
    shares.remember(lanes(a=900.0, b=0.0))
    clock.now = SHARE_SPAN_S
    assert shares.by_queue(lanes(a=1000.0, b=1000.0)) == {"a": 0.5, "b": 0.5}
    clock.now = 1.5 * SHARE_SPAN_S
    shares.remember(lanes(a=900.0, b=0.0))
    assert shares.by_queue(lanes(a=1000.0, b=300.0)) == {"a": 0.25, "b": 0.75}
    assert len(shares) == 2
