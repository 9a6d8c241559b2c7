"""What commands say of breakers."""

from typing import Any

import pytest

from fairlane.gateway.process.limits_cli import _condition
from fairlane.gateway.process.status import ModelRow, State, UpstreamRow, breaker_condition, print_state
from fairlane.gateway.process.tables import seconds

NOW = 10 * 86_400_000.0
WELL = UpstreamRow("gpu-2", 1, "closed")
FAILS = UpstreamRow(
    "gpu-1", 1, "open", since=NOW - 40_000, until=NOW + 7_000, openings=3, why="UPSTREAM_ERROR"
)


def model(*upstreams: UpstreamRow, **more: Any) -> ModelRow:
    return ModelRow("m", 0, 0, 1, 4, upstreams=list(upstreams), **more)


def test_what_is_still_to_come_is_not_taken_for_what_has_been() -> None:
    assert breaker_condition(FAILS, NOW) == "open, probed in 7s"


def test_a_breaker_that_nobody_probes_says_what_it_waits_for() -> None:
    assert (
        breaker_condition(UpstreamRow("gpu-1", 1, "half_open"), NOW) == "half-open, the next tasks probe it"
    )
    assert breaker_condition(UpstreamRow("gpu-1", 1, "half_open", probes=2), NOW) == "half-open, 2 probing"


def test_status_says_since_when_a_breaker_is_not_as_it_should_be(capsys: pytest.CaptureFixture[str]) -> None:
    print_state(State([], [model(FAILS, WELL)], [], {}, now=NOW))
    said = capsys.readouterr().out
    assert "the breaker of m through gpu-1 is open, probed in 7s, begun 40.0 s ago: UPSTREAM_ERROR" in said
    assert "through gpu-2" not in said


def test_status_tells_of_a_breaker_that_somebody_keeps_closed_since_last_week(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept = UpstreamRow("gpu-1", 1, "closed", forced=True, since=NOW - 7 * 86_400_000)
    print_state(State([], [model(kept)], [], {}, now=NOW))
    said = capsys.readouterr().out
    assert "the breaker of m through gpu-1 is closed, by an operator, begun 7.0 days ago" in said


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (model(FAILS), "its breaker is open"),
        (model(UpstreamRow("gpu-1", 1, "half_open", probes=1)), "its breaker is half-open"),
        (model(FAILS, WELL), "1 of 2 breakers open"),
        (model(WELL), ""),
        (model(FAILS, paused=True), "paused"),
    ],
)
def test_the_list_of_models_says_that_breakers_are_why_nothing_starts(row: ModelRow, said: str) -> None:
    assert _condition(row, NOW) == said


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (900, "0.9 s"),
        (90_000, "1.5 min"),
        (7_100_000, "118.3 min"),
        (10_800_000, "3.0 h"),
        (432_000_000, "5.0 days"),
    ],
)
def test_a_duration_has_a_unit_that_people_read(ms: float, said: str) -> None:
    assert seconds(ms) == said
