"""The watch on the event loop: what counts as a stall, and what is said of it."""

import asyncio
import time

import pytest
import structlog
from tests.support.serving import until

from fairlane.gateway.watch.loop import LOG_EVERY_S, STALL_S, TICK_S, WINDOW_S, Lag, LoopWatch, Summary
from fairlane.queues.metrics import LOOP_STALLS, Recorder

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("late_s", "stall"), [(0, False), (STALL_S, False), (STALL_S + 0.001, True), (60, True)]
)
def test_being_late_by_more_than_a_quarter_of_a_second_is_a_stall(late_s: float, stall: bool) -> None:
    lag = Lag(0)
    assert lag.seen(1, late_s, 0) is stall
    assert (lag.news(1) is not None) is stall


def test_the_first_stall_is_told_at_once_and_those_that_follow_together() -> None:
    lag = Lag(100)
    lag.seen(100, 0.3, 0.3)
    assert lag.news(100) == Summary(1, 300, 300, 300)
    assert lag.news(100) is None
    lag.seen(101, 0.5, 0.01)
    lag.seen(102, 0.4, 9.0)  # no more than the stall itself counts
    assert lag.news(102) is None
    assert lag.news(100 + LOG_EVERY_S) == Summary(2, 500, 900, 410)
    assert lag.news(200) is None


def test_what_was_not_told_is_told_at_the_end() -> None:
    lag = Lag(0)
    lag.seen(1, 0.3, 0)
    assert lag.news(1)
    lag.seen(2, 0.3, 0)
    assert lag.news(2) is None
    assert lag.news(2, last=True) == Summary(1, 300, 300, 0)


def test_the_longest_lag_is_forgotten_after_two_windows_and_not_before_one() -> None:
    lag = Lag(0)
    lag.seen(WINDOW_S - 1, 0.2, 0)
    assert lag.longest_s == 0.2
    lag.seen(WINDOW_S, 0.01, 0)
    assert lag.longest_s == 0.2
    lag.seen(2 * WINDOW_S, 0.02, 0)
    assert lag.longest_s == 0.02


async def test_a_loop_that_computes_for_long_is_seen_and_said() -> None:
    metrics = Recorder()
    watch = LoopWatch(metrics, "r")
    with structlog.testing.capture_logs() as lines:
        watch.start()
        await asyncio.sleep(TICK_S)  # the timer is set
        end = time.thread_time() + STALL_S + 2 * TICK_S
        while time.thread_time() < end:
            pass
        await until(lambda: watch.longest_s > STALL_S, "the stall to be seen")
        watch.close()
    assert metrics.values[LOOP_STALLS.name]["computing",] == 1
    (line,) = (line for line in lines if line["event"] == "the event loop stood still")
    assert line["log_level"] == "warning"
    assert line["replica"] == "r"
    assert STALL_S * 1000 < line["computing_ms"] <= line["longest_ms"] <= line["total_ms"]


async def test_a_loop_that_did_not_get_the_processor_is_told_apart() -> None:
    metrics = Recorder()
    watch = LoopWatch(metrics, "r")
    watch.start()
    await asyncio.sleep(TICK_S)
    time.sleep(STALL_S + 2 * TICK_S)  # noqa: ASYNC251 - this is what is watched for
    await until(lambda: watch.longest_s > STALL_S, "the stall to be seen")
    watch.close()
    assert metrics.values[LOOP_STALLS.name]["waiting",] >= 1
    assert metrics.values[LOOP_STALLS.name]["computing",] == 0


async def test_a_quiet_loop_is_not_seen() -> None:
    """On a clock that is moved by hand: here every look comes in time."""
    now, looks = 0.0, 0

    def computed() -> float:
        nonlocal now, looks
        now, looks = now + TICK_S, looks + 1
        return 0.0

    metrics = Recorder()
    watch = LoopWatch(metrics, "r", clock=lambda: now, computed=computed)
    with structlog.testing.capture_logs() as lines:
        watch.start()
        await until(lambda: looks > 6, "some looks")
        watch.close()
    assert watch.longest_s < TICK_S / 1000
    assert metrics.values[LOOP_STALLS.name] == {("computing",): 0, ("waiting",): 0}
    assert not lines


async def test_a_watch_that_is_closed_looks_no_more() -> None:
    looks = 0

    def computed() -> float:
        nonlocal looks
        looks += 1
        return 0.0

    watch = LoopWatch(Recorder(), "r", computed=computed)
    watch.start()
    await until(lambda: looks > 2, "some looks")
    watch.close()
    watch.close()
    before = looks
    await asyncio.sleep(2 * TICK_S)
    assert looks == before
