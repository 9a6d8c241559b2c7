"""Values from the database as gauges. Every replica reports the same: query them with `max`, not with `sum`."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import and_, case, func, select

from fairlane.gateway.batches.models import UNENDED, codes_of
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.database.tables import batches, responses
from fairlane.gateway.files.rows import held_by_all
from fairlane.gateway.metrics.gauges import Gauge, Rows
from fairlane.queues.metrics import OTHER

EVERY_S, RESPONSES_EVERY_S = 10.0, 600.0
"""Minimum time between two reads; responses, which are counted, are read less often."""
READ_S = 2.0
MAX_REASONS = 50

# fmt: off
DATABASE_GAUGES = (
    Gauge("fairlane_batches_unended", ("status",), "Unended batches"),
    Gauge(
        "fairlane_batches_stalled", ("reason",),
        "Batches whose lines are all blocked, by the code of the reason"),
    Gauge("fairlane_batch_lines_in_progress", ("status",), "Lines of batches whose tasks are waiting or running"),
    Gauge("fairlane_files", (), "Stored files, including uploads and deletions in progress"),
    Gauge("fairlane_files_bytes", (), "Bytes used or reserved by files"),
    Gauge("fairlane_files_limit_bytes", (), "Maximum of these bytes (files.max_size)"),
    Gauge("fairlane_stored_responses", (), "Stored responses, counted every ten minutes"),
    Gauge("fairlane_stored_response_bytes", (), "Bytes of stored responses"),
)
# fmt: on

_STALLED = and_(batches.c.blocked_on != "", batches.c.waiting == 0, batches.c.running == 0)
_BATCHES = (
    select(
        *(batches.c.status, batches.c.blocked_on, func.count(), func.sum(case((_STALLED, 1), else_=0))),
        *(func.sum(batches.c.waiting), func.sum(batches.c.running)),
    )
    .where(batches.c.status.in_(UNENDED))
    .group_by(batches.c.status, batches.c.blocked_on)
)
_RESPONSES = select(func.count(), func.coalesce(func.sum(responses.c.size), 0)).select_from(responses)


class DatabaseSurveyor:
    """Reads the gauges. Concurrent callers share one query."""

    def __init__(self, database: Database, current: ActiveConfig) -> None:
        self._database = database
        self._current = current
        self._one = asyncio.Lock()
        self._known: Rows | None = None
        self._responses: Rows = {}
        self._read_at = self._counted_at = -RESPONSES_EVERY_S

    async def recent(self) -> Rows | None:
        """Return the values, no older than EVERY_S; None while the database is unavailable."""
        async with self._one:
            now = time.monotonic()
            if now - self._counted_at >= RESPONSES_EVERY_S:
                self._counted_at, self._responses = now, await self._count_responses()
            if now - self._read_at >= EVERY_S:
                self._read_at, self._known = now, await self._read()
            return None if self._known is None else self._known | self._responses

    async def _read(self) -> Rows | None:
        try:
            async with self._database.reporting(READ_S) as connection:
                rows = rows_of_batches(await connection.execute(_BATCHES))
                files, size = await held_by_all(connection)
        except DatabaseUnavailable:
            return None
        values = {"": files, "_bytes": size, "_limit_bytes": self._current.settings.files.max_bytes}
        return rows | {f"fairlane_files{name}": {(): value} for name, value in values.items()}

    async def _count_responses(self) -> Rows:
        """Return the gauges of stored responses; none if they cannot be counted in time."""
        try:
            async with self._database.reporting(READ_S) as connection:
                number, size = (await connection.execute(_RESPONSES)).one()
        except DatabaseUnavailable:
            return {}
        return {
            "fairlane_stored_responses": {(): int(number)},
            "fairlane_stored_response_bytes": {(): int(size)},
        }


def rows_of_batches(groups: Iterable[Sequence[Any]]) -> Rows:
    """Return the gauges of batches. `groups`: their status and what blocks their lines, and the numbers of batches, of those that
    are stalled, and of their waiting and running lines."""
    unended, stalled, lines = (
        Counter(dict.fromkeys(UNENDED, 0)),
        Counter[str](),
        Counter(waiting=0, running=0),
    )
    for status, blocked_on, number, still, waiting, running in groups:
        unended[status] += number
        lines.update(waiting=int(waiting), running=int(running))
        for code in codes_of(blocked_on) if still else ():
            stalled[code if code in stalled or len(stalled) < MAX_REASONS else OTHER] += int(still)
    return {
        "fairlane_batches_unended": {(status,): number for status, number in unended.items()},
        "fairlane_batches_stalled": {(code,): number for code, number in stalled.items()},
        "fairlane_batch_lines_in_progress": {(status,): number for status, number in lines.items()},
    }
