"""What was used: the operators' calls, and a caller's own."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BeforeValidator

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.api import models
from fairlane.gateway.api.framing import KEY, NO_STORE, TheCaller, TheRequest, TheUsage, answer, refusals
from fairlane.gateway.calls.http import Request
from fairlane.gateway.errors import bad_request
from fairlane.gateway.records.reports import (
    DIMENSIONS,
    FILTERS,
    MEASURED,
    TASK_COLUMNS,
    TASK_FILTERS,
    UsageReports,
    Wanted,
    columns_by,
    in_pieces,
    period,
    read_by,
    read_time,
)
from fairlane.gateway.tasks.poll import now_ms

router = APIRouter(
    tags=["operators"], dependencies=[Depends(KEY)], responses=refusals(400, 401, 403, 429, 503, reports=True)
)
own = APIRouter(
    tags=["account"], dependencies=[Depends(KEY)], responses=refusals(400, 401, 403, 429, 503, reports=True)
)

TIMES = ("from", "to")
LIST = ("limit", "format")
MAX_VALUE = 256
MOST_ROWS = 10_000
MOST_OWN_ROWS = 1000
MOST_TASKS = 1000
ALWAYS = "9" * 15


PLAIN = r"^[^\x00-\x1f\x7f]*$"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def _count(text: Any) -> Any:
    """A number as people write it: digits alone."""
    if isinstance(text, str) and not (text.isascii() and text.isdigit() and len(text) <= 5):
        raise ValueError("must be a number")
    return text


def _plain(text: Any) -> Any:
    """Of no name is any a part, and PostgreSQL takes no NUL."""
    if isinstance(text, str) and _CONTROL.search(text):
        raise ValueError("must hold no control characters")
    return text


Count = BeforeValidator(_count)
Plain = BeforeValidator(_plain)
Filter = Annotated[str, Query(max_length=MAX_VALUE, pattern=PLAIN), Plain]
By = Annotated[str, Query(description=f"One to three of {', '.join(DIMENSIONS)}, with commas between.")]
Since = Annotated[
    str, Query(alias="from", max_length=20, description="A day (UTC), 2026-11-23, or ms since 1970.")
]
Until = Annotated[str, Query(alias="to", max_length=20, description="Before then; likewise.")]
Form = Annotated[str, Query(alias="format", json_schema_extra={"enum": ["json", "csv", ""]})]
CSV: dict[int | str, dict[str, Any]] = {200: {"content": {"text/csv": {"schema": {"type": "string"}}}}}


@router.get("/api/admin/usage", response_model=models.UsageReport, responses=CSV)
async def usage(
    usage: TheUsage,
    caller: TheCaller,
    request: TheRequest,
    by: By = "model",
    since: Since = "",
    until: Until = "",
    key: Filter = "",
    user: Filter = "",
    model: Filter = "",
    tier: Filter = "",
    state: Filter = "",
    code: Filter = "",
    family: Filter = "",
    limit: Annotated[int, Query(ge=1, le=MOST_ROWS), Count] = 1000,
    form: Form = "",
) -> Response:
    """What tasks used that ended from one day to before another (by hour: hours), added up. Without times the last 30 days, or 48
    hours; hours are kept for three days, and users are told by day.

    Days and hours are those of UTC. Rows with most tokens come first, times in their order; `total` is of all, also beyond the
    limit (`more`). CSV with `format=csv` or `Accept: text/csv`.
    """
    request.check_query("by", *TIMES, *FILTERS, *LIST)
    filters = _given(dict(zip(FILTERS, (key, user, model, tier, state, code, family), strict=True)))
    return await _sums(usage, caller, request, read_by(by), (since, until), filters, limit, form)


@router.get("/api/admin/usage/tasks", response_model=models.UsedTasks, responses=CSV)
async def tasks(
    usage: TheUsage,
    caller: TheCaller,
    request: TheRequest,
    since: Since = "",
    until: Until = "",
    task: Filter = "",
    key: Filter = "",
    user: Filter = "",
    model: Filter = "",
    tier: Filter = "",
    state: Filter = "",
    code: Filter = "",
    family: Filter = "",
    after: Annotated[str, Query(max_length=100, pattern=PLAIN), Plain] = "",
    limit: Annotated[int, Query(ge=1, le=MOST_TASKS), Count] = 100,
    form: Form = "",
) -> Response:
    """The records themselves, one per task, those that ended last first: from one time to before another, to the millisecond.

    `next` is the `after` that goes on, null at the end (of CSV: the header `x-next`). What is not known is null.
    """
    request.check_query(*TIMES, *TASK_FILTERS, "after", *LIST)
    filters = _given(
        dict(zip(TASK_FILTERS, (task, key, user, model, tier, state, code, family), strict=True))
    )
    wanted = Wanted(*between(since, until), filters)
    rows, more = await usage.tasks(wanted, after, limit, caller.key_id)
    if wants_csv(request, form):
        return await as_csv(TASK_COLUMNS, rows, "tasks", {"x-next": more} if more else {})
    return answer({"now": now_ms(), "tasks": rows, "next": more})


@own.get("/api/usage", response_model=models.UsageReport, responses=CSV)
async def own_usage(
    usage: TheUsage,
    caller: TheCaller,
    request: TheRequest,
    by: By = "day",
    since: Since = "",
    until: Until = "",
    user: Filter = "",
    model: Filter = "",
    tier: Filter = "",
    limit: Annotated[int, Query(ge=1, le=MOST_OWN_ROWS), Count] = 1000,
    form: Form = "",
) -> Response:
    """What the caller's own tasks used, as GET /api/admin/usage tells it.

    A delegating key sees all its users: `by=user`, or one of them with `user` (its name as the key gives it, or as rows show it).
    Where the request names a user itself (`X-Fairlane-User`), it sees that one alone.
    """
    request.check_query("by", *TIMES, "user", "model", "tier", *LIST)
    filters = {**_whose(caller, user), **_given({"model": model, "tier": tier})}
    return await _sums(usage, caller, request, read_by(by), (since, until), filters, limit, form)


def between(since: str, until: str) -> tuple[int, int]:
    """From when to before when, ms; what is not said is no bound. Raises ApiError."""
    return read_time(since or "0", "from"), read_time(until or ALWAYS, "to")


def _given(filters: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in filters.items() if value}


def _whose(caller: Caller, user: str) -> dict[str, str]:
    """The filters that leave a caller what is their own."""
    if caller.open:
        return {"key": caller.key_id, "user": caller.user}
    if not caller.delegating:
        if user and user != caller.user:
            raise bad_request("this key has no users but itself", "user")
        return {"key": caller.key_id, **_given({"user": caller.user if caller.claims else ""})}
    named = caller.user if caller.user != caller.key_id else ""
    if user and not user.startswith(f"{caller.key_id}/") and user != caller.key_id:
        user = f"{caller.key_id}/{user}"
    if named and user and user != named:
        raise bad_request("the request names another user (X-Fairlane-User)", "user")
    return {"key": caller.key_id, **_given({"user": named or user})}


async def _sums(
    usage: UsageReports,
    caller: Caller,
    request: Request,
    by: Sequence[str],
    times: tuple[str, str],
    filters: Mapping[str, str],
    limit: int,
    form: str,
) -> Response:
    begin, end = period(by, *times, now_ms())
    report = await usage.sums(by, Wanted(begin, end, filters), limit, caller.key_id)
    if wants_csv(request, form):
        return await as_csv([*columns_by(by), *MEASURED.values()], report.rows, "usage")
    return answer(
        {
            "now": now_ms(),
            "from": begin,
            "to": end,
            "by": by,
            "rows": report.rows,
            "total": report.total,
            "more": report.more,
        }
    )


# ---- as a table ----------

_FORMULA = re.compile(r"(^|[;,|\t\r\n])(?=\s*[=+\-@])")


def wants_csv(request: Request, form: str) -> bool:
    """Whether a table is asked for. Raises ApiError for a form that there is not."""
    if form not in ("", "csv", "json"):
        raise bad_request("format must be csv or json", "format")
    return form == "csv" or (not form and (request.header(b"accept") or "").startswith("text/csv"))


async def as_csv(
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    name: str,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Rows as a file."""
    text = io.StringIO()
    lines = csv.writer(text)
    lines.writerow(columns)
    await in_pieces(rows, lambda row: lines.writerow([_cell(row[column]) for column in columns]))
    attached = {"content-disposition": f'attachment; filename="{name}.csv"', **NO_STORE, **(headers or {})}
    return Response(text.getvalue().encode(), media_type="text/csv", headers=attached)


def _cell(value: Any) -> Any:
    """What a table program would take for a formula gets an apostrophe, also behind another separator than ours."""
    if isinstance(value, bool):
        return str(value).lower()
    return _FORMULA.sub(r"\1'", value) if isinstance(value, str) else value
