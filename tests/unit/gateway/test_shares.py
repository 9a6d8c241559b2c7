"""The share of service over the last minutes, with a clock that is moved by hand."""

from typing import Any, cast

import pytest

from fairlane.gateway.shares import WINDOW_S, Shares
from fairlane.queues.keys import Keys


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def shares(clock: Clock) -> Shares:
    return Shares(cast(Any, None), Keys("p:"), clock)


def test_before_anything_is_served_there_are_no_shares() -> None:
    made = shares(Clock())
    assert made.since({}) == {}
    made.remember({"a": 100.0})
    assert made.since({"a": 100.0}) == {}


def test_shares_are_of_what_was_served_since_the_oldest_reading() -> None:
    made = shares(Clock())
    made.remember({"a": 1000.0, "b": 1000.0})
    assert made.since({"a": 1300.0, "b": 1100.0, "new": 400.0}) == {"a": 0.375, "b": 0.125, "new": 0.5}


def test_a_refund_is_no_service() -> None:
    made = shares(Clock())
    made.remember({"a": 1000.0, "b": 1000.0})
    assert made.since({"a": 900.0, "b": 1100.0}) == {"a": 0.0, "b": 1.0}


def test_what_is_older_than_the_window_is_forgotten() -> None:
    clock = Clock()
    made = shares(clock)
    made.remember({"a": 0.0, "b": 0.0})
    clock.now = WINDOW_S / 2
    made.remember({"a": 900.0, "b": 0.0})
    clock.now = WINDOW_S
    assert made.since({"a": 900.0, "b": 100.0}) == {"a": 0.9, "b": 0.1}
    clock.now = 1.5 * WINDOW_S
    made.remember({"a": 900.0, "b": 100.0})
    assert made.since({"a": 900.0, "b": 100.0}) == {"a": 0.0, "b": 1.0}
    clock.now = 3 * WINDOW_S
    made.remember({"a": 900.0, "b": 100.0})
    assert made.since({"a": 1000.0, "b": 200.0}) == pytest.approx({"a": 0.5, "b": 0.5})
