"""Parameters of several calls' queries: names, times and filters of tasks."""

from typing import Annotated

from fastapi import Depends, Query

from fairlane.gateway.usage.reports import read_time

ALWAYS = "9" * 15

PLAIN = r"^[^\x00-\x1f\x7f]*$"
"""No control characters, which names never contain; PostgreSQL rejects NUL."""

Filter = Annotated[str, Query(max_length=256, pattern=PLAIN)]
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
