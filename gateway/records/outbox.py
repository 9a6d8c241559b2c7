"""Moves records from the outbox in Redis to SQL.

Every replica does, a page at a time: it claims new entries, writes them in one transaction, and only then deletes them in Redis.
If it dies or loses a connection in between, other replicas claim these entries once they have been idle for longer than any
transaction lasts. Entries can be written twice, so writes are idempotent: the key of a row is its task. All replicas read as one
consumer of one group, so no consumer is left over when a replica is gone. While SQL is unavailable entries wait; above
`outbox_max_entries` no task is accepted.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import structlog
from redis.exceptions import ResponseError
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.database.database import DEADLINE_S, Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.queues.errors import StoreError
from fairlane.queues.keys import Keys
from fairlane.queues.loops import Periodic
from fairlane.queues.metrics import RECORDS_WRITTEN, Recorder
from fairlane.queues.store.link import RedisLink

log = structlog.get_logger("fairlane.gateway")

GROUP, CONSUMER = "sql", "replicas"
PAGE = 500
POLL_S = 1.0
"""Between two reads of new entries, and so the delay of records."""
LEFT_MS = round(DEADLINE_S * 4000)
"""An entry that was claimed and not written for this time is claimed again: no transaction lasts as long."""
LEFT_POLL_S = 10.0
CATCH_UP_S = 1.0
RECENT_MS = 10_000


class Entry(NamedTuple):
    """One entry of the outbox."""

    id: bytes
    kind: str
    packed: bytes


Table = Callable[[AsyncConnection, Sequence[bytes]], Awaitable[int]]
"""Writes entries of one kind in a transaction; returns the number of new ones. Raises any error for an invalid entry."""


class Outbox(Periodic):
    """See the module. After `close`, other replicas or the next start move the rest."""

    name = "outbox"
    page = PAGE
    interval_s = POLL_S
    expected = (StoreError, DatabaseUnavailable)

    def __init__(
        self, link: RedisLink, keys: Keys, database: Database, tables: Mapping[str, Table], metrics: Recorder
    ) -> None:
        """`tables`: by kind. Entries of another kind are left to a newer release."""
        self._link = link
        self._outbox = keys(self.name)
        self._database = database
        self._tables = tables
        self._metrics = metrics
        self._now = asyncio.get_running_loop().time
        self._page: list[Entry] = []
        """Entries that were claimed and are not written yet."""
        self._left_from = b"0-0"
        self._look_for_left_at = 0.0
        self._turn = asyncio.Lock()
        self.wake: asyncio.Event = asyncio.Event()

    async def close(self) -> None:
        """Stop, after the page under way, or after CATCH_UP_S: other replicas would claim it LEFT_MS later."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_S):
                await self._turn.acquire()  # never released: nothing is moved any more
        await super().close()

    async def catch_up(self) -> None:
        """Wait until the current entries of the last RECENT_MS are in SQL, also those that other replicas move; CATCH_UP_S at
        most. (Older ones cannot be written.)"""
        if self._task is None or self._database.trouble is not None:
            return
        with contextlib.suppress(TimeoutError, StoreError):
            async with asyncio.timeout(CATCH_UP_S):
                for newest, _ in await self._link.command("XREVRANGE", self._outbox, "+", "-", "COUNT", 1):
                    recent = int(newest.partition(b"-")[0]) - RECENT_MS
                    self.wake.set()
                    while await self._link.command("XRANGE", self._outbox, recent, newest, "COUNT", 1):
                        await asyncio.sleep(CATCH_UP_S / 50)

    async def step(self) -> float | None:
        """Move a page. If that fails, its entries stay where they are."""
        async with self._turn:
            return 0.0 if await self.carry() else None

    async def carry(self) -> bool:
        """Move one page; return whether there may be more. Raises StoreError, DatabaseUnavailable: then nothing is lost."""
        if not self._page:
            self._page = await self._take()
        page = self._page
        if not page:
            return False
        recorded = await self._record(page)
        if recorded:
            await self._forget(page, recorded)
        self._page = []
        return len(page) >= self.page

    async def _forget(self, page: Sequence[Entry], recorded: Sequence[bytes]) -> None:  # noqa: ARG002 - for others
        """Delete these entries of a page, which SQL has."""
        ask = msgspec.msgpack.encode({"group": GROUP, "ids": [entry.decode() for entry in recorded]})
        await self._link.run("confirm_recorded", ask)

    async def _take(self) -> list[Entry]:
        """Claim entries that are left over, else new ones."""
        try:
            return await self._take_left() or await self._take_new()
        except ResponseError as error:
            if not str(error).startswith("NOGROUP"):
                raise
        try:  # the first entry ever, or Redis was emptied
            await self._link.command("XGROUP", "CREATE", self._outbox, GROUP, "0", "MKSTREAM")
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise
        return await self._take_new()

    async def _take_left(self) -> list[Entry]:
        if self._now() < self._look_for_left_at:
            return []
        reply = await self._link.command(
            "XAUTOCLAIM", self._outbox, GROUP, CONSUMER, LEFT_MS, self._left_from, "COUNT", self.page
        )
        self._left_from = reply[0]
        if self._left_from == b"0-0":
            self._look_for_left_at = self._now() + LEFT_POLL_S
        return _entries(reply[1])

    async def _take_new(self) -> list[Entry]:
        reply = await self._link.command(
            "XREADGROUP", "GROUP", GROUP, CONSUMER, "COUNT", self.page, "STREAMS", self._outbox, ">"
        )
        return _entries(reply[0][1]) if reply else []

    async def _record(self, page: Sequence[Entry]) -> list[bytes]:
        """Write a page; return the ids of the entries that SQL has. Entries that cannot be written stay in the outbox."""
        known = [entry for entry in page if entry.kind in self._tables]
        try:
            await self._commit(known)
            return [entry.id for entry in known]
        except DatabaseUnavailable:
            raise
        except Exception:  # one entry is invalid, and nothing is written: write each by itself
            recorded = []
            for entry in known:
                try:
                    await self._commit([entry])
                    recorded.append(entry.id)
                except DatabaseUnavailable:
                    raise
                except Exception:  # it stays, and is claimed again when it has been idle for LEFT_MS
                    log.exception(
                        "a record cannot be written: it stays in the outbox", entry=entry.id.decode()
                    )
            return recorded

    async def _commit(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        written = 0
        async with self._database.writing() as connection:
            for kind, table in self._tables.items():
                packed = [entry.packed for entry in entries if entry.kind == kind]
                if packed:
                    written += await table(connection, packed)
        if written:
            self._metrics.count(RECORDS_WRITTEN, number=written)


def _entries(raw: Sequence[Any]) -> list[Entry]:
    return [Entry(entry_id, fields[0].decode(), fields[1]) for entry_id, fields in raw if fields]
