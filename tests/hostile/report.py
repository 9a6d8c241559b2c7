"""What the parts of a run have seen, and whether all held. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

MAX_FAULTS = 40
"""Faults of one part that are kept with what was sent; all are counted."""


class Fault(msgspec.Struct):
    """Something that must not be. `number` and the seed of the run make it again."""

    kind: str
    number: int
    what: str
    sent: str = ""
    seen: str = ""


class Part(msgspec.Struct):
    """What one attacker has done and seen."""

    name: str
    requests: dict[str, int] = {}
    """By kind."""
    answers: dict[str, dict[str, int]] = {}
    """By kind and status."""
    failures: dict[str, int] = {}
    """Answers from 500 on, by status and code."""
    faults: list[Fault] = []
    fault_counts: dict[str, int] = {}
    notes: dict[str, float] = {}
    seconds: float = 0.0

    def sent(self, kind: str, requests: int = 1) -> None:
        self.requests[kind] = self.requests.get(kind, 0) + requests

    def answered(self, kind: str, status: int, code: str = "") -> None:
        by_status = self.answers.setdefault(kind, {})
        by_status[str(status)] = by_status.get(str(status), 0) + 1
        if status >= 500:
            key = f"{status} {code}"[:80]
            if len(self.failures) < 100 or key in self.failures:
                self.failures[key] = self.failures.get(key, 0) + 1

    def fault(self, kind: str, number: int, what: str, sent: bytes = b"", seen: bytes = b"") -> None:
        self.fault_counts[what[:100]] = self.fault_counts.get(what[:100], 0) + 1
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(Fault(kind, number, what, repr(sent[:400]), repr(bytes(seen)[:300])))

    @property
    def total(self) -> int:
        return sum(self.requests.values())


@dataclass
class Check:
    """One thing that must hold."""

    name: str
    held: bool
    figure: str


@dataclass
class Outcome:
    """A whole run."""

    seed: int
    seconds: float
    parts: list[Part]
    checks: list[Check] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)

    def check(self, name: str, held: bool, figure: Any) -> None:
        self.checks.append(Check(name, held, str(figure)))

    @property
    def held(self) -> bool:
        return all(check.held for check in self.checks)

    @property
    def requests(self) -> int:
        return sum(part.total for part in self.parts)


def no_faults(parts: Iterable[Part]) -> tuple[bool, str]:
    """Whether no part has seen a fault, and how many of which there were."""
    counts: Counter[str] = Counter()
    for part in parts:
        counts.update(part.fault_counts)
    return not counts, "; ".join(f"{number} x {what}" for what, number in counts.most_common(8)) or "none"


def within_a_fifth(before: int, after: int) -> bool:
    """Whether memory is back: within 20 % of the start."""
    return after <= before * 1.2


def quantile(values: list[float], share: float) -> float:
    """The value below which `share` of them lie; 0 of none."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)] if values else 0.0


def render(outcome: Outcome) -> str:
    """The summary, for people."""
    lines = [
        f"hostile run, seed {outcome.seed}: {outcome.requests} requests and frames in {outcome.seconds:.0f} s",
        "",
    ]
    lines.append(f"{'part':10} {'kind':16} {'sent':>8}  answers by status")
    for part in outcome.parts:
        for kind, number in sorted(part.requests.items()):
            statuses = " ".join(
                f"{status}:{count}" for status, count in sorted(part.answers.get(kind, {}).items())
            )
            lines.append(f"{part.name:10} {kind:16} {number:>8}  {statuses}")
    failures: Counter[str] = Counter()
    for part in outcome.parts:
        failures.update(part.failures)
    lines += [
        "",
        "answers from 500 on: "
        + (", ".join(f"{code} x {n}" for code, n in failures.most_common(20)) or "none"),
    ]
    lines += [f"{name}: {text}" for name, text in outcome.facts.items()]
    lines.append("")
    lines += [
        f"{'held  ' if check.held else 'BROKEN'} {check.name}: {check.figure}" for check in outcome.checks
    ]
    for part in outcome.parts:
        told: Counter[str] = Counter()
        for fault in part.faults:
            told[fault.what] += 1
            if told[fault.what] > 2:
                continue
            lines += ["", f"fault: {part.name} {fault.kind} number {fault.number}: {fault.what}"]
            lines += [f"  sent {fault.sent}"] if fault.sent else []
            lines += [f"  seen {fault.seen}"] if fault.seen not in ("", "b''") else []
    lines += [
        "",
        "everything held" if outcome.held else f"NOT everything held; run it again with SEED={outcome.seed}",
    ]
    return "\n".join(lines)
