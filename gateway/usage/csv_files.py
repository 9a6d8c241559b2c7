"""Reports as CSV files."""

import asyncio
import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import Query, Response

from fairlane.gateway.errors import bad_request
from fairlane.gateway.http.request import Request

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
