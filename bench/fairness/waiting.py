"""How honest the estimated wait is: estimates at submission against the waits."""

from collections.abc import Iterable
from dataclasses import dataclass

from bench.fairness.measures import percentile
from bench.fairness.simulator import Run


@dataclass(frozen=True)
class Honesty:
    """Over all tasks with an estimate that got a slot."""

    told: int
    within: float
    """Part of them (0…1) whose wait lay within the estimated range."""
    ratio: float
    """Median of estimate / wait, of those that waited a second or more; so are the next two."""
    error: float
    """Median of |estimate - wait| / wait."""
    width: float
    """Median of (high - low) / waited."""


def honesty(runs: Iterable[Run]) -> Honesty:
    """Compare the estimates with the waits."""
    pairs = [
        (task.estimate, task.wait_us / 1000)
        for run in runs
        for task in run.granted()
        if task.estimate is not None and task.estimate.wait_ms >= 0
    ]
    long = [(told, waited) for told, waited in pairs if waited >= 1000]
    within = sum(told.low_ms <= waited <= told.high_ms for told, waited in pairs)

    def median(values: Iterable[float]) -> float:
        return percentile(list(values), 0.5) if long else 0.0

    return Honesty(
        len(pairs),
        within / max(len(pairs), 1),
        median(told.wait_ms / waited for told, waited in long),
        median(abs(told.wait_ms - waited) / waited for told, waited in long),
        median((told.high_ms - told.low_ms) / waited for told, waited in long),
    )
