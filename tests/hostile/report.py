"""What the parts of a run have seen, and whether every check held. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

MAX_FAULTS = 40
"""Faults of one part that are kept with the bytes sent; all are counted."""


class Part(msgspec.Struct):
    """What one attacker has done and seen."""

    name: str
    requests: dict[str, int] = {}
    """By kind."""
    answers: dict[str, int] = {}
    """By status, and by code from 500 on."""
    faults: list[str] = []
    fault_counts: dict[str, int] = {}

    def sent(self, kind: str, requests: int = 1) -> None:
        self.requests[kind] = self.requests.get(kind, 0) + requests

    def answered(self, status: int, code: str = "") -> None:
        key = f"{status} {code}"[:80].strip()
        self.answers[key] = self.answers.get(key, 0) + 1

    def fault(self, kind: str, number: int, what: str, sent: bytes = b"", seen: bytes = b"") -> None:
        """Note something that must not be. `number` and the seed of the run make it again."""
        self.fault_counts[what[:100]] = self.fault_counts.get(what[:100], 0) + 1
        if len(self.faults) < MAX_FAULTS and self.fault_counts[what[:100]] <= 2:
            detail = f"sent {sent[:400]!r}, seen {bytes(seen)[:300]!r}"
            self.faults.append(f"{self.name} {kind} number {number}: {what}: {detail}")

    @property
    def total(self) -> int:
        return sum(self.requests.values())


@dataclass
class Outcome:
    """A whole run."""

    seed: int
    parts: list[Part]
    broken: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)

    def check(self, name: str, held: bool, figure: Any) -> None:
        (self.facts if held else self.broken).append(f"{name}: {figure}")

    def render(self) -> str:
        """Return the summary, for people."""
        lines = [f"hostile run, SEED={self.seed}"]
        lines += [f"{part.name}: sent {part.requests}, answers {part.answers}" for part in self.parts]
        lines += [*self.facts, *(f"BROKEN {what}" for what in self.broken)]
        return "\n".join([*lines, *(fault for part in self.parts for fault in part.faults)])


def no_faults(parts: Iterable[Part]) -> tuple[bool, str]:
    """Return whether no part has seen a fault, and how many of which there were."""
    counts: Counter[str] = Counter()
    for part in parts:
        counts.update(part.fault_counts)
    return not counts, "; ".join(f"{number} x {what}" for what, number in counts.most_common(8)) or "none"


def quantile(values: list[float], share: float) -> float:
    """Return the value below which `share` of them lie; 0 of none."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)] if values else 0.0
