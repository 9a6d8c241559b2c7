"""The archive: results of async tasks in SQL, for polls after Redis has deleted them; of responses the whole log
(`responses/log_archive.py`).

The script that ends a task adds its id to a stream of its own, and keeps record, log and, if configured, request as long as the
archive does (archive.lua). A replica takes a few ids at a time, builds the answer of a poll, and writes it. Only then
`confirm_archived` shortens the time for which Redis keeps the task. If a replica dies in between, another one repeats this.
Results that Redis drops before, at `max_retained_bytes`, are not archived.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import msgspec
import structlog
from sqlalchemy import null, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.core.poll import Archived, Poll
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.database.tables import MAX_OF_A_VALUE, archive
from fairlane.gateway.errors import ApiError
from fairlane.gateway.records.erasure import ErasedUsers
from fairlane.gateway.records.outbox import GROUP, Entry, Outbox
from fairlane.queues.errors import StoreError
from fairlane.queues.keys import Keys
from fairlane.queues.loops import gather_all
from fairlane.queues.metrics import RECORDS_WRITTEN, Recorder
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.store.link import RedisLink
from fairlane.queues.tasks import TERMINAL, Record

log = structlog.get_logger("fairlane.gateway")

MAX_EARLY = 100
"""Ends that one process tries again each second."""


Keep = Callable[[Sequence[tuple[str, Record]]], Awaitable[Collection[str]]]
"""Archives tasks that have ended; returns those that cannot be archived yet."""


class Archive(Outbox):
    """Moves results to the archive. See `Outbox`."""

    name = "archive"
    page = 20

    def __init__(
        self,
        link: RedisLink,
        keys: Keys,
        database: Database,
        metrics: Recorder,
        scheduler: Scheduler,
        poll: Poll,
        erased: ErasedUsers,
        current: ActiveConfig,
    ) -> None:
        super().__init__(link, keys, database, {}, metrics)
        self._scheduler = scheduler
        self._poll = poll
        self._erased = erased
        self._current = current
        self.keep_logs: Keep = self._keep
        """Archives tasks with their logs; set by the feature that has such tasks."""
        self._early: list[Entry] = []
        """Ends of responses whose rows are not written yet, to be tried again soon."""

    async def _take(self) -> list[Entry]:
        early, self._early = self._early, []
        return [*early, *await super()._take()]

    async def _record(self, page: Sequence[Entry]) -> list[bytes]:
        ended: list[tuple[Entry, Record]] = []
        done = []
        records = await gather_all(self._scheduler.position(entry.packed.decode()) for entry in page)
        for entry, record in zip(page, records, strict=True):
            if record is None or record.state not in TERMINAL:  # Redis has deleted it
                done.append(entry.id)
            else:
                ended.append((entry, record))
        done += await self._try([end for end in ended if end[1].archives_log], self.keep_logs)
        for end in ended:
            if not end[1].archives_log:
                done += await self._try([end], self._keep)
        return done

    async def _try(self, ends: Sequence[tuple[Entry, Record]], keep: Keep) -> list[bytes]:
        """Archive ends together, or one by one if that fails. Return the entries of those that are archived. `keep` returns the
        tasks that it cannot archive yet."""
        if not ends:
            return []
        try:
            early = await keep([(entry.packed.decode(), record) for entry, record in ends])
        except (DatabaseUnavailable, StoreError):
            raise
        except Exception:
            # what is not kept stays in Redis, and is tried again when it has been idle for LEFT_MS
            if len(ends) > 1:
                return [entry for end in ends for entry in await self._try([end], keep)]
            task_id = ends[0][0].packed.decode()
            log.exception("a result cannot be archived: it stays in Redis", task_id=task_id)
            return []
        waits = [entry for entry, _ in ends if entry.packed.decode() in early]
        self._early = [*self._early, *waits][:MAX_EARLY]  # others: when they have been idle for LEFT_MS
        return [entry.id for entry, _ in ends if entry.packed.decode() not in early]

    async def _forget(self, page: Sequence[Entry], recorded: Sequence[bytes]) -> None:
        wanted = set(recorded)
        entries = [(entry.id.decode(), entry.packed.decode()) for entry in page if entry.id in wanted]
        ask = msgspec.msgpack.encode({"group": GROUP, "entries": entries})
        await self._link.run("confirm_archived", ask)

    async def _keep(self, ends: Sequence[tuple[str, Record]]) -> Collection[str]:
        """Archive a task that has ended."""
        [(task_id, record)] = ends
        fields, request = record.fields, None
        if "keep_request" in fields:
            request = await self._scheduler.request(task_id)
        try:
            answer = b"".join(await self._poll.answer(task_id, record, ""))
        except ApiError:
            return ()  # its log was dropped
        if len(answer) > MAX_OF_A_VALUE:
            size = {"bytes": len(answer), "most": MAX_OF_A_VALUE}
            log.warning("a result is too large for the archive", task_id=task_id, **size)
            return ()
        row = {
            "task": task_id,
            "enqueued": record.number("enqueued_at"),
            "ended": record.number("ended_at"),
            "key_id": fields.get("key_id", ""),
            "user_name": fields["user"],
            "state": record.state.value,
            "answer": answer,
            "request": request,
        }
        async with self._database.writing() as connection:
            if await self._erased.was(connection, fields["user"], record.number("enqueued_at")):
                return ()
            await write(connection, row)
        self._metrics.count(RECORDS_WRITTEN)
        return ()

    async def find(self, task_id: str, with_request: bool) -> Archived | None:
        """See `FindArchived`."""
        settings, endpoints = self._current.settings, self._current.endpoints
        if settings.archive == "off" and not len(endpoints):  # whose results are always archived
            return None
        columns = archive.c
        request = columns.request if with_request else null()
        wanted = select(
            *(columns.key_id, columns.user_name, columns.state, columns.ended, columns.answer),
            *(request, columns.enqueued),
        )
        async with self._database.reporting() as connection:
            row = (await connection.execute(wanted.where(columns.task == task_id))).one_or_none()
        return None if row is None else Archived(*row)


async def write(connection: AsyncConnection, row: dict[str, Any]) -> None:
    """Write a result. A later end replaces an earlier one, which Redis has lost: clients get the later one."""
    insert: Any = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    statement = insert(archive).values(row)
    changed = {name: statement.excluded[name] for name in row if name != "task"}
    later = archive.c.ended < statement.excluded.ended
    await connection.execute(
        statement.on_conflict_do_update(index_elements=["task"], set_=changed, where=later)
    )
