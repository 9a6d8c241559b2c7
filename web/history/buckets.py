"""What happened in a stretch of time: sums, which replicas' and neighbours' parts can be added to. Pure."""

import math
from collections.abc import Iterable
from typing import Literal

import msgspec

from fairlane.queues.metrics import OTHER

MOST_CODES = 50
MOST_USERS = 100
MOST_NAMES = 200
"""Models, queues or workers that a replica counts by name in ten seconds. The others together are OTHER."""

Kind = Literal["model", "queue", "worker"]

_GAMMA = 1.05
_LOG_GAMMA = math.log(_GAMMA)


class Sketch(msgspec.Struct, array_like=True):
    """How many durations were about so long: quantiles within 2.5 %, and sketches of several replicas can be added.

    Duration d (ms, at least 1) counts in bin ceil(log d / log 1.05), which stands for the middle of what falls in it. (Masson,
    Rim, Lee: DDSketch, VLDB 2019.)
    """

    bins: dict[int, int] = {}

    def add(self, ms: float) -> None:
        number = math.ceil(math.log(ms) / _LOG_GAMMA) if ms > 1 else 0
        self.bins[number] = self.bins.get(number, 0) + 1

    def merge(self, other: "Sketch") -> None:
        for number, count in other.bins.items():
            self.bins[number] = self.bins.get(number, 0) + count

    def quantiles(self, wanted: Iterable[float]) -> list[float | None]:
        """Durations (ms) that these parts of all are within; None when there are none. `wanted` in rising order."""
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


class Counts(msgspec.Struct):
    """What is counted of everything as of one model, queue or worker."""

    accepted: int = 0
    completed: int = 0
    cancelled: int = 0
    waiting: int = 0
    """Tasks that waited at once, at most, on all replicas together: each tells the same. Looked at every ten seconds."""
    input_tokens: int = 0
    output_tokens: int = 0

    def add(self, other: "Counts") -> None:
        """Add another one's."""
        self.accepted += other.accepted
        self.completed += other.completed
        self.cancelled += other.cancelled
        self.waiting = max(self.waiting, other.waiting)
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens


class Series(Counts, array_like=True):
    """What happened to the tasks of one model or queue; or what one worker ended, which accepts nothing and has no queue."""

    failed: int = 0
    refused: int = 0

    @property
    def ended(self) -> int:
        return self.completed + self.failed + self.cancelled

    def merge(self, other: "Series") -> None:
        """Add another one's."""
        self.add(other)
        self.failed += other.failed
        self.refused += other.refused


class Bucket(Counts, omit_defaults=True):
    """What happened in a stretch of time: ten seconds, or longer ones that are made of those."""

    failures: dict[str, int] = {}
    refusals: dict[str, int] = {}
    users: dict[str, int] = {}
    """Tokens of input and output, by user, of tasks that ended."""
    models: dict[str, Series] = {}
    queues: dict[str, Series] = {}
    workers: dict[str, Series] = {}
    wait: Sketch = msgspec.field(default_factory=Sketch)
    first: Sketch = msgspec.field(default_factory=Sketch)
    total: Sketch = msgspec.field(default_factory=Sketch)

    @property
    def empty(self) -> bool:
        """Nothing happened."""
        return self == Bucket()

    def of(self, kind: Kind) -> dict[str, Series]:
        """The series by the names of this kind."""
        return self.models if kind == "model" else self.queues if kind == "queue" else self.workers

    def whole(self) -> Series:
        """The same as of a single model or queue."""
        whole = Series(failed=sum(self.failures.values()), refused=sum(self.refusals.values()))
        whole.add(self)
        return whole

    def merge(self, other: "Bucket", most: int = MOST_NAMES) -> None:
        """Add another one's, with the names of at most so many models, queues and workers."""
        self.merge_sums(other)
        for name, number in other.users.items():
            count(self.users, name, number, most=MOST_USERS)
        for mine, more in (
            (self.models, other.models),
            (self.queues, other.queues),
            (self.workers, other.workers),
        ):
            for name, series in more.items():
                series_of(mine, name, most).merge(series)

    def merge_sums(self, other: "Bucket") -> None:
        """Add another one's, without those by user, model, queue and worker."""
        self.add(other)
        for counts, more in ((self.failures, other.failures), (self.refusals, other.refusals)):
            for name, number in more.items():
                count(counts, name, number)
        self.wait.merge(other.wait)
        self.first.merge(other.first)
        self.total.merge(other.total)


def count(counts: dict[str, int], name: str, number: int = 1, *, most: int = MOST_CODES) -> None:
    """Add to a name's number; workers make codes up, so only the first ones keep their names."""
    if name not in counts and len(counts) >= most:
        name = OTHER
    counts[name] = counts.get(name, 0) + number


def series_of(named: dict[str, Series], name: str, most: int = MOST_NAMES) -> Series:
    """A name's series; workers make names up, so only the first ones have their own."""
    series = named.get(name)
    if series is None:
        if len(named) >= most:
            name = OTHER
        series = named.setdefault(name, Series())
    return series
