"""How the two sides of a change compare."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fairlane.gateway.records.comparison import Sums, Times, compared, percentiles, times_of


def test_times_are_told_of_what_came_to_them() -> None:
    assert times_of((100, 150, 180, 300, "completed")) == Times(50, 80, 200)
    assert times_of((100, 150, None, 300, "failed")) == Times(50, None, -1)
    assert times_of((100, None, None, 300, "cancelled")) == Times(200, None, -1)
    assert times_of((100, 90, 80, 70, "completed")) == Times(0, 0, 0)  # the clock went back


@given(st.lists(st.integers(0, 10**6), min_size=1))
def test_percentiles_are_values_that_came(values: list[int]) -> None:
    told = percentiles(values)
    assert told is not None
    assert told["p50"] in values
    assert told["p95"] in values
    assert sum(value <= told["p50"] for value in values) * 2 >= len(values)
    assert sum(value <= told["p95"] for value in values) * 20 >= len(values) * 19


def test_sides_are_told_by_task_and_nothing_of_none() -> None:
    new = Sums(tasks=40, completed=30, failed=8, cancelled=2, moved=3, input=400, output=100, cost=80_000_000)
    new.codes |= {"TIMEOUT": 2, "UPSTREAM_ERROR": 6}
    times = {"old": [], "new": [Times(1, 2, 3), Times(3, None, -1)]}
    told: dict[str, Any] = compared({"old": Sums(), "new": new}, times)
    assert not told["enough"]
    assert told["old"]["costPerTask"] is told["old"]["waitMs"] is told["old"]["inputTokensPerTask"] is None
    side = told["new"]
    assert (side["inputTokensPerTask"], side["outputTokensPerTask"], side["costPerTask"]) == (10.0, 2.5, 2)
    assert (side["refused"], side["refusals"]) == (0, [])
    assert [failure["code"] for failure in side["failures"]] == ["UPSTREAM_ERROR", "TIMEOUT"]
    assert (side["waitMs"], side["durationMs"], side["sampled"]) == (
        {"p50": 1, "p95": 3},
        {"p50": 3, "p95": 3},
        2,
    )


def test_a_side_of_which_all_are_refused_says_something() -> None:
    new = Sums()
    new.refused |= {"QUEUE_FULL": 1, "MODEL_UNAVAILABLE": 29}
    told = compared({"old": Sums(tasks=30, completed=30), "new": new}, {"old": [], "new": []})
    assert told["enough"]
    assert told["new"]["refused"] == 30
    assert [row["code"] for row in told["new"]["refusals"]] == ["MODEL_UNAVAILABLE", "QUEUE_FULL"]
