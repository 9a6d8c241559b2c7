"""Reads usage records: sums, and the tasks themselves. Sums come from the tables of sums, never from all rows."""

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, Table, and_, desc, func, literal_column, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.accounts.in_flight import too_many_calls
from fairlane.gateway.database.database import REPORT_S, REPORTS, Database
from fairlane.gateway.database.errors import DatabaseSlow
from fairlane.gateway.database.tables import MEASURES, usage, usage_routes, usage_sums, usage_users
from fairlane.gateway.errors import ApiError, bad_request
from fairlane.gateway.http.paging import read_place
from fairlane.gateway.prices.prices import credits_of
from fairlane.gateway.usage.usage import DAY_MS, HOUR_MS, HOURS_KEPT_MS
from fairlane.queues.failures import category_of, codes_of

DIMENSIONS = {
    "model": "model",
    "key": "key_id",
    "user": "user_name",
    "tier": "tier",
    "status": "state",
    "code": "code",
    "route": "route",
    "day": "began",
    "hour": "began",
}
"""What sums can be grouped by, and the column."""
SPANS = {"day": DAY_MS, "hour": HOUR_MS}
USUAL_DAYS, USUAL_HOURS = 30, 48
"""The default periods."""
MEASURED = dict(
    zip(
        MEASURES,
        (
            *("tasks", "completed", "failed", "cancelled"),
            *("inputTokens", "outputTokens", "cachedTokens", "reasoningTokens"),
            *("estimated", "waitedMs", "ranMs", "cost"),
        ),
        strict=True,
    )
)
SHOWN = {
    "task": "taskId",
    "ended": "endedAt",
    "enqueued": "enqueuedAt",
    "granted": "grantedAt",
    "first_output": "firstOutputAt",
    "state": "status",
    "code": "code",
    "key_id": "key",
    "user_name": "user",
    "tier": "tier",
    "queue": "queue",
    "task_type": "type",
    "model": "model",
    "scheduled": "scheduledAs",
    "worker": "workerId",
    "attempts": "attempts",
    "tries": "tries",
    "request": "requestId",
    "trace": "traceId",
    "input": "inputTokens",
    "output": "outputTokens",
    "cached": "cachedTokens",
    "reasoning": "reasoningTokens",
    "estimated": "estimated",
    "cost": "cost",
    "price": "price",
    "route": "route",
    "template": "template",
    "template_version": "templateVersion",
    "stage_name": "stage",
    "stage": "stageIndex",
    "part": "part",
}
"""Columns of a row, and their names in answers; costs are in credits. The task of a stage or part is its chain."""


def columns_by(by: Iterable[str]) -> list[str]:
    """Return the first columns of sums: after a code its category."""
    return [column for name in by for column in ((name, "category") if name == "code" else (name,))]


TASK_COLUMNS = columns_by(SHOWN.values())
"""The columns of a task in answers."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter: rows from `since` to before `until`, ms (tasks: their ends). `filters`: by the calls' parameters."""

    since: int = 0
    until: int = 10**15
    filters: Mapping[str, str] = field(default_factory=dict)


class Report(NamedTuple):
    """Sums: `rows` by group, and their `total`."""

    rows: list[dict[str, Any]]
    total: dict[str, int | Decimal]
    more: bool
    """There are more rows, which `total` includes."""


WAIT_S = 5.0
"""How long a report waits for others."""


