"""What a benchmark finds, beside what it should find. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import msgspec


@dataclass(frozen=True)
class Target:
    """What a figure should be: `reach` for now, `then` later. `more`: larger is better."""

    reach: float
    then: float | None = None
    more: bool = False

    def reached(self, value: float) -> bool:
        """Whether `value` is as good as `reach` asks."""
        return value >= self.reach if self.more else value <= self.reach


TARGETS = {
    "sync.gateway_cpu_ms_per_task": Target(0.3, 0.12),
    "streams_200.gateway_cpu_ms_per_1k_tokens": Target(50, 25),
    "streams_200.redis_writes_per_token": Target(0.6),
    "streams_50.first_token_added_p50_ms": Target(1, 0.6),
    "streams_50.first_token_added_p99_ms": Target(5, 1.5),
    "tokens_200k.tokens_per_s": Target(40_000, 120_000, more=True),
    "tokens_200k_batched.tokens_per_s": Target(40_000, 120_000, more=True),
    "async.tasks_per_s": Target(2_500, 6_000, more=True),
    "idle_chat.kib_per_stream": Target(12),
    "idle_native.kib_per_stream": Target(12),
    "idle_events.kib_per_stream": Target(12),
}
"""By scenario and figure."""


class Figure(msgspec.Struct):
    """One figure: the median of its rounds, the least and the greatest of them, and its target."""

    name: str
    unit: str
    value: float
    low: float
    high: float
    rounds: int
    reach: float | None = None
    then: float | None = None
    reached: bool | None = None


class Outcome(msgspec.Struct):
    """One scenario. `errors` are calls or streams that failed; with any, its figures count for nothing."""

    scenario: str
    about: str
    figures: list[Figure]
    errors: int = 0
    error: str = ""
    profile: list[str] = []


def figure(scenario: str, name: str, unit: str, values: Sequence[float]) -> Figure:
    """The figure of several rounds."""
    value = median(values)
    target = TARGETS.get(f"{scenario}.{name}")
    made = Figure(name, unit, value, min(values), max(values), len(values))
    if target is not None:
        made.reach, made.then, made.reached = target.reach, target.then, target.reached(value)
    return made
