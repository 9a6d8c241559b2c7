"""Coarse timers."""

import asyncio
from collections.abc import Callable

from fairlane.streaming.timer_wheel import TimerWheel

STEP_S = 0.02


def called(
    early: bool, work: Callable[[TimerWheel[str], float], None], seconds: float
) -> list[tuple[str, float]]:
    """What is called when, in seconds from the beginning."""

    async def run() -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        calls: list[tuple[str, float]] = []
        ticks: TimerWheel[str] = TimerWheel(
            loop, STEP_S, lambda item: calls.append((item, loop.time() - began)), early=early
        )
        work(ticks, began)
        await asyncio.sleep(seconds)
        return calls

    return asyncio.run(run())


def test_what_is_due_in_the_same_step_is_called_in_the_order_in_which_it_was_added() -> None:
    def work(ticks: TimerWheel[str], now: float) -> None:
        due = (int(now / STEP_S) + 3.5) * STEP_S
        for item in ("a", "b", "c"):
            ticks.add(due, item)

    assert [item for item, _ in called(False, work, 0.15)] == ["a", "b", "c"]


def test_what_is_taken_back_is_not_called_and_taking_it_back_again_does_nothing() -> None:
    def work(ticks: TimerWheel[str], now: float) -> None:
        slot = ticks.add(now + 0.05, "a")
        ticks.add(now + 0.05, "b")
        ticks.discard(slot, "a")
        ticks.discard(slot, "a")
        ticks.discard(slot + 1000, "a")

    assert [item for item, _ in called(False, work, 0.15)] == ["b"]


def test_late_timers_are_never_early() -> None:
    ((_, at),) = called(False, lambda ticks, now: void(ticks.add(now + 0.05, "a")), 0.2)
    assert at >= 0.049  # the loop's clock has milliseconds


def test_an_early_timer_that_is_due_is_called_at_once() -> None:
    def work(ticks: TimerWheel[str], now: float) -> None:
        ticks.add(now, "a")

    assert [item for item, _ in called(True, work, 0.05)] == ["a"]


def test_one_that_fails_leaves_the_others_to_be_called() -> None:
    async def run() -> list[str]:
        calls: list[str] = []

        def call(item: str) -> None:
            if item == "bad":
                raise ValueError
            calls.append(item)

        loop = asyncio.get_running_loop()
        ticks: TimerWheel[str] = TimerWheel(loop, STEP_S, call, early=True)
        for item in ("bad", "good"):
            ticks.add(loop.time(), item)
        await asyncio.sleep(0.05)
        return calls

    assert asyncio.run(run()) == ["good"]


def void(_: object) -> None:
    """For a call whose result does not matter."""
