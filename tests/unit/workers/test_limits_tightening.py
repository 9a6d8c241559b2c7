"""Limits that follow a model's queue: the formula, its steps, and that a limit cannot tighten itself to the bottom."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.workers.server.limits.answers import MAX_BIN, Answers, bin_of, edge
from fairlane.workers.server.limits.tightening import (
    FEWEST_ANSWERS,
    STEP,
    TOLERANCE,
    Bounds,
    Ramp,
    Why,
    follow,
    target,
)

BOUNDS, RAMP = Bounds(2000, 30_000), Ramp(2000, 20_000)


def took(ms: float, number: int = 100) -> Answers:
    return Answers({bin_of(ms): number})


QUICK, NONE = took(100), Answers({})


@pytest.mark.parametrize(
    ("stopped", "wait_ms", "answers", "ms", "why"),
    [
        (None, 0, QUICK, 30_000, Why.SHORT_QUEUE),
        (None, 2000, QUICK, 30_000, Why.SHORT_QUEUE),
        (None, 11_000, QUICK, 16_000, Why.LONG_QUEUE),
        (None, 20_000, QUICK, 2000, Why.LONG_QUEUE),
        (None, 10**9, QUICK, 2000, Why.LONG_QUEUE),
        (None, 10**9, NONE, 30_000, Why.FEW_ANSWERS),
        (None, 10**9, took(100, FEWEST_ANSWERS - 1), 30_000, Why.FEW_ANSWERS),
        (None, 10**9, took(100, FEWEST_ANSWERS), 2000, Why.LONG_QUEUE),
        (None, 10**9, took(60_000), 30_000, Why.ANSWERS),
        (None, 10**9, took(4000), TOLERANCE * edge(bin_of(4000)), Why.ANSWERS),
        (None, 11_000, took(4000), 16_000, Why.LONG_QUEUE),
        (None, None, QUICK, 30_000, Why.UNKNOWN),
        *(
            (why, 10**9, QUICK, 30_000, why)
            for why in (Why.PAUSED, Why.COOLDOWN, Why.THROTTLED, Why.NO_WORKER)
        ),
    ],
)
def test_a_limit_goes_where_the_queue_and_the_answers_allow(
    stopped: Why | None, wait_ms: float | None, answers: Answers, ms: float, why: Why
) -> None:
    assert target(BOUNDS, RAMP, stopped, wait_ms, answers) == (pytest.approx(ms), why)


waits = st.one_of(st.none(), st.floats(0, 1e9))
bounds = st.tuples(st.integers(1, 10**9), st.integers(0, 10**9)).map(lambda two: Bounds(two[0], sum(two)))
ramps = st.tuples(st.integers(0, 10**9), st.integers(1, 10**9)).map(lambda two: Ramp(two[0], sum(two)))
counts = st.dictionaries(st.integers(0, MAX_BIN), st.integers(1, 10**6)).map(Answers)
stops = st.sampled_from([None, Why.PAUSED, Why.COOLDOWN, Why.THROTTLED, Why.NO_WORKER])


@given(bounds, ramps, stops, waits, counts, st.floats(0, 1))
def test_a_limit_stays_between_its_bounds_and_moves_by_a_fifth_at_most(
    bound: Bounds, ramp: Ramp, stopped: Why | None, wait: float | None, answers: Answers, part: float
) -> None:
    ms = bound.clamp(bound.least + part * (bound.most - bound.least))
    after = follow(ms, bound, ramp, stopped, wait, answers)
    assert bound.least <= after.target_ms <= bound.most
    assert min(ms, after.target_ms) <= after.ms <= max(ms, after.target_ms)
    assert abs(after.ms - ms) <= STEP * ms * (1 + 1e-9)


@given(bounds, ramps, st.floats(0, 1e9), st.floats(0, 1e9), counts)
def test_a_longer_queue_never_relaxes_a_limit(
    bound: Bounds, ramp: Ramp, wait: float, more: float, answers: Answers
) -> None:
    (short, _), (long, _) = (target(bound, ramp, None, ms, answers) for ms in (wait, wait + more))
    assert long <= short


@given(bounds, ramps, st.floats(0, 1e9), st.integers(0, MAX_BIN), st.integers(50, 10**6))
def test_a_limit_never_goes_below_what_answers_take(
    bound: Bounds, ramp: Ramp, wait: float, number: int, answers: int
) -> None:
    ms, _ = target(bound, ramp, None, wait, Answers({number: answers}))
    assert ms >= min(bound.most, TOLERANCE * edge(number))


@pytest.mark.parametrize("median_ms", [50, 1500, 6000, 100_000])
def test_a_tightened_limit_does_not_tighten_itself_further(median_ms: float) -> None:
    """Answers vary widely, the queue is as long as can be, and the first answers that are known are far too quick.

    It comes to rest where it ends one in a hundred, at most about; or it is at its most.
    """
    rng, ms, windows = random.Random(7), float(BOUNDS.most), [took(10, 50)]
    for _ in range(400):
        ended: dict[int, int] = {}
        for _ in range(40):
            number = bin_of(
                min(rng.lognormvariate(0, 0.8) * median_ms, ms)
            )  # one that it ended counts as long as it is
            ended[number] = ended.get(number, 0) + 1
        windows = [*windows[-200:], Answers(ended)]
        known: dict[int, int] = {}
        for window in windows:
            for number, count in window.bins.items():
                known[number] = known.get(number, 0) + count
        ms = follow(ms, BOUNDS, RAMP, None, 60_000, Answers(known)).ms
    over = sum(rng.lognormvariate(0, 0.8) * median_ms > ms for _ in range(20_000)) / 20_000
    assert over < 0.012 or ms == BOUNDS.most
    if median_ms == 50:
        assert ms == BOUNDS.least


@given(st.floats(0, 1e12))
def test_a_bin_holds_the_times_up_to_its_edge(ms: float) -> None:
    number = bin_of(ms)
    assert 0 <= number <= MAX_BIN
    if 0 < number < MAX_BIN:
        assert edge(number - 1) * (1 - 1e-9) <= ms <= edge(number) * (1 + 1e-9)


def test_all_but_one_in_a_hundred_took_no_longer() -> None:
    assert NONE.p99_ms is None
    assert Answers({3: 49, 7: 1}).p99_ms == edge(7)
    assert Answers({3: 99, 7: 1}).p99_ms == edge(3)
    assert Answers({3: 98, 7: 2}).p99_ms == edge(7)