class ReportSlots:
    """REPORTS at the same time, one for each key; others wait in line."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._all = asyncio.Semaphore(REPORTS)
        self._of_key: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        """Held by the report under way; there as long as one is, or waits."""

    @contextlib.asynccontextmanager
    async def __call__(self, who: str) -> AsyncIterator[AsyncConnection]:
        """Open a connection when it is the turn of `who`, the id of a key. Raise DatabaseUnavailable and ApiError."""
        async with contextlib.AsyncExitStack() as turn:
            try:
                async with asyncio.timeout(WAIT_S):
                    await turn.enter_async_context(self._of_key.setdefault(who, asyncio.Lock()))
                    await turn.enter_async_context(self._all)
            except TimeoutError:
                raise too_many_calls("There are too many reports at the same time") from None
            try:
                async with self._database.reporting(REPORT_S) as connection:
                    yield connection
            except DatabaseSlow as error:
                sentence = f"This report takes longer than {REPORT_S:.0f} s"
                hint = "ask for fewer days, or for one key, user or model"
                raise ApiError(503, "REPORT_TOO_LONG", f"{sentence}: {hint}") from error


class UsageReports:
    """Use cases. All raise DatabaseUnavailable and ApiError. `who`: the id of the client's key."""

    def __init__(self, slots: ReportSlots) -> None:
        self._slots = slots

    async def sums(self, by: Sequence[str], wanted: Wanted, limit: int, who: str = "") -> Report:
        """Return sums, those with most tokens first, times in their order."""
        table, where = _source(by, wanted)
        columns: list[ColumnElement[Any]] = [table.c[DIMENSIONS[name]] for name in by]
        sums = _sums(table)
        most = desc(func.sum(table.c.input + table.c.output)), desc(func.sum(table.c.tasks))
        order = [table.c.began] if set(by) & set(SPANS) else []
        found = select(*columns, *sums).where(where).group_by(*columns)
        found = found.order_by(*order, *most, *columns).limit(limit + 1)
        async with self._slots(who) as connection:
            rows = (await connection.execute(found)).all()
            # from the sums without users if no user is named: these are few
            table, where = _source([name for name in by if name != "user"], wanted)
            total = (await connection.execute(select(*_sums(table)).where(where))).one()
        shown = await asyncio.to_thread(lambda: [_shown(by, row) for row in rows[:limit]])
        return Report(shown, _measures(total), len(rows) > limit)

    async def tasks(
        self, wanted: Wanted, after: str, limit: int, who: str = ""
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Return tasks, those that ended last first, and the `after` of the next page."""
        found: Select[Any] = select(usage).where(
            usage.c.ended >= wanted.since, usage.c.ended < wanted.until, *_filters(usage, wanted)
        )
        if after:
            at, task = read_place(after)
            behind = and_(usage.c.ended == at, usage.c.task < task)
            found = found.where(usage.c.ended <= at, or_(usage.c.ended < at, behind))
        found = found.order_by(desc(usage.c.ended), desc(usage.c.task)).limit(limit + 1)
        async with self._slots(who) as connection:
            rows = (await connection.execute(found)).mappings().all()
        page = await asyncio.to_thread(lambda: [*map(_task, rows[:limit])])
        last = rows[limit - 1] if len(rows) > limit else None
        return page, f"{last['ended']}.{last['task']}" if last else None


def period(by: Sequence[str], since: str, until: str, now_ms: int) -> tuple[int, int]:
    """Return a period in whole days, or hours if `by` has them. Pure. Raises ApiError."""
    span = HOUR_MS if "hour" in by else DAY_MS
    end = read_time(until, "to") if until else now_ms + 1
    end = -(-end // span) * span
    usual = USUAL_HOURS * HOUR_MS if span == HOUR_MS else USUAL_DAYS * DAY_MS
    begin = read_time(since, "from") if since else end - usual
    if span == HOUR_MS and begin < now_ms - now_ms % HOUR_MS - HOURS_KEPT_MS:
        raise bad_request(
            f"hours are kept for {HOURS_KEPT_MS // DAY_MS} days: ask by day for what was before", "from"
        )
    if begin >= end:
        raise bad_request("from must be before to", "from")
    return begin - begin % span, end


def read_time(text: str, name: str) -> int:
    """ms since 1970, or a day (UTC): 2026-11-23. Pure. Raises ApiError."""
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return int(text)
    try:
        if len(text) != len("2026-11-23"):
            raise ValueError
        return max(int(datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp() * 1000), 0)
    except ValueError:
        raise bad_request(f"{name} must be a day such as 2026-11-23, or ms since 1970", name) from None


def read_by(text: str) -> list[str]:
    """What to add up by: one or more of DIMENSIONS. Pure. Raises ApiError."""
    names = text.split(",")
    if not all(name in DIMENSIONS for name in names) or len(set(names)) < len(names) or len(names) > 3:
        raise bad_request(f"by must be one to three of {', '.join(DIMENSIONS)}, with commas between", "by")
    if {"day", "hour"} <= set(names):
        raise bad_request("by must be day or hour, not both", "by")
    return names


def _sums(table: Table) -> list[Any]:
    return [func.coalesce(func.sum(table.c[name]), 0).label(name) for name in MEASURES]


def _source(by: Sequence[str], wanted: Wanted) -> tuple[Table, Any]:
    """Return the table of sums for a report, and a filter of its rows. That of routes has only tasks with a route."""
    asked = {*by, *wanted.filters}
    if "route" in asked:
        if other := sorted(asked & {"user", "hour", "status", "code", "category"}):
            raise bad_request(
                f"usage of routes is added up by day, and not by {other[0]}: the tasks themselves are at "
                "/api/admin/usage/tasks?route=",
                "route",
            )
        table, which = usage_routes, []
    elif "user" not in asked:
        span = HOUR_MS if "hour" in by else DAY_MS
        table, which = usage_sums, [usage_sums.c.span == span]
    elif other := sorted(asked & {"hour", "status", "code", "category"}):
        raise bad_request(
            f"usage of users is added up by day, and not by {other[0]}: look at the tasks themselves", "user"
        )
    else:
        table, which = usage_users, []
    began = table.c.began
    return table, and_(*which, began >= wanted.since, began < wanted.until, *_filters(table, wanted))


def _filters(table: Table, wanted: Wanted) -> list[ColumnElement[bool]]:
    columns = {**DIMENSIONS, "template": "template"}
    found: list[ColumnElement[bool]] = []
    for name, value in wanted.filters.items():
        if name == "category":
            found.append(table.c.code.in_(codes_of(value)))
        elif name == "task":  # (the index is of the rows of chains alone)
            of_chain = and_(table.c.chain != literal_column("''"), table.c.chain == value)
            found.append(or_(table.c.task == value, of_chain))
        else:
            found.append(table.c[columns[name]] == value)
    return found


def _shown(by: Sequence[str], row: Any) -> dict[str, Any]:
    shown = {
        name: _when(name, value) if name in SPANS else value for name, value in zip(by, row, strict=False)
    }
    if "code" in shown:
        shown["category"] = category_of(shown["code"])
    return {**shown, **_measures(row)}


def _measures(row: Any) -> dict[str, int | Decimal]:
    found: dict[str, int | Decimal] = {
        shown: int(getattr(row, name)) for name, shown in MEASURED.items()
    }  # (PostgreSQL adds up to a Decimal)
    return {**found, "cost": credits_of(int(row.cost))}


def _task(row: Any) -> dict[str, Any]:
    shown = {public: row[name] for name, public in SHOWN.items()}
    shown["taskId"] = row["chain"] or row["task"]
    shown["category"] = category_of(row["code"])
    if row["cost"] is not None:
        shown["cost"] = credits_of(row["cost"])
    return shown


def _when(span: str, began: int) -> str:
    """`2026-11-23`, `2026-11-23T16:00Z`."""
    at = datetime.fromtimestamp(began / 1000, UTC)
    return at.strftime("%Y-%m-%d" if span == "day" else "%Y-%m-%dT%H:%MZ")
