"""Rejected calls, counted by key, code and minute.

Each process counts its own, and adds the counts of a minute to the outbox when the minute is over, and the rest when it stops.
The key of their rows has process and minute, so entries that are added or written twice count once. A process that is killed
loses a minute.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import structlog
from sqlalchemy import desc, func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.database.inserting import insert_new
from fairlane.gateway.database.tables import rejections
from fairlane.gateway.http.paging import read_place
from fairlane.gateway.usage.reports import Wanted
from fairlane.queues.clock import now_ms
from fairlane.queues.errors import StoreError
from fairlane.queues.keys import Keys
from fairlane.queues.loops import Periodic
from fairlane.queues.store.link import RedisLink

log = structlog.get_logger("fairlane.gateway")

MINUTE_MS = 60_000
MAX_COUNTED = 1000
"""Different keys and codes of a minute; others count as OTHER."""
MAX_KEPT = 60
"""Minutes in memory while Redis is unavailable; older ones are dropped."""
OTHER = "(other)"
CLOSE_S = 2.0

_unpack = msgspec.msgpack.Decoder(tuple[str, list[tuple[int, str, str, int]]]).decode


class RejectionCounts(Periodic):
    """The counts of this process."""

    name = "rejections"
    interval_s = MINUTE_MS / 1000
    expected = (StoreError,)

    def __init__(self, link: RedisLink, keys: Keys, replica: str, now_ms: Callable[[], int] = now_ms) -> None:
        self._link = link
        self._outbox = keys("outbox")
        self._replica = replica
        self._now_ms = now_ms
        self._counts: dict[int, Counter[tuple[str, str]]] = {}
        """By the beginning of the minute."""
        self.delay_s = self._next_minute_s()

    def count(self, key_id: str, code: str) -> None:
        """Count a rejected call of a key."""
        now = self._now_ms()
        counts = self._counts.setdefault(now - now % MINUTE_MS, Counter())
        if len(self._counts) > MAX_KEPT:
            del self._counts[next(iter(self._counts))]
        which = key_id, code
        if which not in counts and len(counts) >= MAX_COUNTED:
            which = OTHER, code
        counts[which] += 1

    async def close(self) -> None:
        """Add the rest to the outbox, if Redis answers soon, and stop."""
        await super().close()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.bring(over_at=self._now_ms() + MINUTE_MS)
        except (StoreError, TimeoutError):
            lost = sum(map(Counter.total, self._counts.values()))
            log.warning("counts of rejected calls are lost: Redis does not accept them", rejections=lost)

    async def step(self) -> float:
        """Bring the minutes that are over. Return the time until the next one is."""
        await self.bring(over_at=self._now_ms())
        return self._next_minute_s()

    def _next_minute_s(self) -> float:
        return (MINUTE_MS - self._now_ms() % MINUTE_MS) / 1000 + 0.05

    async def bring(self, over_at: int) -> None:
        """Add the minutes that are over at this instant to the outbox. Raises StoreError: they stay."""
        for minute, counts in [*self._counts.items()]:
            if minute + MINUTE_MS > over_at:
                continue
            rows = [(minute, *which, count) for which, count in counts.items()]
            packed = msgspec.msgpack.encode((self._replica, rows))
            await self._link.command("XADD", self._outbox, "*", "rejections", packed)
            self._counts.pop(minute, None)  # `count` may have dropped it meanwhile


async def write_rejections(connection: AsyncConnection, packed: Sequence[bytes]) -> int:
    """See `outbox.Table`."""
    names = "minute", "key_id", "code", "count"
    rows = [
        {**dict(zip(names, counted, strict=True)), "replica": replica}
        for replica, counts in map(_unpack, packed)
        for counted in counts
    ]
    return await insert_new(connection, rejections, rows)


async def read_page(
    connection: AsyncConnection, wanted: Wanted, after: str, limit: int
) -> tuple[list[dict[str, Any]], str | None]:
    """Return counts by minute, key and code, the newest minute first, and the `after` of the next page. Filters: key, code.
    Raises ApiError."""
    columns = rejections.c
    order = columns.minute, columns.key_id, columns.code
    found = select(*order, func.sum(columns.count))
    found = found.where(columns.minute >= wanted.since, columns.minute < wanted.until)
    for name, value in wanted.filters.items():
        found = found.where(columns["key_id" if name == "key" else name] == value)
    if after:
        minute, rest = read_place(after, dots=1)
        code, _, key = rest.partition(".")  # (a key may hold dots)
        found = found.where(tuple_(*order) < tuple_(minute, key, code))
    found = found.group_by(*order).order_by(*map(desc, order)).limit(limit + 1)
    rows = (await connection.execute(found)).all()
    shown = [
        {"minute": minute, "key": key_id, "code": code, "count": int(count)}
        for minute, key_id, code, count in rows[:limit]
    ]
    last = shown[-1] if len(rows) > limit else None
    return shown, f"{last['minute']}.{last['code']}.{last['key']}" if last else None
