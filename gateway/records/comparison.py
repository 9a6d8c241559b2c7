"""Compares the two sides of a change of settings: how many callers were refused, how tasks ended, what they took and used.

How many were refused and ended how, and tokens and cost, are sums of all; times are percentiles of those that ended last.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import desc, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.credits.amounts import credits_of
from fairlane.gateway.database.tables import refused_changes, usage, usage_changes
from fairlane.gateway.records.reading import Reading
from fairlane.gateway.records.reports import in_pieces
from fairlane.queues.failures import code_now, family_of
from fairlane.queues.tasks import State

SIDES = ("old", "new")
SAMPLED = 5000
"""Tasks of a side of which times are told, those that ended last."""
ENOUGH = 30
"""Tasks and refused calls of a side from which on its numbers say something."""


class Times(NamedTuple):
    """Of one task, ms; None: it never came to that."""

    wait: int
    first_output: int | None
    duration: int
    """-1: it did not complete."""


@dataclass(slots=True)
class Sums:
    """Of one side."""

    tasks: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    moved: int = 0
    """Those that went on to another model."""
    input: int = 0
    output: int = 0
    cost: int = 0
    codes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """How many failed, by their codes."""
    refused: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Calls that came to no task, by their codes."""


class Comparisons:
    """A use case. Raises DatabaseUnavailable, and ApiError for what cannot be told now."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    async def of(self, change_id: str, who: str) -> dict[str, Any]:
        """Both sides of a change: tasks that have ended. `who` asks: the id of a key."""
        async with self._reading(who) as connection:
            sums = await _sums(connection, change_id)
            rows = {side: await _newest(connection, change_id, side) for side in SIDES}
        times = {side: await in_pieces(rows[side], times_of) for side in SIDES}
        return compared(sums, times)


async def _sums(connection: AsyncConnection, change_id: str) -> dict[str, Sums]:
    of = usage_changes.c
    numbers = "tasks", "completed", "failed", "cancelled", "input", "output", "cost"
    key = of.side, of.state, of.code, of.moved
    found = select(*key, *(func.sum(of[name]).label(name) for name in numbers))
    found = found.where(of.change_id == change_id).group_by(*key)
    sums = {side: Sums() for side in SIDES}
    for row in await connection.execute(found):
        side = sums.get(row.side)
        if side is None:  # of a newer release
            continue
        for name in numbers:
            setattr(side, name, getattr(side, name) + int(getattr(row, name)))
        side.moved += int(row.tasks) if row.moved else 0
        if row.state == State.FAILED:
            side.codes[code_now(row.code)] += int(row.tasks)
    of = refused_changes.c
    refused = select(of.side, of.code, func.sum(of.count)).where(of.change_id == change_id)
    for name, code, count in await connection.execute(refused.group_by(of.side, of.code)):
        if name in sums:
            sums[name].refused[code] += int(count)
    return sums


async def _newest(connection: AsyncConnection, change_id: str, side: str) -> Sequence[Any]:
    columns = usage.c.enqueued, usage.c.granted, usage.c.first_output, usage.c.ended, usage.c.state
    found = select(*columns).where(usage.c.change_id == change_id, usage.c.side == side)
    return (await connection.execute(found.order_by(desc(usage.c.ended)).limit(SAMPLED))).all()


def times_of(row: Any) -> Times:
    """Of one task: its wait, until its last grant; its first output and, where it completed (else -1), its end, both from its
    submission on. Pure."""
    enqueued, granted, first_output, ended, state = row
    first = max(first_output - enqueued, 0) if first_output else None
    duration = max(ended - enqueued, 0) if state == State.COMPLETED else -1
    return Times(max((granted or ended) - enqueued, 0), first, duration)


def compared(sums: Mapping[str, Sums], times: Mapping[str, Sequence[Times]]) -> dict[str, Any]:
    """Both sides, as they are told. Pure."""
    told: dict[str, Any] = {side: _told(sums[side], times[side]) for side in SIDES}
    told["enough"] = all(sums[side].tasks + sum(sums[side].refused.values()) >= ENOUGH for side in SIDES)
    return told


def _told(sums: Sums, times: Sequence[Times]) -> dict[str, Any]:
    def of_each(number: int) -> float | None:
        return round(number / sums.tasks, 1) if sums.tasks else None

    failures = [
        {"code": code, "family": family_of(code), "tasks": number} for code, number in _most_first(sums.codes)
    ]
    return {
        "tasks": sums.tasks,
        "completed": sums.completed,
        "failed": sums.failed,
        "cancelled": sums.cancelled,
        "failures": failures,
        "refused": sum(sums.refused.values()),
        "refusals": [{"code": code, "calls": number} for code, number in _most_first(sums.refused)],
        "moved": sums.moved,
        "inputTokensPerTask": of_each(sums.input),
        "outputTokensPerTask": of_each(sums.output),
        "costPerTask": credits_of(round(sums.cost / sums.tasks)) if sums.tasks else None,
        "sampled": len(times),
        "waitMs": percentiles([one.wait for one in times]),
        "firstOutputMs": percentiles([one.first_output for one in times if one.first_output is not None]),
        "durationMs": percentiles([one.duration for one in times if one.duration >= 0]),
    }


def _most_first(codes: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(codes.items(), key=lambda pair: (-pair[1], pair[0]))


def percentiles(values: Sequence[int]) -> dict[str, int] | None:
    """The median and the 95th percentile (nearest rank); None: there is no value. Pure."""
    if not values:
        return None
    ordered = sorted(values)
    return {f"p{of}": ordered[max(-(-len(ordered) * of // 100) - 1, 0)] for of in (50, 95)}
