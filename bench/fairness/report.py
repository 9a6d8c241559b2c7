"""The tables of RESULTS.md. Pure: figures in, Markdown out."""

import re
from collections.abc import Iterable, Mapping, Sequence

from bench.fairness.checks import Check, number
from bench.fairness.comparison import FAIRLANE, FAIRLANE_TOLD, VTC_EVERY_5_S, Row, Traces
from bench.fairness.gaming import Gain
from bench.fairness.isolation import Waits
from bench.fairness.measures import Difference
from bench.fairness.waiting import Honesty
from bench.fairness.workloads import Workload

SIMULATED = ("FCFS", "Round robin", "LCF", VTC_EVERY_5_S, "VTC", FAIRLANE, FAIRLANE_TOLD)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def cell(found: Difference | None) -> str:
    """`most (mean)`."""
    return f"{number(found.most)} ({number(found.mean)})" if found else ""


def workload_table(workloads: Iterable[Workload]) -> str:
    """What is asked for."""
    return table(
        ("workload", "clients; tokens in/out; length", "requests"),
        ((f"`{w.name}`", w.about, f"{len(w.requests):,}") for w in workloads),
    )


def row_table(rows: Iterable[Row]) -> str:
    """Service difference by workload and policy."""
    return table(
        ("workload", "artifact FCFS", "artifact VTC", *SIMULATED),
        (
            (
                f"`{row.workload.name}`",
                *(cell(row.workload.artifact.get(name)) for name in ("FCFS", "VTC")),
                *(cell(row.differences[name]) for name in SIMULATED),
            )
            for row in rows
        ),
    )


def trace_table(traces: Traces) -> str:
    """The trace-like workload in the mean over its draws."""
    return table(
        ("policy", "service difference", "tokens/s"),
        (
            (name, cell(found), number(traces.throughputs[name]))
            for name, found in ((name, traces.differences[name]) for name in SIMULATED)
        ),
    )


def isolation_table(waits: Mapping[str, tuple[Waits, Waits]], shares: Mapping[str, float]) -> str:
    """The victims' waits alone and next to a flooder, and the share of a client that returns, by policy."""
    return table(
        (
            "policy",
            "alone: median, p99",
            "next to the flooder: median, p99",
            "share of a client that returns",
        ),
        (
            (
                name,
                *(f"{number(found.median)} s, {number(found.p99)} s" for found in pair),
                f"{number(100 * shares[name])} %",
            )
            for name, pair in waits.items()
        ),
    )


def gaming_table(gains: Mapping[str, Sequence[Gain]]) -> str:
    """What each trick gains, by policy."""
    policies = list(gains)
    return table(
        ("who …", *policies),
        (
            (row[0].trick, *(f"{gain.percent:+.0f} %".replace("-0 %", "+0 %") for gain in row))
            for row in zip(*gains.values(), strict=True)
        ),
    )


def honesty_table(found: Mapping[str, Honesty]) -> str:
    """How the estimated waits compare with the real ones, by workload."""
    return table(
        (
            "workload",
            "tasks with an estimate",
            "within the range",
            "estimate ÷ wait",
            "error of the middle",
            "width of the range",
        ),
        (
            (
                name,
                f"{h.told:,}",
                f"{number(100 * h.within)} %",
                f"{h.ratio:.2f}",
                f"{number(100 * h.error)} %",
                f"{number(100 * h.width)} %",
            )
            for name, h in found.items()
        ),
    )


def check_table(checks: Iterable[Check]) -> str:
    """The gates, with what was found."""
    return table(
        ("gate", "what", "measured", "limit", ""),
        ((c.gate, c.what, c.measured, c.limit, "pass" if c.passed else "**FAIL**") for c in checks),
    )


def put(document: str, block: str, text: str) -> str:
    """`document` with `text` between the markers of a block. Raises ValueError when they are not there."""
    begin, end = f"<!-- begin {block} -->", f"<!-- end {block} -->"
    updated, count = re.subn(
        f"{re.escape(begin)}.*?{re.escape(end)}",
        lambda _: f"{begin}\n\n{text}\n\n{end}",
        document,
        flags=re.DOTALL,
    )
    if count != 1:
        raise ValueError(f"the document has {count} blocks named {block}")
    return updated


def block(document: str, name: str) -> str:
    """The text between the markers of a block."""
    found = re.search(f"<!-- begin {name} -->(.*?)<!-- end {name} -->", document, re.DOTALL)
    if not found:
        raise ValueError(f"the document has no block named {name}")
    return found.group(1).strip()
