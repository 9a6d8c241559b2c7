"""How long answers took, counted in bins each a tenth wider than the one before, so that replicas can add theirs up. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

RATIO = 1.1
_LOG = math.log(RATIO)
MAX_BIN = 260
"""Some 1,800 years: more than any limit."""

Measure = Literal["first", "gap"]
"""What is measured of an answer: the time to its first output, or the longest silence behind that."""


def bin_of(ms: float) -> int:
    """Return the bin of a time: it holds times above `edge(bin - 1)`, up to `edge(bin)`."""
    return 0 if ms <= 1 else min(math.ceil(math.log(ms) / _LOG), MAX_BIN)


def edge(number: int) -> float:
    """The longest time of a bin, ms."""
    return RATIO**number


def name_of(measure: Measure, ms: float) -> str:
    """Return the name under which the store counts a time."""
    return f"{measure}:{bin_of(ms)}"


@dataclass(frozen=True, slots=True)
class Answers:
    """Number of answers by bin."""

    bins: Mapping[int, int]

    @classmethod
    def of(cls, measure: Measure, counted: Mapping[str, int]) -> "Answers":
        """Those of one measure among what the store has counted; unknown names are ignored."""
        told = ((name.partition(":"), count) for name, count in counted.items())
        return cls(
            {int(tail): count for (head, _, tail), count in told if head == measure and tail.isdecimal()}
        )

    @property
    def number(self) -> int:
        return sum(self.bins.values())

    @property
    def p99_ms(self) -> float | None:
        """What all but one in a hundred took at most: up to a tenth too much, never too little. None: there are none."""
        left = self.number // 100
        for number in sorted(self.bins, reverse=True):
            left -= self.bins[number]
            if left < 0:
                return edge(number)
        return None
