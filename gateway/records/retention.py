"""Deletes records after their retention, a part at a time."""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Delete, Table, bindparam, delete, select, true, tuple_

from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.database import tables as t
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.settings import Settings
from fairlane.gateway.usage.usage import DAY_MS, HOUR_MS, HOURS_KEPT_MS
from fairlane.queues.clock import now_ms
from fairlane.queues.loops import Periodic

LOOK_S = 600.0
REST_S = 0.2
"""Between two parts, so that records can be written."""
REJECTIONS_DAYS = 90
DELIVERIES_DAYS = 14
BATCHES_DAYS = 30
"""The retention of counts of rejected requests, of deliveries of webhooks, and of batches that have ended."""
LARGE = 50
"""Rows of a part if they hold content, which can be large."""


class Kept(NamedTuple):
    """Rows of a table, and how long they are kept."""

    table: Table
    time: ColumnElement[Any]
    """From which the retention counts, ms: the end of a row, its creation, or its expiry."""
    ms: Callable[[Settings], int]
    only: ColumnElement[bool] = true()
    page: int = 1000
    """Rows that are deleted together."""

    @property
    def statement(self) -> Delete:
        """Return the statement that deletes a part, the oldest rows first."""
        key = list(self.table.primary_key)
        old = select(*key).where(self.time < bindparam("before"), self.only)
        return delete(self.table).where(tuple_(*key).in_(old.order_by(self.time).limit(self.page)))


def _days(number: int) -> Callable[[Settings], int]:
    return lambda _: number * DAY_MS


def _usage_ms(settings: Settings) -> int:
    return settings.usage_retention_days * DAY_MS


def _sums_ms(settings: Settings) -> int:
    return _usage_ms(settings) + DAY_MS  # from the beginning of their day


def _audit_ms(settings: Settings) -> int:
    return settings.audit_retention_days * DAY_MS


_ENDED = select(t.batches.c.id).where(t.batches.c.ended > 0)

KEPT = (
    Kept(t.usage, t.usage.c.ended, _usage_ms),
    Kept(t.usage_sums, t.usage_sums.c.began, _sums_ms, t.usage_sums.c.span == DAY_MS),
    Kept(t.usage_sums, t.usage_sums.c.began, lambda _: HOURS_KEPT_MS, t.usage_sums.c.span == HOUR_MS),
    Kept(t.usage_users, t.usage_users.c.began, _sums_ms),
    Kept(t.usage_routes, t.usage_routes.c.began, _sums_ms),
    Kept(t.archive, t.archive.c.ended, lambda settings: settings.archive_ttl_ms, page=LARGE),
    Kept(t.ledger, t.ledger.c.at, _audit_ms, t.ledger.c.kind == "task"),
    Kept(t.balances, t.balances.c.ends, _audit_ms, t.balances.c.fund != t.GRANTED),
    Kept(t.audit, t.audit.c.at, _audit_ms),
    Kept(t.rejections, t.rejections.c.minute, _days(REJECTIONS_DAYS)),
    Kept(t.webhook_deliveries, t.webhook_deliveries.c.began, _days(DELIVERIES_DAYS)),
    # of a leader that died after the end of its batch: the files hold them (a line's number is less than any time)
    Kept(t.batch_results, t.batch_results.c.line, _days(0), t.batch_results.c.batch.in_(_ENDED)),
    Kept(t.batches, t.batches.c.ended, _days(BATCHES_DAYS), t.batches.c.ended > 0, LARGE),
    Kept(t.responses, t.responses.c.expires, _days(0), page=LARGE),
)
"""All that expires: grants and their sums, keys and endpoints stay, and files have a sweep of their own."""


class Retention(Periodic):
    """Runs in every replica."""

    name = "retention"
    interval_s = LOOK_S
    expected = (DatabaseUnavailable,)

    def __init__(self, database: Database, current: ActiveConfig) -> None:
        self._database = database
        self._current = current
        self._kept = [(kept.statement, kept.ms) for kept in KEPT]
        self.delay_s = random.uniform(0, LOOK_S)  # noqa: S311 - not all replicas at the same time

    async def step(self) -> float:
        """Delete a part. Return the time to wait."""
        return REST_S if await self.forget(now_ms()) else LOOK_S

    async def forget(self, now_ms: int) -> bool:
        """Delete a part of each kind; return whether there may be more. Raises DatabaseUnavailable."""
        deleted = 0
        for statement, ms in self._kept:  # each in a transaction of its own, which is short
            before = now_ms - ms(self._current.settings)
            async with self._database.writing() as connection:
                deleted += (await connection.execute(statement, {"before": before})).rowcount
        return deleted > 0
