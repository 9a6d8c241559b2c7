"""Lets the oldest responses of callers go who have more than they may (`max_bytes_per_caller`).

Who writes is looked at, and nobody else: each process notes how much it has written of whom, and adds up what there is of one
caller, along an index, once that is a 32nd of what he may have. So a caller has at most what he may, and a 32nd more for each
process, for as long as it takes to delete it; and what is looked at costs a small part of what was written. After a start, and
where the setting becomes less, all are added up once.
"""

import asyncio
import contextlib
import random
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import structlog
from sqlalchemy import bindparam, delete, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.errors import DatabaseSlow, DatabaseUnavailable
from fairlane.gateway.database.tables import responses
from fairlane.queues.loops import end_tasks

log = structlog.get_logger("fairlane.gateway")

PARTS = 32
"""After which part of what a caller may have he is looked at."""
MOST_NOTED = 10_000
"""Callers of whom it is noted what was written; of others it begins anew."""
OVER_AT_ONCE = 100
"""Callers with too much that are found in one look at all."""
DELETED_AT_ONCE = 50
"""Their content may be large."""
REST_S = 0.02
"""Between two parts, so that others write between."""
AGAIN_S = 10.0
SPREAD_S = 60.0
"""Within which processes that start together look at all."""

_c = responses.c
_mine = (_c.user_name == bindparam("user"), _c.key_id == bindparam("key_id"))
_held = func.coalesce(func.sum(_c.size), 0)
_HELD: Final = select(_held).where(*_mine)
_OVER: Final = (
    select(_c.key_id, _c.user_name)
    .group_by(_c.user_name, _c.key_id)
    .having(func.sum(_c.size) > bindparam("most"))
    .limit(OVER_AT_ONCE)
)
_OLDEST: Final = select(_c.task, _c.size).where(*_mine).order_by(_c.created).limit(DELETED_AT_ONCE)
_DELETE: Final = delete(responses).where(_c.task.in_(bindparam("tasks", expanding=True)))


class Written:
    """How much was written of whom since he was looked at, and who is to be looked at. Decides, and does nothing itself."""

    def __init__(self) -> None:
        self._bytes: OrderedDict[Owner, int] = OrderedDict()
        self.due: OrderedDict[Owner, None] = OrderedDict()
        """Who is to be looked at, the first one first."""

    def add(self, owner: Owner, size: int, most: int) -> bool:
        """So much of a caller who may have `most` was written; whether he is to be looked at."""
        written = self._bytes.pop(owner, 0) + size
        if written * PARTS < most:
            self._bytes[owner] = written
            if len(self._bytes) > MOST_NOTED:
                self._bytes.popitem(last=False)
            return False
        self.due[owner] = None
        return True


class Trimming:
    """See the module. `start` begins, `close` ends."""

    def __init__(self, database: Database, most: Callable[[], int]) -> None:
        """`most`: bytes that a caller may have, as it holds now."""
        self._database = database
        self._most = most
        self._written = Written()
        self._looked_for: int | None = None
        """What callers might have when all were looked at last."""
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="trim-responses")

    async def close(self) -> None:
        """End."""
        await end_tasks(self._task)

    def wrote(self, owner: Owner, size: int) -> None:
        """So many bytes of a caller's content were written."""
        if self._written.add(owner, size, self._most()):
            self._wanted.set()

    async def _run(self) -> None:
        await asyncio.sleep(random.uniform(0, SPREAD_S))  # noqa: S311 - not all processes at once
        while True:
            try:
                await self.look_at_all()
                await self.trim()
            except DatabaseUnavailable:  # which the outbox tells
                await asyncio.sleep(AGAIN_S)
            except Exception:  # it is tried again
                log.exception("cannot delete the oldest responses of callers who have too much")
                await asyncio.sleep(AGAIN_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await self._wanted.wait()
            self._wanted.clear()

    async def look_at_all(self) -> None:
        """Find those with too much, once, and again where they may have less than before. Raises DatabaseUnavailable."""
        most = self._most()
        if self._looked_for is None or most < self._looked_for:
            try:
                async with self._database.reporting() as connection:
                    found = (await connection.execute(_OVER, {"most": most})).all()
            except DatabaseSlow:  # there are very many: those who write are looked at
                found = []
            self._written.due.update((Owner(*row), None) for row in found)
            if len(found) >= OVER_AT_ONCE:
                self._wanted.set()
                return
        self._looked_for = most

    async def trim(self) -> None:
        """Delete of those who are to be looked at what is too much. Raises DatabaseUnavailable: nobody is forgotten."""
        due = self._written.due
        while due:
            owner, _ = due.popitem(last=False)  # what he writes meanwhile is looked at again
            try:
                await self._trim(owner)
            except BaseException:
                due[owner] = None
                raise

    async def _trim(self, owner: Owner) -> None:
        async with self._database.reporting() as connection:
            held = await connection.scalar(_HELD, {"user": owner.user, "key_id": owner.key_id})
        excess = int(held or 0) - self._most()
        while excess > 0:
            async with self._database.writing() as connection:
                gone = await _let_go(connection, owner, excess)
            if not gone:
                return
            excess -= gone
            await asyncio.sleep(REST_S)


async def _let_go(connection: AsyncConnection, owner: Owner, excess: int) -> int:
    """Delete the oldest responses of a caller, until so many bytes are gone or a part is done; how many bytes were."""
    gone, tasks = 0, list[str]()
    for task, size in await connection.execute(_OLDEST, {"user": owner.user, "key_id": owner.key_id}):
        if gone >= excess:
            break
        tasks.append(task)
        gone += size
    if tasks:
        await connection.execute(_DELETE, {"tasks": tasks})
    return gone
