"""Throttling of a model: requests and tokens per minute, windows, and the cooldown after a 429. Each reply names the instant of
the next start: a millisecond earlier nothing starts, at it something does."""

import random
from itertools import combinations, pairwise

import pytest
from tests.contract.store.store import Grant, Store, fallbacks

pytestmark = pytest.mark.feature("pacing")


def fill(store: Store, number: int, **more: int) -> None:
    """Waiting tasks of some users."""
    for n in range(number):
        store.submit(f"t{n:04d}", user=f"u{n % 7}", **more)


def starts_exactly(store: Store, retry_at: dict[str, int]) -> list[Grant]:
    """Take at the instant that was named; a millisecond before, nothing starts."""
    ((model, ms),) = retry_at.items()
    assert ms > 0
    store.world.advance(ms - 1)
    early = store.ask(model)
    assert (early.grants, early.retry_at) == ([], {model: 1})
    store.world.advance(1)
    return store.take(model)


# ---- requests per minute ----------


@pytest.mark.parametrize("rate", [1, 7, 600, 100_000])
def test_requests_are_spread_evenly_over_the_minute(store: Store, rate: int) -> None:
    store.set_model(requests_per_minute=rate)
    fill(store, 5)
    first = store.ask(want=5)
    gap = -(-60_000 // rate)
    assert (len(first.grants), first.retry_at) == (1, {"m": gap})
    for _ in range(3):
        (grant,) = starts_exactly(store, {"m": gap})
        assert grant.granted_ms == store.world.now_ms


@pytest.mark.parametrize("rate", [13, 1200])
def test_no_window_of_any_length_holds_more_than_its_rate(store: Store, rate: int) -> None:
    chance = random.Random(rate)
    store.set_model(requests_per_minute=rate)
    fill(store, 80)
    starts: list[int] = []
    for _ in range(150):
        store.world.advance(chance.choice((0, 0.3, 1, 20, 60_000 / rate, 3 * 60_000 / rate)))
        starts += [store.world.now_us] * len(store.take(want=chance.choice((1, 5))))
    assert len(starts) > 20
    for (i, start), (j, end) in combinations(enumerate(starts), 2):
        assert j - i + 1 <= 1 + (end - start) * rate / 60e6 + 1e-6, (i, j, end - start)


def test_every_call_that_could_start_a_task_names_the_instant(store: Store) -> None:
    grants = [store.run(f"r{n}", user=f"r{n}") for n in range(3)]
    store.set_model(requests_per_minute=60)
    paced = store.accept("paced", user="p", want=1)
    assert (paced.granted, paced.retry_at) == (["paced"], {})
    later = {"m": 1000}
    assert store.accept("a", want=1).retry_at == store.accept("b", user="v").retry_at == later
    assert store.finish(grants[0], want=1).retry_at == store.finish(grants[1]).retry_at == later
    assert store.requeue(grants[2], "declined").retry_at == later
    assert store.ask(want=0).retry_at == store.ask("m", "other").retry_at == later


@pytest.mark.parametrize(
    ("before", "after", "wait"), [(1, 600, 100), (600, 1, 60_000), (60, 60, 1000), (1, None, 0)]
)
def test_a_new_rate_holds_from_the_next_start_on(
    store: Store, before: int, after: int | None, wait: int
) -> None:
    """After a start the next is due one interval of the new rate later, not of the old one."""
    store.set_model(requests_per_minute=before)
    fill(store, 3)
    store.take()
    store.set_model(requests_per_minute=after)
    asked = store.ask()
    assert (len(asked.grants), asked.retry_at) == ((0, {"m": wait}) if wait else (1, {}))


def test_the_wait_is_no_shorter_than_the_rate_before_anything_is_measured(store: Store) -> None:
    store.set_model(requests_per_minute=6)
    store.run("r")
    store.world.advance(4000)
    for n in range(3):
        store.submit(f"t{n}", user=f"u{n}")
    assert [store.place(f"t{n}").wait_ms for n in range(3)] == [6000, 16_000, 26_000]
    store.world.advance(6000)
    assert store.place("t0").wait_ms == 0


# ---- tokens per minute ----------


def test_no_sliding_minute_holds_more_tokens_than_its_limit(store: Store) -> None:
    chance = random.Random(4)
    store.set_model(tokens_per_minute=1000)
    sizes: dict[str, int] = {}
    for n in range(60):
        sizes[f"t{n}"] = tokens = chance.choice((10, 90, 300, 900))
        store.submit(f"t{n}", user=f"u{n % 5}", estimated_input=tokens - 1, max_output=1)
    spent: list[tuple[int, int]] = []
    while len(spent) < 60:
        asked = store.ask(want=3)
        spent += [(store.world.now_us, sizes[grant.task_id]) for grant in asked.grants]
        store.world.advance(chance.choice((0, 700, asked.retry_at.get("m", 100))))
    for start, _ in spent:
        assert sum(tokens for at, tokens in spent if start <= at < start + 60_000_000) <= 1000


def test_as_much_starts_at_once_as_the_minute_has_left_and_the_instant_named_is_exact(store: Store) -> None:
    store.set_model(tokens_per_minute=600)
    fill(store, 14, estimated_input=99, max_output=1)
    asked = store.ask(want=9)
    assert len(asked.grants) == 6
    assert 60_000 < asked.retry_at["m"] <= 61_000
    assert len(starts_exactly(store, asked.retry_at)) == 1
    assert len(store.take(want=9)) == 5


def test_a_request_larger_than_the_limit_starts_in_an_empty_minute(store: Store) -> None:
    store.set_model(tokens_per_minute=100)
    for task, user, size in (("small", "u", 9), ("huge", "v", 4999), ("next", "w", 9)):
        store.submit(task, user=user, estimated_input=size, max_output=1)
    assert store.taken() == ["small"]
    assert starts_exactly(store, store.ask().retry_at)[0].task_id == "huge"
    assert starts_exactly(store, store.ask().retry_at)[0].task_id == "next"


@pytest.mark.parametrize(
    ("used", "starts"), [((99, 1), 1), ((9, 1), 1), ((0, 0), 2), ((199, 1), 0), ((-1, -1), 1)]
)
def test_usage_corrects_what_the_minute_has_left_both_ways(
    store: Store, used: tuple[int, int], starts: int
) -> None:
    store.set_model(tokens_per_minute=200)
    fill(store, 4, estimated_input=99, max_output=1)
    (grant,) = store.take()
    assert len(store.finish(grant, used=used, want=3).grants) == starts


def test_a_model_learns_how_much_its_tasks_write_whatever_its_cost(store: Store) -> None:
    store.set_model(tokens_per_minute=300, cost="requests")
    for n in range(6):
        store.submit(f"t{n}", estimated_input=10, max_output=4000)
    store.finish(store.take()[0], used=(10, 90))
    store.world.advance(120_000)
    assert len(store.take(want=6)) == 3, "a hundred tokens each, as the last one"


# ---- cooldown after a 429 ----------


def test_a_429_starts_a_cooldown_of_the_model_and_costs_no_try(store: Store) -> None:
    grant = store.run("a")
    store.submit("b", user="v")
    store.renew(grant)
    with store.world.full():
        ended = store.requeue(grant, "declined", hold_ms=5000)
    assert (ended.outcome, ended.retry_at) == ("queued", {"m": 5000})
    started = {grant.task_id: grant for grant in starts_exactly(store, ended.retry_at) + store.take()}
    assert sorted(started) == ["a", "b"]
    assert (started["a"].attempt, started["a"].tries) == (2, 0)


def test_the_longest_cooldown_wins_and_unpausing_ends_it(store: Store) -> None:
    grants = [store.run(f"r{n}", user=f"r{n}") for n in range(3)]
    for grant, ms, left in zip(grants, (3000, 9000, 1000), (3000, 9000, 9000), strict=True):
        assert store.requeue(grant, "declined", hold_ms=ms).retry_at == {"m": left}
    store.set_model(concurrency=4)
    assert store.take() == [], "another change does not"
    store.set_model(paused=False)
    assert len(store.take()) == 1


def test_a_task_that_gets_a_429_again_and_again_waits_by_itself(store: Store) -> None:
    store.offer("m", hold_ms=60_000)
    store.submit("bad", user="mallory")
    for _ in range(3):
        assert store.requeue(store.take()[0], "declined", hold_ms=2000).retry_at == {"m": 2000}
        store.pass_time(2000)
    for times in (1, 2, 3):
        assert store.requeue(store.take()[0], "declined", hold_ms=2000).retry_at == {}
        store.submit(f"good{times}", user="bob")
        (other,) = store.take(want=4)
        assert other.task_id == f"good{times}", "no other task is held"
        store.finish(other)
        assert store.place("bad").wait_ms == 2000 * times
        store.world.check()
        store.pass_time(2000 * times)
    (grant,) = store.take()
    assert (grant.task_id, grant.attempt) == ("bad", 7)
    store.requeue(grant, "declined", hold_ms=300_000)
    assert store.place("bad").wait_ms == 300_000
    store.cancel("bad")


# ---- windows ----------


def seen_at_most(arrivals_us: list[int], *windows: tuple[int, int]) -> None:
    """No window, of so many requests in so many ms, holds more of these than it may."""
    instants = sorted(arrivals_us)
    for requests, ms in windows:
        for n in range(len(instants) - requests):
            assert instants[n + requests] - instants[n] >= 1000 * ms, (requests, ms, n)


def test_as_many_requests_start_together_as_a_window_holds_and_no_more_until_they_have_left(
    store: Store,
) -> None:
    store.set_model(windows="3/1s")
    fill(store, 9)
    answer = store.ask(want=9)
    assert [grant.report_sent for grant in answer.grants] == [True] * 3
    assert answer.retry_at == {}, "when they have left is not known: the report wakes"
    store.world.advance(60_000)
    assert store.take(want=9) == [], "they still count"
    assert store.sent(*answer.grants[:2]) == {"m": 1000}
    store.world.advance(999)
    assert store.ask(want=9).retry_at == {"m": 1}
    store.world.advance(1)
    assert len(store.take(want=9)) == 2


def test_reporting_a_sent_request_returns_when_the_next_one_may_start(store: Store) -> None:
    store.set_model(windows="2/1s")
    store.submit("a")
    store.submit("b")
    first, second = store.take(want=2)
    assert store.sent(first) == {}, "nothing waits"
    store.submit("c")
    store.world.advance(400)
    assert store.sent(second) == store.sent(second) == {"m": 600}, "repeated, as after a lost reply"
    assert store.sent() == {}


@pytest.mark.parametrize(("reported", "wait"), [(True, 600), (False, 1000)])
def test_a_request_counts_from_its_report_else_until_its_attempt_ends(
    store: Store, reported: bool, wait: int
) -> None:
    store.set_model(windows="1/1s")
    grant = store.run("a")
    if reported:
        store.sent(grant)
    store.submit("b")
    store.world.advance(400)
    assert store.take() == []
    assert store.finish(grant, want=1).retry_at == {"m": wait}
    store.world.advance(wait)
    assert store.taken() == ["b"]


def test_a_cancelled_task_counts_until_its_worker_has_stopped(store: Store) -> None:
    store.set_model(windows="1/1s")
    grant = store.run("a")
    store.submit("b")
    store.cancel("a")
    store.world.advance(5000)
    assert store.ask().retry_at == {}
    assert store.finish(grant, 0, want=1).retry_at == {"m": 1000}


def test_each_of_three_windows_holds(store: Store) -> None:
    store.set_model(windows="2/100ms, 3/1s, 4/1m")
    fill(store, 20)
    starts = []
    for _ in range(200):
        grants = store.take(want=5)
        starts += [store.world.now_us] * len(grants)
        store.sent(*grants)
        store.world.advance(50)
    assert [at - starts[0] for at in starts] == [0, 0, 100_000, 1_000_000], "and then the minute"
    store.submit("later", user="another")
    assert store.ask().retry_at == {"m": 60_000 - 10_000}


def test_a_take_at_the_returned_instant_gets_all_and_a_millisecond_earlier_nothing(store: Store) -> None:
    chance = random.Random(1)
    store.set_model(windows="20/1s")
    fill(store, 300)
    starts: list[int] = []
    while len(starts) < 300:
        grants = store.take(want=64)
        starts += [store.world.now_us] * len(grants)
        for grant in grants:
            store.world.advance(chance.choice((0.2, 1.5)))
            store.sent(grant)
            store.finish(grant)
        ms = store.ask(want=0).retry_at.get("m", 0)
        if ms > 1:
            store.world.advance(ms - 1)
            assert store.take() == []
            ms = 1
        store.world.advance(ms)
    seen_at_most(starts, (20, 1000))
    assert 300 / ((starts[-1] - starts[0]) / 1e6) > 19.5, "hardly anything of the windows is left unused"


def test_windows_that_are_set_or_changed_while_tasks_run_count_these(store: Store) -> None:
    fill(store, 9)
    grants = store.take(want=3)
    store.set_model(windows="4/1s")
    assert len(store.take(want=6)) == 1
    assert store.finish(grants[0], want=1).retry_at == {"m": 1000}
    store.set_model(windows="2/1s")
    for grant in grants[1:]:
        store.world.advance(100)
        store.sent(grant)
    assert store.ask(want=5).retry_at == {"m": 1000}, "the fourth has not left, and one more may start"


def test_a_position_reflects_when_the_windows_have_room(store: Store) -> None:
    store.set_model(windows="10/1s, 15/1m")
    for n in range(40):
        store.submit(f"t{n:04d}", user="u")
    waits = [store.place(f"t{n:04d}").wait_ms for n in (0, 9, 10, 14, 15, 29, 30)]
    assert (waits[2] >= 1000, waits[4] >= 60_000, waits[6] >= 120_000) == (True, True, True)
    assert all(a <= b for a, b in pairwise(waits))
    store.sent(*store.take(want=40))
    store.world.advance(600)
    assert store.place("t0010").wait_ms >= 400
    assert 59_000 <= store.place("t0015").wait_ms < 61_500


@pytest.mark.feature("fallbacks")
def test_a_task_falls_back_when_the_window_is_full_for_longer_than_it_waits(store: Store) -> None:
    store.offer("m", "other")
    falls = {"fallbacks": fallbacks("other"), "fallback_after_ms": 10_000, "asked": "route"}
    store.set_model(windows="1/1m")
    store.run("a")
    assert store.accept("b", **falls).model == "other"
    store.set_model(windows="1/2s")
    assert store.accept("c", **falls).model == "m"


def test_a_task_that_would_expire_before_the_windows_have_room_is_rejected(store: Store) -> None:
    store.set_model(windows="2/10s")
    store.sent(*[store.run(task) for task in ("a", "b")])
    store.world.advance(4000)
    answer = store.reject("c", timeout_ms=5000)
    assert (answer.reason, answer.waiting, answer.limit, answer.retry_ms) == ("too_long", 6000, 5000, 1000)
    for task in ("c", "d"):
        store.accept(task, timeout_ms=6001)
    store.reject("e", timeout_ms=15_999)
    store.accept("e", user="another", timeout_ms=6001)
    store.accept("f", timeout_ms=16_001)
