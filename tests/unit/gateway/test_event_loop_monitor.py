"""The monitor of the event loop: which lag is a stall, and how it is counted and logged."""

import asyncio
import time
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.support.serving import until

from fairlane.gateway.watch.event_loop import STALL_S, TICK_S, WINDOW_S, EventLoopMonitor
from fairlane.queues.metrics import LOOP_STALLS, Recorder

pytestmark = pytest.mark.anyio


def lines(*checks: tuple[float, float, float]) -> list[Any]:
    now = 0.0
    monitor = EventLoopMonitor(Recorder(), "r", clock=lambda: now)
    with capture_logs() as logs:
        for now, late_s, computed_s in checks:
            monitor.check(now, late_s, computed_s)
    return [(line["late_ms"], line["computing_ms"], line.get("and_others_before", 0)) for line in logs]


@pytest.mark.parametrize(
    ("late_s", "stall"), [(0, False), (STALL_S, False), (STALL_S + 0.001, True), (60, True)]
)
def test_a_lag_above_a_quarter_of_a_second_is_a_stall(late_s: float, stall: bool) -> None:
    assert bool(lines((1, late_s, 0))) is stall


def test_the_first_stall_is_logged_and_those_soon_after_are_counted() -> None:
    stalls = [(100, 0.3, 9.0), (101, 0.5, 0.01), (102, 0.4, 0.4), (111, 0.3, 0.2)]
    assert lines(*stalls) == [(300, 300, 0), (300, 200, 2)]


def test_the_longest_lag_is_kept_for_one_to_two_windows() -> None:
    monitor = EventLoopMonitor(Recorder(), "r", clock=lambda: 0.0)
    seen = []
    for now, late_s in ((WINDOW_S - 1, 0.2), (WINDOW_S, 0.01), (2 * WINDOW_S, 0.02)):
        monitor.check(now, late_s, 0)
        seen.append(monitor.longest_s)
    assert seen == [0.2, 0.2, 0.02]


@pytest.mark.parametrize("cause", ["computing", "waiting"])
async def test_a_blocked_loop_is_counted_by_its_cause(cause: str) -> None:
    metrics = Recorder()
    monitor = EventLoopMonitor(metrics, "r")
    monitor.start()
    await asyncio.sleep(TICK_S)  # the timer is set
    if cause == "waiting":
        time.sleep(STALL_S + 2 * TICK_S)  # noqa: ASYNC251 - the monitor is to see this
    else:
        end = time.thread_time() + STALL_S + 2 * TICK_S
        while time.thread_time() < end:
            pass
    await until(lambda: monitor.longest_s > STALL_S, "the stall to be seen")
    monitor.close()
    monitor.close()
    assert metrics.values[LOOP_STALLS.name][(cause,)] >= 1
