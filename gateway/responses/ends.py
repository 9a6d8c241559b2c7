"""Brings the logs of kept responses that have ended from Redis to SQL. `records/archive.py` asks, for each once it has ended;
Redis forgets one only when SQL has it, so whoever dies in between, another replica does the same once more."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import msgspec
import structlog
from sqlalchemy import and_, delete, insert, or_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.database.database import Database
from fairlane.gateway.database.tables import response_logs, responses
from fairlane.gateway.responses.logs import pack
from fairlane.gateway.responses.rows import Row
from fairlane.gateway.responses.store import ResponseStore
from fairlane.gateway.webhooks.announcing import Owner, announce
from fairlane.queues.tasks import Record
from fairlane.streaming.events import Event
from fairlane.streaming.hub import Lost
from fairlane.streaming.views.responses import ResponsesBodyView

log = structlog.get_logger("fairlane.gateway")

MOST_BYTES = 64 << 20
"""Of a log: what is larger fits neither the drivers nor the memory of those who read it well."""
LARGE = 256 * 1024
"""From so many bytes on a part is packed, and the answer of a log made, in a thread: others run meanwhile."""


class Collected(NamedTuple):
    """A whole log, and what it comes to."""

    row: Row
    ended: int
    parts: list[bytes]
    status: str
    output: bytes
    """Items, a JSON list."""


class ResponseEnds:
    """`page` reads a part of a log behind an event, as `Hub.page`."""

    def __init__(
        self,
        database: Database,
        store: ResponseStore,
        page: Callable[[str, int, int], Awaitable[list[Event]]],
    ) -> None:
        self._database = database
        self._store = store
        self._page = page

    async def keep(self, ends: Sequence[tuple[str, Record]]) -> None:
        """Write down how these tasks have ended, which are responses, all or none; nothing of those that are not kept any more.
        Repeated, it changes nothing; a later end counts, as Redis had forgotten the one before. Raises StoreError and
        DatabaseUnavailable."""
        collected = [found for end in ends if (found := await self._end(*end)) is not None]
        if not collected:
            return
        async with self._database.writing() as connection:
            for found in collected:
                await _write(connection, found)

    async def _end(self, task_id: str, record: Record) -> Collected | None:
        ended = record.number("ed")
        row = await self._store.row(task_id, now_ms=0)
        if row is None or (row.ended is not None and row.ended >= ended):
            return None
        try:
            return await self._collect(row, ended)
        except Lost:
            return None  # it was dropped

    async def _collect(self, row: Row, ended: int) -> Collected | None:
        """The log of a task that has ended, whole; None: it is too large. Raises Lost, and StoreError."""
        view, parts, size = ResponsesBodyView(row.info, row.echo), list[bytes](), 0
        epoch = seq = 0
        while True:
            events = await self._page(row.task_id, epoch, seq)
            if not events:
                raise Lost
            held = sum(len(event.data) for event in events)
            size += held
            if size > MOST_BYTES:
                log.warning("the log of a response is too large to be kept", task_id=row.task_id, bytes=size)
                return None
            parts.append(pack(events) if held < LARGE else await asyncio.to_thread(pack, events))
            for event in events:
                view.feed(event)
            if events[-1].terminal:
                told = told_by(view) if size < LARGE else await asyncio.to_thread(told_by, view)
                return Collected(row, ended, parts, *told)
            epoch, seq = events[-1].epoch, events[-1].seq


async def _write(connection: AsyncConnection, found: Collected) -> None:
    row, ended, parts, status, output = found
    rows = [{"task": row.task_id, "part": part, "events": events} for part, events in enumerate(parts)]
    here, logs = responses.c, response_logs.c
    size = here.size + (len(output) + sum(map(len, parts)))
    told = {"ended": ended, "status": status, "output": output, "size": size}
    mine = and_(here.task == row.task_id, or_(here.ended.is_(None), here.ended < ended))
    if not (await connection.execute(update(responses).where(mine).values(told))).rowcount:
        return  # it was deleted meanwhile, or another replica was first
    await connection.execute(delete(response_logs).where(logs.task == row.task_id))
    await connection.execute(insert(response_logs), rows)
    if row.background:
        await announce(connection, Owner(row.key_id, row.user), f"response.{status}", row.id, ended)


def told_by(view: ResponsesBodyView) -> tuple[str, bytes]:
    """The status and the output that a view of a whole log tells."""
    return msgspec.json.decode(view.body(), type=_Body).status, b"[%b]" % b",".join(view.output())


class _Body(msgspec.Struct):
    status: str
