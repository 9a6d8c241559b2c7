"""What happened in ten seconds: sums to which other replicas' parts can be added. Pure."""

import math
from collections.abc import Iterable

import msgspec

from fairlane.queues.metrics import OTHER

MAX_CODES = 50
MAX_USERS = 100
MAX_MODELS = 200
"""Codes, users and models that are counted by name in one bucket; the others together are OTHER."""

_GAMMA = 1.05
_LOG_GAMMA = math.log(_GAMMA)


class Sketch(msgspec.Struct, array_like=True):
    """Counts of durations, for quantiles within 2.5 %; sketches of several replicas can be added.

    Duration d (ms, at least 1) counts in bin ceil(log d / log 1.05). (Masson, Rim, Lee: DDSketch, VLDB 2019.)
    """

    bins: dict[int, int] = {}

    def add(self, ms: float) -> None:
        number = math.ceil(math.log(ms) / _LOG_GAMMA) if ms > 1 else 0
        self.bins[number] = self.bins.get(number, 0) + 1

    def merge(self, other: "Sketch") -> None:
        for number, count in other.bins.items():
            self.bins[number] = self.bins.get(number, 0) + count

    def quantiles(self, wanted: Iterable[float]) -> list[float | None]:
        """Return the durations (ms) at these quantiles, given in rising order; None for each if the sketch is empty."""
        total = sum(self.bins.values())
        if not total:
            return [None for _ in wanted]
        ordered = iter(sorted(self.bins.items()))
        number, seen = next(ordered)
        found: list[float | None] = []
        for part in wanted:
            while seen < part * total:
                number, count = next(ordered)
                seen += count
            found.append(1.0 if number == 0 else round(2 * _GAMMA**number / (_GAMMA + 1), 1))
        return found


class ModelCounts(msgspec.Struct, array_like=True):
    """What happened to the tasks of one model."""

    accepted: int = 0
    ended: int = 0
    cancelled: int = 0
    """Of those that ended."""
    output_tokens: int = 0

    def merge(self, other: "ModelCounts") -> None:
        self.accepted += other.accepted
        self.ended += other.ended
        self.cancelled += other.cancelled
        self.output_tokens += other.output_tokens


class Bucket(msgspec.Struct, omit_defaults=True):
    """What one replica counted in ten seconds, or several of them together."""

    accepted: int = 0
    completed: int = 0
    cancelled: int = 0
    waiting: int = 0
    """Waiting tasks of all replicas together: each replica reports the same number."""
    failures: dict[str, int] = {}
    rejections: dict[str, int] = {}
    users: dict[str, int] = {}
    """Tokens of input and output, by user, of tasks that ended."""
    models: dict[str, ModelCounts] = {}
    wait: Sketch = msgspec.field(default_factory=Sketch)
    first: Sketch = msgspec.field(default_factory=Sketch)
    total: Sketch = msgspec.field(default_factory=Sketch)

    @property
    def empty(self) -> bool:
        return self == Bucket()

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    @property
    def rejected(self) -> int:
        return sum(self.rejections.values())

    def of(self, model: str) -> ModelCounts:
        """Return the counts of a model; workers make names up, so only the first ones have their own."""
        if model not in self.models and len(self.models) >= MAX_MODELS:
            model = OTHER
        return self.models.setdefault(model, ModelCounts())

    def merge(self, other: "Bucket") -> None:
        """Add another bucket."""
        self.accepted += other.accepted
        self.completed += other.completed
        self.cancelled += other.cancelled
        self.waiting = max(self.waiting, other.waiting)
        for counts, more, most in (
            (self.failures, other.failures, MAX_CODES),
            (self.rejections, other.rejections, MAX_CODES),
            (self.users, other.users, MAX_USERS),
        ):
            for name, number in more.items():
                count(counts, name, number, most=most)
        for name, counted in other.models.items():
            self.of(name).merge(counted)
        self.wait.merge(other.wait)
        self.first.merge(other.first)
        self.total.merge(other.total)


def count(counts: dict[str, int], name: str, number: int = 1, *, most: int = MAX_CODES) -> None:
    """Add to a name's number; workers make codes up, so only the first `most` keep their names."""
    if name not in counts and len(counts) >= most:
        name = OTHER
    counts[name] = counts.get(name, 0) + number
