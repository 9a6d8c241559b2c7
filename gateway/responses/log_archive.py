"""The logs of stored responses in SQL: parts of packed and compressed events, and their reader, as the hub's reads Redis.

`archive/archive.py` calls `LogArchive` after each end. Redis keeps a log until SQL has it, so another replica repeats the work of
one that dies in between. A task may end before its row is written (`pending.py`): its log then waits in Redis until the task is
older than ROW_WITHIN_MS.
"""

import asyncio
import contextlib
import zlib
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, NamedTuple

import msgspec
import structlog
from sqlalchemy import bindparam, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.tables import MAX_OF_A_VALUE, response_logs, responses
from fairlane.gateway.responses.store import ResponseStore, Row
from fairlane.gateway.webhooks.enqueue import End, enqueue
from fairlane.queues.loops import gather_all
from fairlane.queues.tasks import Record
from fairlane.streaming.events import Event
from fairlane.streaming.hub import Interrupted, Lost, Take
from fairlane.streaming.views.responses import ResponsesBodyView

LEVEL = 1
"""zlib's: texts of events repeat themselves, so that the lowest level saves nearly as much as the highest."""

LARGE = 256 * 1024
"""A part of this many packed bytes is unpacked in a thread."""

_unpack = msgspec.msgpack.Decoder(list[tuple[int, int, str, bytes]]).decode


def pack(events: Sequence[Event]) -> bytes:
    """Return events as one part of a log."""
    plain = [(event.epoch, event.seq, event.type, event.data) for event in events]
    return zlib.compress(msgspec.msgpack.encode(plain), LEVEL)


def unpack(packed: bytes) -> list[Event]:
    """Return the events of a part. Raise ValueError."""
    try:
        return [Event(*event) for event in _unpack(zlib.decompress(packed))]
    except (zlib.error, msgspec.MsgspecError) as error:
        raise ValueError(f"invalid part of a log: {error}") from error


class ArchiveReader:
    """Reads a whole log, part by part on demand. It has the members of `hub.Reader` that `serve` uses."""

    feed = None
    """There are no live events."""

    def __init__(self, part: Callable[[int], Awaitable[bytes | None]]) -> None:
        """`part` reads a part by its number; None after the last one."""
        self._part = part
        self._next = 0
        self._interrupted = False
        self.seq = 0

    async def next(self, timeout: float, take: Take | None = None) -> list[Event]:  # noqa: ARG002 - nothing is waited for
        """Return the events of the next part. Raise Lost after the last one, if the log is incomplete or was deleted meanwhile;
        Interrupted; and DatabaseUnavailable."""
        if self._interrupted:
            raise Interrupted
        packed = await self._part(self._next)
        if packed is None:
            raise Lost
        self._next += 1
        events = unpack(packed) if len(packed) < LARGE else await asyncio.to_thread(unpack, packed)
        self.seq = events[-1].seq
        return events

    def wait(self, timeout: float) -> None:
        """Nothing is waited for."""

    def interrupt(self) -> None:
        """Let `next` raise Interrupted."""
        self._interrupted = True


log = structlog.get_logger("fairlane.gateway")

ROW_WITHIN_MS = 60_000
"""How long after its submission the row of a task can be written, also by a client that repeats its idempotency key after its
gateway died."""
MAX_CONCURRENT = 4
"""Logs that are read at the same time."""
LARGE = 256 * 1024
"""A part of this many bytes is packed in a thread."""


class Collected(NamedTuple):
    """A whole log and its outcome."""

    row: Row
    ended: int
    parts: list[bytes]
    status: str
    output: bytes
    """Items, a JSON list."""

    @property
    def values(self) -> dict[str, Any]:
        """The parameters of `_ENDED`."""
        return {
            "of": self.row.task_id,
            "at": self.ended,
            "as_": self.status,
            "output_": self.output,
            "more": len(self.output) + sum(map(len, self.parts)),
        }


