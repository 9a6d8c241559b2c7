"""One timer per model that may not start a task yet."""

from typing import Any

import pytest

from fairlane.workers.server import timers
from fairlane.workers.server.timers import ModelTimers


class Timer:
    def __init__(self, at: float, call: Any, args: tuple[Any, ...]) -> None:
        self.at, self.call, self.args = at, call, args
        self.cancelled = False

    def when(self) -> float:
        return self.at

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """The part of an event loop that tells the time and keeps timers."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, at: float, call: Any, *args: Any) -> Timer:
        self.timers.append(Timer(at, call, args))
        return self.timers[-1]

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for timer in [t for t in self.timers if t.at <= self.now]:
            self.timers.remove(timer)
            if not timer.cancelled:
                timer.call(*timer.args)

    @property
    def armed(self) -> list[float]:
        return [timer.at for timer in self.timers if not timer.cancelled]


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def rung() -> list[str]:
    return []


@pytest.fixture
def subject(loop: Loop, rung: list[str]) -> ModelTimers:
    return ModelTimers(loop, rung.append)  # type: ignore[arg-type]


def test_each_model_is_woken_for_once_at_its_instant(
    subject: ModelTimers, loop: Loop, rung: list[str]
) -> None:
    subject.set([("a", 1000), ("b", 2000)])
    loop.pass_time(0.9)
    assert rung == []
    loop.pass_time(0.1)
    assert rung == ["a"]
    loop.pass_time(60)
    assert rung == ["a", "b"]
    assert len(subject) == 0


def test_the_earlier_instant_counts_and_there_is_one_timer(
    subject: ModelTimers, loop: Loop, rung: list[str]
) -> None:
    for ms in (5000, 1000, 3000):
        subject.set([("a", ms)])
    assert loop.armed == [101.0]
    loop.pass_time(1)
    assert rung == ["a"]
    subject.set([("a", 500)])
    loop.pass_time(0.5)
    assert rung == ["a", "a"]


def test_timers_are_bounded(
    subject: ModelTimers, loop: Loop, rung: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers, "MAX_MODELS", 3)
    subject.set((f"m{i}", 1000) for i in range(10))
    subject.set([("m0", 500)])
    assert sorted(loop.armed) == [100.5, 101.0, 101.0]
    loop.pass_time(1)
    assert sorted(rung) == ["m0", "m1", "m2"]


def test_after_closing_nobody_is_woken_and_nothing_is_armed(
    subject: ModelTimers, loop: Loop, rung: list[str]
) -> None:
    subject.set([("a", 1000)])
    subject.close()
    subject.set([("b", 1000)])
    assert loop.armed == []
    loop.pass_time(60)
    assert rung == []
