"""Parameters of several calls' queries: numbers, names, times and filters of tasks."""

import re
from typing import Annotated, Any

from fastapi import Depends, Query
from pydantic import BeforeValidator

from fairlane.gateway.records.reports import read_time

MAX_VALUE = 256
ALWAYS = "9" * 15

PLAIN = r"^[^\x00-\x1f\x7f]*$"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def _count(text: Any) -> Any:
    """Check that a number is written in digits. Raise ValueError."""
    if isinstance(text, str) and not (text.isascii() and text.isdigit() and len(text) <= 5):
        raise ValueError("must be a number")
    return text


def _plain(text: Any) -> Any:
    """Check for control characters, which names never contain; PostgreSQL rejects NUL. Raise ValueError."""
    if isinstance(text, str) and _CONTROL.search(text):
        raise ValueError("must hold no control characters")
    return text


Count = BeforeValidator(_count)
Plain = BeforeValidator(_plain)
Filter = Annotated[str, Query(max_length=MAX_VALUE, pattern=PLAIN), Plain]
Since = Annotated[
    str, Query(alias="from", max_length=20, description="A day (UTC), 2026-11-23, or ms since 1970.")
]
Until = Annotated[str, Query(alias="to", max_length=20, description="Exclusive; a day or ms, too.")]


def between(since: str, until: str) -> tuple[int, int]:
    """Return the start and the exclusive end of a period, ms. Raise ApiError."""
    return read_time(since or "0", "from"), read_time(until or ALWAYS, "to")


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
