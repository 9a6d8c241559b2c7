"""Reads the database for the metrics: batches that have not ended, files, stored responses."""

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import and_, case, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.batches.models import UNENDED, codes_of
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.database.tables import batches, responses
from fairlane.gateway.files.rows import held_by_all

EVERY_S, RESPONSES_EVERY_S = 10.0, 600.0
"""Minimum time between two reads; responses, which are counted, are read less often."""
READ_S = 2.0


class BatchGroup(NamedTuple):
    """Batches of one status that wait for the same."""

    status: str
    codes: tuple[str, ...]
    """The error codes that block their lines."""
    number: int
    still: int
    """Those that are blocked and have no waiting or running line."""
    waiting: int
    """Lines of these batches that are submitted."""
    running: int


class Sums(NamedTuple):
    """A number of rows, and their bytes."""

    number: int
    bytes: int


class DatabaseSurvey(NamedTuple):
    """The values of one read."""

    batches: Sequence[BatchGroup]
    files: Sums
    responses: Sums | None
    """None: they could not be counted in time."""


class DatabaseSurveyor:
    """Reads the survey. Concurrent callers share one query."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._one = asyncio.Lock()
        self._known: DatabaseSurvey | None = None
        self._read_at = self._counted_at = -RESPONSES_EVERY_S
        self._responses: Sums | None = None

    async def recent(self) -> DatabaseSurvey | None:
        """Return the survey, no older than EVERY_S; None while the database is unavailable."""
        async with self._one:
            now = time.monotonic()
            if now - self._read_at >= EVERY_S:
                self._read_at = now
                self._known = await self._read(now)
            return self._known

    async def _read(self, now: float) -> DatabaseSurvey | None:
        if now - self._counted_at >= RESPONSES_EVERY_S:
            self._counted_at, self._responses = now, await self._count_responses()
        try:
            async with self._database.reporting(READ_S) as connection:
                groups = await _batches(connection)
                return DatabaseSurvey(groups, Sums(*await held_by_all(connection)), self._responses)
        except DatabaseUnavailable:
            return None

    async def _count_responses(self) -> Sums | None:
        sums = select(func.count(), func.coalesce(func.sum(responses.c.size), 0)).select_from(responses)
        try:
            async with self._database.reporting(READ_S) as connection:
                number, size = (await connection.execute(sums)).one()
        except DatabaseUnavailable:
            return None
        return Sums(int(number), int(size))


async def _batches(connection: AsyncConnection) -> list[BatchGroup]:
    columns = batches.c
    still = and_(columns.blocked_on != "", columns.waiting == 0, columns.running == 0)
    sums = [func.sum(case((still, 1), else_=0)), func.sum(columns.waiting), func.sum(columns.running)]
    wanted = select(columns.status, columns.blocked_on, func.count(), *sums).where(
        columns.status.in_(UNENDED)
    )
    rows = await connection.execute(wanted.group_by(columns.status, columns.blocked_on))
    return [BatchGroup(row[0], codes_of(row[1]), *(int(number) for number in row[2:])) for row in rows]
