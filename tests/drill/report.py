"""What a drill has seen, and how it is told. Pure."""

from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal

from tests.drill.callers import Call, End
from tests.drill.faults import FALLBACK, Fault


@dataclass
class Row:
    """One fault: what callers saw while it lasted, what it cost, and how it ended."""

    fault: Fault
    limit_ms: int
    """How long any of the models may take to its first output."""
    calls: list[Call] = field(default_factory=list)
    attempts: tuple[int, int] = (0, 0)
    """Tasks that the broken provider's workers were given, in each half of the calls."""
    mended_s: float = 0.0
    """From when it was well again until it had its share of everything again."""
    missing: list[str] = field(default_factory=list)
    """What was missing to that when nobody waited any longer."""
    after: list[Call] = field(default_factory=list)
    """The calls of that time."""
    paid: list[tuple[str, Decimal]] = field(default_factory=list)
    """Of the ledger: the task, and what it cost."""
    owed: Decimal = Decimal(0)
    """What the answers cost, by the prices of the models that gave them."""
    balance: Decimal = Decimal(0)
    granted: Decimal = Decimal(0)

    def answered(self, model: str) -> int:
        """Calls that were answered by a model, while the fault lasted."""
        return sum(call.end is End.ANSWERED and call.model == model for call in self.calls)

    def ended(self, end: End) -> int:
        return sum(call.end is end for call in self.calls)

    @property
    def answers(self) -> int:
        """All of them, also after the fault."""
        return sum(call.end is End.ANSWERED for call in (*self.calls, *self.after))

    def first_ms(self, share: float) -> float | None:
        """The time to the first output of streams, while the fault lasted; None: there were none."""
        seconds = sorted(call.first_s for call in self.calls if call.first_s is not None)
        return seconds[min(int(len(seconds) * share), len(seconds) - 1)] * 1000 if seconds else None

    def wrong(self) -> list[str]:
        """What is not as it must be, whatever the machine's speed."""
        found = [
            f"{number} x {why}"
            for why, number in Counter(call.why for call in (*self.calls, *self.after) if call.why).items()
        ]
        if not self.answered(FALLBACK) and self.fault.breaks == "main":
            found.append("no answer of the fallback")
        if self.fault.breaker and self.attempts[1] * 2 >= len(self.calls) // 2:
            found.append(f"{self.attempts[1]} attempts at what is known to be broken")
        tasks = Counter(task for task, _ in self.paid)
        if twice := [task for task, number in tasks.items() if number > 1]:
            found.append(f"paid twice: {', '.join(twice[:5])}")
        if len(tasks) != self.answers:
            found.append(f"{len(tasks)} debits of {self.answers} answers")
        if sum(cost for _, cost in self.paid) != self.owed:
            found.append(f"paid {sum(cost for _, cost in self.paid)}, owed {self.owed}")
        if self.balance != self.granted - self.owed:
            found.append(f"a balance of {self.balance} where {self.granted - self.owed} is left")
        found += [f"after {self.mended_s:.0f} s: {what}" for what in self.missing]
        return found

    def late(self) -> list[str]:
        """What took too long: a matter of the machine, too."""
        p99 = self.first_ms(0.99)
        if p99 is None or p99 <= 2 * self.limit_ms:
            return []
        return [f"99 % of first outputs came within {p99:.0f} ms, not within {2 * self.limit_ms}"]


HEAD = (
    f"{'fault':39} {'calls':>5} {'prim.':>5} {'fallb.':>6} {'refus.':>6} {'failed':>6} | {'first p50':>9} {'p99':>5} "
    f"| {'attempts':>9} | {'answers':>7} {'debits':>6} {'credits':>8} | {'well again':>10}"
)


LEGEND = """\
prim., fallb.: answered by the model asked for, or by the fallback. first: ms to a stream's first output; each model has
{} ms for it. attempts: tasks that the broken provider's workers were given, in each half of the calls. answers, debits,
credits: with the calls until it is well again. well again: from its repair until it has its share of everything, and its
breaker is closed."""


def render(rows: list[Row]) -> str:
    """The table, and below what is wrong."""
    lines = [HEAD]
    for row in rows:
        p50, p99 = row.first_ms(0.5), row.first_ms(0.99)
        first = f"{p50:9.0f} {p99:5.0f}" if p50 is not None and p99 is not None else f"{'-':>9} {'-':>5}"
        mended = "never" if row.missing else f"{row.mended_s:.1f} s"
        lines.append(
            f"{row.fault.what:39} {len(row.calls):5} {row.answered(row.fault.model):5} {row.answered(FALLBACK):6} "
            f"{row.ended(End.REFUSED):6} {row.ended(End.FAILED):6} | {first} "
            f"| {row.attempts[0]:4}/{row.attempts[1]:4} | {row.answers:7} {len(row.paid):6} "
            f"{sum(cost for _, cost in row.paid):8} | {mended:>10}"
        )
    lines += [f"BROKEN {row.fault.what}: {what}" for row in rows for what in (*row.wrong(), *row.late())]
    if rows:
        lines += ["", LEGEND.format(rows[0].limit_ms)]
    return "\n".join(lines)
