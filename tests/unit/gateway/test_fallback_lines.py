"""The lines that tell of tasks that went on to another model."""

from typing import Any

from structlog.testing import capture_logs

from fairlane.gateway.watch.failed import TellingRecorder
from fairlane.gateway.watch.fallbacks import Fallbacks
from fairlane.queues.metrics import FALLBACKS


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def told(fallbacks: Fallbacks, *fell: tuple[str, str, str, int]) -> list[Any]:
    with capture_logs() as logs:
        for each in fell:
            fallbacks.fell(*each)
        fallbacks.add_up()
    return logs


def line(to: str, since_s: int, **causes: int) -> dict[str, Any]:
    told = {"model": "a", "to": to, "tasks": sum(causes.values()), "causes": causes, "since_s": since_s}
    return {"log_level": "warning", "event": "tasks go on to another model", **told}


def test_the_first_is_told_at_once_and_thousands_in_a_line_a_minute() -> None:
    clock = Clock()
    fallbacks = Fallbacks(clock)
    assert told(fallbacks, ("a", "b", "failed", 1), ("a", "c", "unavailable", 100)) == [
        line("b", 0, failed=1),
        line("c", 0, unavailable=100),
    ]
    for _ in range(5):
        clock.now += 11
        assert told(fallbacks, *[("a", "b", "failed", 1)] * 1000, ("a", "b", "unavailable", 7)) == []
    clock.now += 5
    end = {"log_level": "info", "event": "no more tasks go on to another model", "model": "a", "to": "c"}
    assert told(fallbacks) == [line("b", 60, failed=5000, unavailable=35), {**end, "tasks": 100}]
    clock.now += 60
    assert told(fallbacks) == [{**end, "to": "b", "tasks": 5036}]
    clock.now += 60
    assert told(fallbacks) == []
    assert told(fallbacks, ("a", "b", "failed", 1)) == [line("b", 0, failed=1)], "it begins anew"


def test_the_process_counts_and_tells() -> None:
    metrics = TellingRecorder(["a", "b"])
    with capture_logs() as logs:
        metrics.fell("a", "b", "unavailable", 3)
    assert metrics.values[FALLBACKS.name] == {("a", "b", "unavailable"): 3}
    assert logs == [line("b", 0, unavailable=3)]
