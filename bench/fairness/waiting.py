"""How honest the estimated wait is: what clients were told when they submitted, against what they waited."""

from collections.abc import Iterable
from dataclasses import dataclass

from bench.fairness.measures import percentile
from bench.fairness.simulator import Run


@dataclass(frozen=True)
class Honesty:
    """Over all tasks that were told of a wait and got a slot."""

    told: int
    within: float
    """Part of them (0…1) whose wait lay within the range they were told."""
    error: float
    """Median of |told - waited| / waited, of those that waited a second or more."""


def honesty(runs: Iterable[Run]) -> Honesty:
    """Compare what was told with what came."""
    pairs = [
        (task.estimate, task.wait_us / 1000)
        for run in runs
        for task in run.granted()
        if task.estimate is not None
    ]
    errors = [abs(told.wait_ms - waited) / waited for told, waited in pairs if waited >= 1000]
    within = sum(told.low_ms <= waited <= told.high_ms for told, waited in pairs)
    return Honesty(len(pairs), within / max(len(pairs), 1), percentile(errors, 0.5) if errors else 0.0)
