"""Parameters of several calls' queries: names, times and filters of tasks; and reports as CSV files."""

import asyncio
import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import Depends, Query, Response

from fairlane.gateway.errors import bad_request
from fairlane.gateway.http.request import Request
from fairlane.gateway.usage.reports import read_time

PLAIN = r"^[^\x00-\x1f\x7f]*$"
"""No control characters, which names never contain; PostgreSQL rejects NUL."""

Filter = Annotated[str, Query(max_length=256, pattern=PLAIN)]
Since = Annotated[
    str, Query(alias="from", max_length=20, description="A day (UTC), 2026-11-23, or ms since 1970.")
]
Until = Annotated[str, Query(alias="to", max_length=20, description="Exclusive; a day or ms, too.")]


def between(since: str, until: str) -> tuple[int, int]:
    """Return the start and the exclusive end of a period, ms. Raise ApiError."""
    return read_time(since or "0", "from"), read_time(until or "9" * 15, "to")


async def _filters(
    key: Filter = "",
    user: Filter = "",
    model: Filter = "",
    tier: Filter = "",
    status: Filter = "",
    code: Filter = "",
    category: Filter = "",
    route: Filter = "",
) -> dict[str, str]:
    """Return the filters in the query. (A coroutine, because FastAPI calls plain functions in a thread.)"""
    whose = {"key": key, "user": user, "model": model, "tier": tier}
    return given({**whose, "status": status, "code": code, "category": category, "route": route})


FiltersDep = Annotated[dict[str, str], Depends(_filters)]


def given(filters: dict[str, str]) -> dict[str, str]:
    """Return the filters that are not empty."""
    return {name: value for name, value in filters.items() if value}


Form = Annotated[str, Query(alias="format", json_schema_extra={"enum": ["json", "csv", ""]})]
CSV = {"text/csv": {"schema": {"type": "string"}}}

_FORMULA = re.compile(r"(^|[;,|\t\r\n])(?=\s*[=+\-@])")


def wants_csv(request: Request, form: str) -> bool:
    """Return whether the client wants CSV. Raise ApiError(400) for an unknown format."""
    if form not in ("", "csv", "json"):
        raise bad_request("format must be csv or json", "format")
    return form == "csv" or (not form and (request.header(b"accept") or "").startswith("text/csv"))


async def as_csv(
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    name: str,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return rows as a file."""
    text = io.StringIO()
    lines = csv.writer(text)
    lines.writerow(columns)
    await asyncio.to_thread(lines.writerows, ([_cell(row[column]) for column in columns] for row in rows))
    attached = {"content-disposition": f'attachment; filename="{name}.csv"', **(headers or {})}
    return Response(text.getvalue().encode(), media_type="text/csv", headers=attached)


def _cell(value: Any) -> Any:
    """Return a cell's value. A text that a spreadsheet reads as a formula gets an apostrophe, also after other separators."""
    if isinstance(value, bool):
        return str(value).lower()
    return _FORMULA.sub(r"\1'", value) if isinstance(value, str) else value
