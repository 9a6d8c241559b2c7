"""Brings the logs of kept responses that have ended from Redis to SQL. `records/archive.py` asks, for each once it has ended;
Redis forgets one only when SQL has it, so whoever dies in between, another replica does the same once more."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec
import structlog
from sqlalchemy import delete, insert, or_, update

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
"""From so many bytes on a part is packed in a thread: others run meanwhile."""


class Collected(NamedTuple):
    """A whole log, and what it comes to."""

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

    async def keep(self, task_id: str, record: Record) -> None:
        """Write down how a task has ended that is a response; nothing where that is not kept any more. Repeated, it changes
        nothing; a later end counts, as Redis had forgotten the one before. Raises StoreError and DatabaseUnavailable."""
        ended = record.number("ed")
        row = await self._store.row(task_id, now_ms=0)
        if row is None or (row.ended is not None and row.ended >= ended):
            return
        try:
            collected = await self._collect(row)
        except Lost:
            return  # it was dropped
        if collected is None:
            log.warning("the log of a response is too large to be kept", task_id=task_id, most=MOST_BYTES)
            return
        parts, status, output = collected
        rows = [{"task": task_id, "part": part, "events": events} for part, events in enumerate(parts)]
        size = len(output) + sum(map(len, parts))
        here = responses.c
        told = {"ended": ended, "status": status, "output": output, "size": here.size + size}
        later = or_(here.ended.is_(None), here.ended < ended)
        async with self._database.writing() as connection:
            done = await connection.execute(update(responses).where(here.task == task_id, later).values(told))
            if not done.rowcount:
                return
            await connection.execute(delete(response_logs).where(response_logs.c.task == task_id))
            await connection.execute(insert(response_logs), rows)
            if row.background:
                await announce(connection, Owner(row.key_id, row.user), f"response.{status}", row.id, ended)

    async def _collect(self, row: Row) -> Collected | None:
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
                return None
            parts.append(pack(events) if held < LARGE else await asyncio.to_thread(pack, events))
            for event in events:
                view.feed(event)
            if events[-1].terminal:
                return Collected(parts, *told_by(view))
            epoch, seq = events[-1].epoch, events[-1].seq


def told_by(view: ResponsesBodyView) -> tuple[str, bytes]:
    """The status and the output that a view of a whole log tells."""
    return msgspec.json.decode(view.body(), type=_Body).status, b"[%b]" % b",".join(view.output())


class _Body(msgspec.Struct):
    status: str
