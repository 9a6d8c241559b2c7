"""Requests and tokens per minute pace a model at its provider's rate, and a provider's 429 holds it. The script names the
instant of the next start: a millisecond earlier nothing starts, at it something does."""

import random
from itertools import combinations

import pytest
from tests.contract.store.store import World
from tests.support.audit import audit
from tests.support.pool import Pool

from fairlane.queues.tasks import Grant, Submitted


def fill(pool: Pool, number: int, **more: int) -> None:
    for n in range(number):
        pool.submit(f"t{n:04d}", user=f"u{n % 7}", **more)


def starts_exactly(pool: Pool, later: tuple[tuple[str, int], ...]) -> list[Grant]:
    """What a replica is given that asks at the instant named; nothing is there to be had a millisecond before."""
    ((model, ms),) = later
    assert ms > 0
    pool.world.advance(ms - 1)
    early = pool.ask(model)
    assert (early.grants, early.retry_at) == ([], ((model, 1),))
    pool.world.advance(1)
    return pool.take(model)


@pytest.mark.parametrize("rate", [1, 7, 60, 600, 100_000])
def test_requests_are_spread_evenly_over_the_minute(world: World, rate: int) -> None:
    pool = Pool(world)
    pool.set_model(requests_per_minute=rate)
    fill(pool, 5)
    first = pool.ask(want=5)
    assert len(first.grants) == 1
    gap = -(-60_000 // rate)
    assert first.retry_at == (("m", gap),)
    for _ in range(3):
        (grant,) = starts_exactly(pool, (("m", gap),))
        assert grant.granted_ms == world.now_ms


def windows_hold(instants_us: list[int], rate: int) -> None:
    """No window of any length w holds more than 1 + w x rate starts."""
    for (i, start), (j, end) in combinations(enumerate(instants_us), 2):
        assert j - i + 1 <= 1 + (end - start) * rate / 60e6 + 1e-6, (i, j, end - start)


@pytest.mark.parametrize("rate", [13, 90, 1200])
def test_no_window_of_any_length_holds_more_than_its_rate(world: World, rate: int) -> None:
    pool, chance = Pool(world), random.Random(rate)
    pool.set_model(requests_per_minute=rate)
    fill(pool, 80)
    starts: list[int] = []
    for _ in range(150):
        world.advance(chance.choice((0, 0.3, 1, 20, 60_000 / rate, 3 * 60_000 / rate)))
        starts += [world.now_us] * len(pool.take(want=chance.choice((1, 5))))
    assert len(starts) > 20
    windows_hold(starts, rate)


def test_a_submit_that_could_start_immediately_is_throttled_too_and_returns_when(world: World) -> None:
    pool = Pool(world)
    pool.set_model(requests_per_minute=60)
    first, second = pool.submit("a", want=1), pool.submit("b", want=1, user="v")
    assert isinstance(first, Submitted)
    assert isinstance(second, Submitted)
    assert (len(first.grants), second.grants, second.retry_at) == (1, [], (("m", 1000),))
    third = pool.submit("c", user="w")
    assert isinstance(third, Submitted)
    assert third.retry_at == (("m", 1000),), "also where nobody asks to take"


def test_every_call_that_could_start_a_task_names_the_instant(world: World) -> None:
    pool = Pool(world)
    grants = [pool.run(f"r{n}", user=f"r{n}") for n in range(3)]
    pool.set_model(requests_per_minute=60)
    grants.append(pool.run("paced", user="p"))
    fill(pool, 3)
    assert pool.finish(grants[0], want=1).retry_at == (("m", 1000),)
    assert pool.finish(grants[1], want=0).retry_at == (("m", 1000),)
    assert pool.requeue(grants[2], "declined").retry_at == (("m", 1000),)
    assert pool.ask(want=0).retry_at == (("m", 1000),), "a wake-up handed on"
    assert pool.ask("m", "other").retry_at == (("m", 1000),)


@pytest.mark.parametrize(
    ("before", "after", "wait"), [(1, 600, 100), (600, 1, 60_000), (60, 60, 1000), (1, None, 0)]
)
def test_a_new_rate_holds_from_the_next_start_on(
    world: World, before: int, after: int | None, wait: int
) -> None:
    """Right behind a start the next is due one interval of the new rate later, not of the old one."""
    pool = Pool(world)
    pool.set_model(requests_per_minute=before)
    fill(pool, 3)
    pool.take()
    pool.set_model(requests_per_minute=after)
    asked = pool.ask()
    assert (len(asked.grants), asked.retry_at) == ((0, (("m", wait),)) if wait else (1, ()))


# ---- tokens ----------


def minute_holds(spent: list[tuple[int, int]], limit: int) -> None:
    """No sliding minute holds more tokens than the limit."""
    for start, _ in spent:
        total = sum(tokens for at, tokens in spent if start <= at < start + 60_000_000)
        assert total <= limit, (start, total)


def test_no_sliding_minute_holds_more_tokens_than_its_limit(world: World) -> None:
    pool, chance = Pool(world), random.Random(4)
    pool.set_model(tokens_per_minute=1000)
    sizes: dict[str, int] = {}
    for n in range(60):
        tokens = chance.choice((10, 90, 300, 900))
        sizes[f"t{n}"] = tokens
        pool.submit(f"t{n}", user=f"u{n % 5}", estimated_input=tokens - 1, max_output=1)
    spent: list[tuple[int, int]] = []
    while len(spent) < 60:
        asked = pool.ask(want=3)
        spent += [(world.now_us, sizes[grant.task_id]) for grant in asked.grants]
        world.advance(chance.choice((0, 700, asked.retry_at[0][1] if asked.retry_at else 100)))
    minute_holds(spent, 1000)


def test_the_instant_named_for_tokens_is_exact(world: World) -> None:
    pool = Pool(world)
    pool.set_model(tokens_per_minute=600)
    fill(pool, 4, estimated_input=99, max_output=1)
    asked = pool.ask()
    assert asked.retry_at == (("m", 10_000),)
    for _ in range(3):
        asked = pool.ask()
        assert len(starts_exactly(pool, asked.retry_at)) == 1


def test_a_request_larger_than_the_limit_starts_in_an_empty_minute(world: World) -> None:
    pool = Pool(world)
    pool.set_model(tokens_per_minute=100)
    pool.submit("small", user="u", estimated_input=9, max_output=1)
    pool.take()
    pool.submit("huge", user="v", estimated_input=4999, max_output=1)
    pool.submit("next", user="w", estimated_input=9, max_output=1)
    asked = pool.ask()
    assert starts_exactly(pool, asked.retry_at)[0].task_id == "huge"
    asked = pool.ask()
    assert asked.retry_at == (("m", 50 * 60_000),)


@pytest.mark.parametrize(
    ("used", "wait"),
    [((99, 1), 10_000), ((9, 1), 1000), ((0, 0), 0), ((999, 1), 100_000), ((-1, -1), 10_000)],
)
def test_what_was_used_corrects_the_pace_both_ways(world: World, used: tuple[int, int], wait: int) -> None:
    pool = Pool(world)
    pool.set_model(tokens_per_minute=600)
    fill(pool, 2, estimated_input=99, max_output=1)
    (grant,) = pool.take()
    finished = pool.finish(grant, used=used, want=1)
    if wait:
        assert finished.retry_at == (("m", wait),)
    else:
        assert len(finished.grants) == 1


def test_a_paced_model_learns_how_much_its_tasks_write_whatever_its_cost(world: World) -> None:
    pool = Pool(world)
    pool.set_model(tokens_per_minute=6000, cost="requests")
    for n in range(6):
        pool.submit(f"t{n}", estimated_input=10, max_output=4000)
    (grant,) = pool.take()
    pool.finish(grant, used=(10, 90))
    world.advance(120_000)
    pool.take()
    assert pool.ask().retry_at == (("m", 1000),), "a hundred tokens, as the last one"


# ---- hold ----------


def test_a_429_starts_a_cooldown_of_the_model_and_costs_no_try(world: World) -> None:
    pool = Pool(world)
    grant = pool.run("a")
    pool.submit("b", user="v")
    pool.renew(grant)
    ended = pool.requeue(grant, "declined", hold_ms=5000)
    assert (ended.outcome, ended.retry_at) == ("queued", (("m", 5000),))
    started = {grant.task_id: grant for grant in starts_exactly(pool, ended.retry_at) + pool.take()}
    assert sorted(started) == ["a", "b"]
    assert (started["a"].attempt, started["a"].tries) == (2, 0)
    audit(world, "ab")


def test_the_longest_cooldown_wins(world: World) -> None:
    pool = Pool(world)
    grants = [pool.run(f"r{n}", user=f"r{n}") for n in range(3)]
    assert pool.requeue(grants[0], "declined", hold_ms=3000).retry_at == (("m", 3000),)
    assert pool.requeue(grants[1], "declined", hold_ms=9000).retry_at == (("m", 9000),)
    assert pool.requeue(grants[2], "declined", hold_ms=1000).retry_at == (("m", 9000),)


def test_unpausing_a_model_ends_its_cooldown(world: World) -> None:
    pool = Pool(world)
    pool.requeue(pool.run("a"), "declined", hold_ms=60_000)
    pool.set_model(concurrency=4)
    assert pool.take() == [], "another change does not"
    pool.set_model(paused=False)
    assert pool.taken() == ["a"]


def test_a_task_that_gets_a_429_again_and_again_waits_by_itself(world: World) -> None:
    pool = Pool(world)
    pool.offer("m", hold_ms=60_000)
    pool.submit("bad", user="mallory")
    for _ in range(3):
        (grant,) = pool.take()
        assert pool.requeue(grant, "declined", hold_ms=2000).retry_at == (("m", 2000),)
        pool.pass_time(2000)
    for times in (1, 2, 3):
        (grant,) = pool.take()
        assert pool.requeue(grant, "declined", hold_ms=2000).retry_at == ()
        pool.submit(f"good{times}", user="bob")
        (other,) = pool.take(want=4)
        assert other.task_id == f"good{times}", "nobody else is held"
        pool.finish(other)
        assert pool.place("bad").wait_ms == 2000 * times
        audit(world, ["bad", *(f"good{number}" for number in range(1, times + 1))])
        pool.pass_time(2000 * times)
    (grant,) = pool.take()
    assert (grant.task_id, grant.attempt) == ("bad", 7)
    pool.requeue(grant, "declined", hold_ms=300_000)
    assert pool.place("bad").wait_ms == 300_000
    pool.cancel("bad")
    audit(world, ["bad", "good1", "good2", "good3"])
