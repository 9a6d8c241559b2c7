"""Who is led next, where more batches wait to be led than one process leads, and who gives up a seat for them. Pure.

A batch may take days. So none keeps its seat for as long as it runs: what it has submitted runs on without a leader, and whoever
leads it next takes up from there.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from fairlane.gateway.batches.store import Waiting
from fairlane.gateway.webhooks.announcing import Owner

TURN_S = 60.0
"""After so long one that is led gives its seat to one that waits."""
LEAVE_AT_ONCE = 5
"""Seats that are given up at a look: those who come have to find what their batches have submitted."""


class Seat(NamedTuple):
    """A batch that is led here."""

    id: str
    owner: Owner
    since: float
    """When that began, by the clock of the process."""
    may_leave: bool
    """False: it is being looked at, or its files are written, which would begin anew."""


def next_of(
    waiting: Sequence[Waiting], led: Collection[Owner], last: Mapping[str, float], seats: int
) -> list[Waiting]:
    """Those that are led next, for so many seats: of the key that has fewest, then of its user that has fewest, then the one that
    was led here longest ago (`last`), as they stand."""
    keys = Counter(owner.key_id for owner in led)
    owners = Counter(led)
    left, chosen = list(waiting), list[Waiting]()
    while left and len(chosen) < seats:
        best = min(left, key=lambda one: (keys[one.owner.key_id], owners[one.owner], last.get(one.id, 0.0)))
        left.remove(best)
        keys[best.owner.key_id] += 1
        owners[best.owner] += 1
        chosen.append(best)
    return chosen


def who_leaves(seats: Sequence[Seat], waiting: int, now: float) -> list[str]:
    """Whose turn is over, where so many wait: of the key that has most seats, then of its user that has most, the one that has
    been led longest."""
    keys = Counter(seat.owner.key_id for seat in seats)
    owners = Counter(seat.owner for seat in seats)
    left = [seat for seat in seats if seat.may_leave and now - seat.since >= TURN_S]
    leaving = list[str]()
    while left and len(leaving) < min(waiting, LEAVE_AT_ONCE):
        first = min(left, key=lambda seat: (-keys[seat.owner.key_id], -owners[seat.owner], seat.since))
        left.remove(first)
        keys[first.owner.key_id] -= 1
        owners[first.owner] -= 1
        leaving.append(first.id)
    return leaving
