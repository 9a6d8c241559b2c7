"""Figures of a benchmark and their targets. Pure."""

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
    "sync.cpu_per_task_to_yardstick": Target(1.2, 0.7),
    "sync.latency_p99_to_p50": Target(2),
    "sync_openai.cpu_per_task_to_yardstick": Target(1.2, 0.7),
    "sync_openai.latency_p99_to_p50": Target(2),
    "accounts.cpu_per_task_to_open": Target(1.1),
    "accounts.redis_cpu_per_task_to_open": Target(1.25),
    "sync_v1_1600.worker_kib": Target(75),
    "streams_200.cpu_per_token_to_yardstick": Target(0.9, 0.5),
    "streams_200.redis_writes_per_token": Target(0.6),
    "streams_50.first_token_p50_to_yardstick": Target(1.0, 0.5),
    "streams_50.first_token_p99_to_yardstick": Target(1.2, 0.5),
    "streams_200.first_token_p50_to_yardstick": Target(1.0),
    "streams_200.first_token_p99_to_yardstick": Target(1.5),
    "two_processes.sync_speed_up": Target(1.8, more=True),
    "two_processes.streams_speed_up": Target(1.8, more=True),
    "idle_chat.kib_per_stream": Target(10),
    "idle_native.kib_per_stream": Target(10),
    "idle_events.kib_per_stream": Target(10),
}
"""By scenario and figure. Times are targets only as multiples of the yardstick's: machines differ, and so do hours."""


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
