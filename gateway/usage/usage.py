"""Writes usage records and their sums."""

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from functools import cache, lru_cache
from typing import Any

from sqlalchemy import Table as SqlTable
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.database.inserting import insert_rows
from fairlane.gateway.database.tables import MEASURES, UsageRow, usage, usage_routes, usage_sums, usage_users
from fairlane.gateway.records.entries import read_usage
from fairlane.queues.metrics import Names
from fairlane.queues.tasks import State

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
HOURS_KEPT_MS = 3 * DAY_MS
"""The retention of sums of hours."""
MAX_NAMES = 100
"""Names of models that are not configured (where `*` runs any name) in the sums of a key and day, for each process: others are
OTHER."""
MAX_KEYS = 1000
"""Keys and days whose names are remembered; the least recently used ones are dropped."""

Sums = dict[tuple[Any, ...], list[int]]
"""Measures (MEASURES) by the columns of the primary key."""


class UsageTable:
    """Takes entries of the kind `usage`."""

    def __init__(
        self, tier_of: Callable[[str], str], configured: Callable[[], Container[str]] = tuple
    ) -> None:
        """`tier_of` returns the tier of a queue, '' if it is gone; `configured` the configured models."""
        self._tier_of = tier_of
        self._configured = configured
        self._names = lru_cache(MAX_KEYS)(lambda _day, _key_id: Names(MAX_NAMES))

    async def write(self, connection: AsyncConnection, packed: Sequence[bytes]) -> int:
        """See `outbox.Table`. Only rows that were not there before are added to the sums, in the same transaction."""
        rows = {row.task: row for row in (read_usage(entry, self._tier_of) for entry in packed)}
        # sorted: all writers lock rows in the same order, so there is no deadlock
        new = [rows[task] for task in sorted(rows)]
        try:
            async with connection.begin_nested():
                await insert_rows(connection, usage, new)
        except IntegrityError:  # a replica that was cut off has written some of them
            written = await insert_rows(
                connection, usage, new, "ON CONFLICT (task) DO NOTHING RETURNING task"
            )
            new = [rows[task] for (task,) in written]
        for table, sums in self.add_up(new):
            parts = [(*key, *sums[key]) for key in sorted(sums)]
            await insert_rows(connection, table, parts, adding(table))
        return len(new)

    def add_up(self, rows: Iterable[UsageRow]) -> list[tuple[SqlTable, Sums]]:
        """Return what rows add to the tables of sums."""
        fine, configured = _empty(), self._configured()
        for row in rows:
            hour, model = row.ended - row.ended % HOUR_MS, row.model
            if model != row.scheduled and model not in configured:  # a client may have invented it
                model = self._names(hour - hour % DAY_MS, row.key_id)(model)
            sums = fine[hour, row.key_id, row.user_name, row.tier, model, row.state, row.code, row.route]
            sums[0] += 1
            sums[_OF_STATE[row.state]] += 1
            sums[4] += row.input or 0
            sums[5] += row.output or 0
            sums[6] += row.cached or 0
            sums[7] += row.reasoning or 0
            sums[8] += row.estimated
            sums[9] += row.waited_ms
            sums[10] += row.ran_ms
            sums[11] += row.cost or 0
        of_all, of_users, of_routes = _empty(), _empty(), _empty()
        for (hour, key_id, user, tier, model, state, code, route), part in fine.items():
            day = hour - hour % DAY_MS
            _add(of_all[HOUR_MS, hour, key_id, tier, model, state, code], part)
            _add(of_all[DAY_MS, day, key_id, tier, model, state, code], part)
            _add(of_users[day, key_id, user, tier, model], part)
            if route:
                _add(of_routes[day, key_id, tier, route, model], part)
        return [(usage_sums, of_all), (usage_users, of_users), (usage_routes, of_routes)]


_OF_STATE: dict[str, int] = {State.COMPLETED: 1, State.FAILED: 2, State.CANCELLED: 3}
"""The measure that counts tasks of a state."""


def _empty() -> "defaultdict[tuple[Any, ...], list[int]]":
    return defaultdict(lambda: [0] * len(MEASURES))


def _add(to: list[int], part: list[int]) -> None:
    for at, value in enumerate(part):
        to[at] += value


@cache
def adding(table: SqlTable) -> str:
    """Return the clause that adds rows of sums to existing ones."""
    key = ", ".join(column.name for column in table.primary_key)
    sums = ", ".join(f"{measure} = {table.name}.{measure} + excluded.{measure}" for measure in MEASURES)
    return f"ON CONFLICT ({key}) DO UPDATE SET {sums}"
