"""A full queue refuses who has his part of it waiting, and keeps room for the others; so does the room for bodies."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.audit import audit
from tests.support.direct import World
from tests.support.pool import Pool

from fairlane.queues.scheduler import Limits
from fairlane.queues.tasks import Rejection, Submitted

HOUR_MS = 3_600_000


def fill(pool: Pool, user: str, most: int = 10_000, **more: Any) -> int:
    """How many tasks of a user are let in before one is refused."""
    for n in range(most):
        if isinstance(pool.submit(f"{user}-{n}", user=user, **more), Rejection):
            return n
    return most


def test_one_user_alone_fills_the_queue_and_no_more(world: World) -> None:
    pool = Pool(world)
    pool.configure(max_length=20)
    assert fill(pool, "mallory") == 20
    refused = pool.submit("x", user="mallory")
    assert isinstance(refused, Rejection)
    assert (refused.reason, refused.waiting, refused.limit) == ("full", 20, 20)
    assert refused.retry_ms > 0


def test_whoever_fills_a_queue_leaves_room_for_the_next(world: World) -> None:
    pool = Pool(world)
    pool.configure(max_length=100)
    assert [fill(pool, f"u{n}") for n in range(6)] == [100, 50, 25, 13, 6, 3]
    assert isinstance(pool.submit("one more", user="late"), Submitted)
    let_in = enumerate((100, 50, 25, 13, 6, 3))
    audit(world, [*(f"u{user}-{n}" for user, count in let_in for n in range(count)), "one more"])


def test_flooding_users_share_the_queue_and_a_light_user_is_never_rejected(world: World) -> None:
    """Ten tasks a second leave, mallory sends twenty and alice two: she was refused every other time."""
    pool = Pool(world, limit=10)
    pool.configure(10, "requests", max_length=100)
    refused = {"mallory": 0, "alice": 0}
    numbers = iter(range(10_000))
    running = []
    for _ in range(60):
        pool.offer("m")
        for user, rate in (("mallory", 20), ("alice", 2)):
            for _ in range(rate):
                answer = pool.submit(f"t{next(numbers)}", user=user)
                refused[user] += isinstance(answer, Rejection)
        for grant in running:
            pool.finish(grant)
        running = pool.take(want=10)
        pool.renew(*running)
        pool.pass_time(1000)
    assert refused["alice"] == 0
    assert refused["mallory"] > 500


def test_a_user_whose_flow_is_parked_counts_too(world: World) -> None:
    pool = Pool(world)
    pool.configure(max_length=10)
    pool.set_model(max_running_per_user=1)
    pool.run("runs", user="mallory")
    pool.submit("a", user="mallory")
    assert pool.take() == [], "mallory is parked now"
    assert fill(pool, "mallory") == 9
    assert fill(pool, "alice") == 5


def test_the_time_to_come_again_is_as_long_as_the_user_has_too_many(world: World) -> None:
    pool = Pool(world)
    pool.configure(max_length=10)
    fill(pool, "mallory")
    first = pool.submit("x", user="mallory")
    fill(pool, "alice", 3)
    second = pool.submit("x", user="mallory")
    assert isinstance(first, Rejection)
    assert isinstance(second, Rejection)
    assert second.retry_ms == 4 * first.retry_ms, "three more have to leave"


# ---- bytes ----------

LARGE = b"x" * 20_000


def test_one_user_takes_half_of_the_room_for_bodies_and_the_next_finds_some(world: World) -> None:
    world.limits = Limits(max_queued_bytes=1_000_000)
    pool = Pool(world)
    let_in = [fill(pool, f"u{n}", payload=LARGE) for n in range(5)]
    assert let_in == [25, 12, 6, 3, 2]
    ids = [f"u{n}-{i}" for n, count in enumerate(let_in) for i in range(count)]
    audit(world, ids)
    assert isinstance(pool.submit("small", user="v"), Submitted)
    for task in ids:
        pool.cancel(task)
    assert world.call("EXISTS", world.keys("bulk")) == 0
    pool.cancel("small")
    assert fill(pool, "again", payload=LARGE) == 25


def test_one_body_of_each_user_fits_while_there_is_room_at_all(world: World) -> None:
    world.limits = Limits(max_queued_bytes=100_000)
    pool = Pool(world)
    assert isinstance(pool.submit("a", user="u", payload=b"x" * 60_000), Submitted)
    assert isinstance(pool.submit("b", user="v", payload=b"x" * 40_000), Submitted)
    assert pool.submit("c", user="w", payload=b"x" * 20_000).reason == "full_bytes"  # type: ignore[union-attr]


@pytest.mark.parametrize("end", ["output", "finish", "cancel", "sweep"])
def test_a_body_leaves_the_count_however_it_goes(world: World, end: str) -> None:
    pool = Pool(world)
    if end == "sweep":
        pool.sweep()
        pool.submit("a", payload=LARGE, wait_ms=500)
        pool.pass_time(1000)
    else:
        grant = pool.run("a", payload=LARGE)
        assert world.call("HGETALL", world.keys("bulk")) == [b"u", b"20000"]
        ends: dict[str, Callable[[], object]] = {
            "output": lambda: pool.append(grant, 2),
            "finish": lambda: pool.finish(grant),
            "cancel": lambda: pool.cancel("a"),
        }
        ends[end]()
    assert world.call("EXISTS", world.keys("bulk")) == 0
    audit(world, "a")
