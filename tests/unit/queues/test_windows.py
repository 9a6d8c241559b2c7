"""Windows of a model: never more requests than they hold arrive within them, whenever those arrive that were granted; and what
may start does so at once. The clock is moved by hand.
"""

import random
from itertools import pairwise

import pytest
from tests.contract.store.store import World
from tests.support.audit import audit
from tests.support.pool import Pool

from fairlane.queues.tasks import Rejection, Submitted
from fairlane.queues.windows import MAX_REQUESTS, Window, read_windows


def fill(pool: Pool, number: int, first: int = 0) -> list[str]:
    """Tasks of some users, who wait."""
    ids = [f"t{n:04d}" for n in range(first, first + number)]
    for n, task in enumerate(ids):
        pool.submit(task, user=f"u{n % 7}")
    return ids


def seen_at_most(arrivals_us: list[int], text: str) -> None:
    """No window holds more of these than it may."""
    instants = sorted(arrivals_us)
    for window in read_windows(text):
        for n in range(len(instants) - window.requests):
            assert instants[n + window.requests] - instants[n] >= 1000 * window.ms, (window, n)


# ---- how they are written ----------


def test_windows_are_read() -> None:
    assert read_windows("50/1s") == (Window(50, 1000),)
    assert read_windows(" 3/250ms,1000 / 1m, 9/24h") == (
        Window(3, 250),
        Window(1000, 60_000),
        Window(9, 86_400_000),
    )


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "should be like"),
        ("50", "should be like"),
        ("50/s", "should be like"),
        ("50/1s,", "should be like"),
        ("-1/1s", "should be like"),
        ("1/1d", "should be like"),
        ("٣/1s", "should be like"),
        ("0/1s", "1 to 10,000 requests in each window"),
        (f"{MAX_REQUESTS + 1}/1s", "1 to 10,000 requests in each window"),
        ("1/9ms", "10ms to 24h"),
        ("1/25h", "10ms to 24h"),
        ("1/60s, 2/1m", "one window of each length"),
        ("1/1s, 2/2s, 3/3s, 4/4s", "at most 3 windows"),
    ],
)
def test_an_invalid_window_is_rejected_with_the_valid_form(text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        read_windows(text)


# ---- what they hold ----------


def test_as_many_requests_start_together_as_a_window_holds_and_no_more_until_they_have_left(
    world: World,
) -> None:
    pool = Pool(world)
    pool.set_model(windows="3/1s")
    fill(pool, 9)
    answer = pool.ask(want=9)
    assert len(answer.grants) == 3
    assert all(grant.report_sent for grant in answer.grants)
    assert answer.retry_at == (), "when they have left is not known: whoever tells wakes"
    world.advance(60_000)
    assert pool.ask(want=9).grants == [], "they count on"
    assert pool.sent(*answer.grants[:2]) == (("m", 1000),)
    world.advance(999)
    assert pool.ask(want=9).retry_at == (("m", 1),)
    world.advance(1)
    assert len(pool.ask(want=9).grants) == 2
    audit(world, [f"t{n:04d}" for n in range(9)])


def test_reporting_a_sent_request_returns_when_the_next_one_may_start(world: World) -> None:
    pool = Pool(world)
    pool.set_model(windows="2/1s")
    pool.submit("a")
    pool.submit("b")
    first, second = pool.take(want=2)
    assert pool.sent(first) == (), "nobody waits"
    pool.submit("c")
    world.advance(400)
    assert pool.sent(second) == (("m", 600),)
    assert pool.sent(second) == (("m", 600),), "again, as after a lost reply"
    assert pool.sent() == ()


def test_a_request_counts_from_its_report_also_when_its_attempt_ends_later(world: World) -> None:
    pool = Pool(world)
    pool.set_model(windows="1/1s")
    grant = pool.run("a")
    pool.sent(grant)
    pool.submit("b")
    world.advance(400)
    assert pool.finish(grant, want=1).retry_at == (("m", 600),)


def test_an_attempt_without_a_report_counts_until_it_has_ended(world: World) -> None:
    pool = Pool(world)
    pool.set_model(windows="1/2s")
    grant = pool.run("a")
    pool.submit("b")
    world.advance(5000)
    assert pool.ask().grants == []
    assert pool.finish(grant, want=1).retry_at == (("m", 2000),)
    world.advance(2000)
    assert pool.taken() == ["b"]


def test_each_of_three_windows_holds(world: World) -> None:
    pool = Pool(world)
    pool.set_model(windows="2/100ms, 3/1s, 4/1m")
    fill(pool, 20)
    starts = []
    for _ in range(200):
        grants = pool.take(want=5)
        starts += [world.now_us] * len(grants)
        if grants:
            pool.sent(*grants)
        world.advance(50)
    assert [at - starts[0] for at in starts] == [0, 0, 100_000, 1_000_000], "and then the minute"
    seen_at_most(starts, "2/100ms, 3/1s, 4/1m")
    pool.submit("later", user="somebody else")
    assert pool.ask().retry_at == (("m", 60_000 - 10_000),)


def test_a_take_at_the_returned_instant_gets_all_and_a_millisecond_earlier_nothing(world: World) -> None:
    pool, chance = Pool(world), random.Random(1)
    pool.set_model(windows="20/1s")
    fill(pool, 300)
    starts: list[int] = []
    for _ in range(800):
        answer = pool.ask(want=64)
        starts += [world.now_us] * len(answer.grants)
        for grant in answer.grants:
            world.advance(chance.choice((0.2, 1.5)))
            pool.sent(grant)
            pool.finish(grant)
        ((_, ms),) = pool.ask(want=0).retry_at or (("m", 0),)
        if ms > 1:
            world.advance(ms - 1)
            assert pool.ask().grants == []
            ms = 1
        world.advance(ms)
        if len(starts) == 300:
            break
    assert len(starts) == 300
    seen_at_most(starts, "20/1s")
    took_s = (starts[-1] - starts[0]) / 1e6
    assert 300 / took_s > 19.5, "hardly anything of the windows is left unused"


# ---- what does not count, and what does ----------


def test_a_task_that_is_cancelled_counts_until_its_worker_has_stopped(world: World) -> None:
    pool = Pool(world)
    pool.set_model(windows="1/1s")
    grant = pool.run("a")
    pool.submit("b")
    pool.cancel("a")
    world.advance(5000)
    assert pool.ask().retry_at == ()
    assert pool.finish(grant, 0, want=1).retry_at == (("m", 1000),)
    audit(world, ["a", "b"])


# ---- changes ----------


def test_windows_that_are_set_while_tasks_run_count_these(world: World) -> None:
    pool = Pool(world)
    fill(pool, 6)
    grants = pool.take(want=3)
    pool.set_model(windows="4/1s")
    assert len(pool.ask(want=6).grants) == 1
    assert pool.finish(grants[0], want=1).retry_at == (("m", 1000),)
    audit(world, [f"t{n:04d}" for n in range(6)])


def test_a_smaller_window_starts_nothing_until_enough_requests_have_left(world: World) -> None:
    pool = Pool(world)
    pool.set_model(windows="5/1s")
    fill(pool, 9)
    for grant in pool.take(want=5):
        pool.sent(grant)
        world.advance(100)
    pool.set_model(windows="2/1s")
    assert pool.ask(want=5).retry_at == (("m", 800),), "when the fourth is over"
    world.advance(800)
    assert len(pool.take(want=5)) == 1


# ---- hard times ----------


def test_what_counts_is_forgotten_when_the_longest_window_is_over(world: World) -> None:
    pool = Pool(world)
    pool.set_model(windows="100/1s, 500/2s")
    fill(pool, 300)
    most = 0
    for _ in range(20):
        grants = pool.take(want=64)
        pool.sent(*grants)
        world.advance(1000)
        most = max(most, world.call("ZCARD", world.keys("windows", model="m")))
        for grant in grants:
            pool.finish(grant)
    assert most <= 300
    assert 0 < world.call("PTTL", world.keys("windows", model="m")) <= 86_402_000


# ---- what is told of them ----------


def test_a_place_in_line_tells_when_the_windows_have_room(world: World) -> None:
    pool = Pool(world)
    pool.set_model(windows="10/1s, 15/1m")
    for n in range(40):
        pool.submit(f"t{n:04d}", user="u")
    waits = [pool.place(f"t{n:04d}").wait_ms for n in (0, 9, 10, 14, 15, 29, 30)]
    assert waits[2] >= 1000
    assert waits[4] >= 60_000
    assert waits[6] >= 120_000
    assert all(a <= b for a, b in pairwise(waits))
    grants = pool.take(want=40)
    pool.sent(*grants)
    world.advance(600)
    assert pool.place("t0010").wait_ms >= 400
    assert 59_000 <= pool.place("t0015").wait_ms < 61_500


def test_a_task_falls_back_when_the_window_is_full_for_longer_than_it_waits(world: World) -> None:
    pool = Pool(world)
    pool.offer("m", "other")
    pool.set_model(windows="1/1m")
    pool.run("a")
    answer = pool.submit("b", fallbacks="other\t", fallback_after_ms=10_000, asked="route")
    assert isinstance(answer, Submitted)
    assert answer.model == "other"
    pool.set_model(windows="1/2s")
    kept = pool.submit("c", fallbacks="other\t", fallback_after_ms=10_000, asked="route")
    assert isinstance(kept, Submitted)
    assert kept.model == "m"


def test_a_task_that_would_expire_before_the_windows_have_room_is_rejected(world: World) -> None:
    pool = Pool(world)
    pool.set_model(windows="2/10s")
    pool.sent(*[pool.run(task) for task in ("a", "b")])
    world.advance(4000)
    refused = pool.submit("c", timeout_ms=5000)
    assert isinstance(refused, Rejection)
    assert (refused.reason, refused.waiting, refused.limit, refused.retry_ms) == (
        "too_long",
        6000,
        5000,
        1000,
    )
    for task in ("c", "d"):
        assert isinstance(pool.submit(task, timeout_ms=6001), Submitted)
    assert isinstance(pool.submit("e", timeout_ms=15_999), Rejection), "two of this user's go first"
    assert isinstance(pool.submit("e", user="another", timeout_ms=6001), Submitted), "who may be first"
    assert isinstance(pool.submit("f", timeout_ms=16_001), Submitted)