class LogArchive:
    """See the module."""

    def __init__(
        self,
        database: Database,
        store: ResponseStore,
        page: Callable[[str, int, int], Awaitable[list[Event]]],
        wrote: Callable[[Owner], None],
    ) -> None:
        """`page`: `Hub.page`. `wrote`: `StorageQuota.wrote`."""
        self._database = database
        self._store = store
        self._page = page
        self._wrote = wrote

    async def keep(self, ends: Sequence[tuple[str, Record]]) -> Collection[str]:
        """Store the logs of those ended tasks that are stored responses, in one transaction. Return the tasks whose rows may
        still be written. Raise StoreError and DatabaseUnavailable.

        Repeated, it changes nothing; a later end replaces an earlier one, which Redis had lost.
        """
        ended = {task_id: record.number("ended_at") for task_id, record in ends}
        rows = await self._store.rows(ended, now_ms=0)
        there = {row.task_id for row in rows}
        early = {task_id for task_id, record in ends if task_id not in there and _is_young(record)}
        new = [row for row in rows if row.ended is None or row.ended < ended[row.task_id]]
        turns = asyncio.Semaphore(MAX_CONCURRENT)

        async def whole(row: Row) -> Collected | None:
            async with turns:
                with contextlib.suppress(Lost):  # it was dropped
                    return await self._collect(row, ended[row.task_id])
            return None

        made = await gather_all(map(whole, new))
        collected = [found for found in made if found is not None]
        if collected:
            async with self._database.writing() as connection:
                await _write(connection, collected)
            for found in collected:
                self._wrote(found.row.owner)
        return early

    async def _collect(self, row: Row, ended: int) -> Collected | None:
        """Return the whole log of a task that has ended; None: it is too large. Raise Lost and StoreError."""
        view, parts, size = ResponsesBodyView(row.info, row.echo), list[bytes](), 0
        epoch = seq = 0
        while True:
            events = await self._page(row.task_id, epoch, seq)
            if not events:
                raise Lost
            held = sum(len(event.data) for event in events)
            size += held
            if size > MAX_OF_A_VALUE:
                log.warning(
                    "the log of a response is too large to be stored", task_id=row.task_id, bytes=size
                )
                return None
            parts.append(pack(events) if held < LARGE else await asyncio.to_thread(pack, events))
            for event in events:
                view.feed(event)
            if events[-1].terminal:
                return Collected(row, ended, parts, view.response_status, b"[%b]" % b",".join(view.output()))
            epoch, seq = events[-1].epoch, events[-1].seq


def _is_young(record: Record) -> bool:
    return record.now_ms - record.number("enqueued_at") < ROW_WITHIN_MS


_here, _logs = responses.c, response_logs.c
_THERE = (
    select(_here.task, _here.ended)
    .where(_here.task.in_(bindparam("tasks", expanding=True)))
    .with_for_update()
)
_REPLACED = delete(response_logs).where(_logs.task.in_(bindparam("tasks", expanding=True)))
_ENDED = (
    update(responses)
    .where(_here.task == bindparam("of"))
    .values(
        ended=bindparam("at"),
        status=bindparam("as_"),
        output=bindparam("output_"),
        size=_here.size + bindparam("more"),
    )
)
_PARTS = insert(response_logs)


async def _write(connection: AsyncConnection, collected: Sequence[Collected]) -> None:
    """Write the ends of responses that still exist and have no later end."""
    tasks = [found.row.task_id for found in collected]
    there = {row.task: row.ended for row in await connection.execute(_THERE, {"tasks": tasks})}
    new = [found for found in collected if (there.get(found.row.task_id, found.ended) or 0) < found.ended]
    if not new:
        return
    replaced = [found.row.task_id for found in new if there[found.row.task_id] is not None]
    if replaced:
        await connection.execute(_REPLACED, {"tasks": replaced})
    await connection.execute(_ENDED, [found.values for found in new])
    parts = [
        {"task": found.row.task_id, "part": part, "events": events}
        for found in new
        for part, events in enumerate(found.parts)
    ]
    await connection.execute(_PARTS, parts)
    ends = [
        End(found.row.owner, f"response.{found.status}", found.row.id, found.ended)
        for found in new
        if found.row.background
    ]
    await enqueue(connection, ends)
