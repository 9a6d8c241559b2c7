"""Writes rows of responses to SQL. Those that come while a transaction is under way share the next one."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final

import structlog
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.database.tables import responses
from fairlane.gateway.responses.rows import New
from fairlane.queues.loops import cancel_and_wait

log = structlog.get_logger("fairlane.gateway")

WRITE_S = 5.0
"""The deadline of a transaction."""
PAGE = 200
"""Responses in one transaction."""
PAGE_BYTES = 32 << 20
MAX_WAITING_BYTES = 256 << 20

_INSERT: Final[Mapping[str, Any]] = {
    "sqlite": sqlite.insert(responses).on_conflict_do_nothing(index_elements=["task"]),
    "postgresql": postgresql.insert(responses).on_conflict_do_nothing(index_elements=["task"]),
}

Waiting = tuple[New, asyncio.Future[None]]


class ResponseWriter:
    """See the module."""

    def __init__(
        self,
        database: Database,
        erased: Callable[[AsyncConnection, Collection[str]], Awaitable[Mapping[str, int]]],
        wrote: Callable[[Owner], None],
        count: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`erased`: `ErasedUsers.of`. `wrote`: `StorageQuota.wrote`. `count` counts responses by their bytes, 0 for a failure."""
        self._database = database
        self._erased = erased
        self._wrote = wrote
        self._count = count
        self._waiting: list[Waiting] = []
        self._waiting_bytes = 0
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to write."""
        self._task = asyncio.create_task(self._run(), name="write-responses")

    async def close(self) -> None:
        """Stop. Responses that still wait are rejected."""
        await cancel_and_wait(self._task)
        self._reject(DatabaseUnavailable("the gateway stops"))

    async def check(self) -> None:
        """Raise DatabaseUnavailable if the database failed the last write and still takes none."""
        if self._database.trouble is not None:
            async with self._database.writing(WRITE_S):
                pass

    async def write(self, new: New) -> None:
        """Return when the row is committed; a row of the same task stays as it is. Raise DatabaseUnavailable."""
        if self._waiting_bytes + new.size > MAX_WAITING_BYTES:
            raise DatabaseUnavailable(f"{self._waiting_bytes} bytes of responses wait to be written")
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((new, written))
        self._waiting_bytes += new.size
        self._wanted.set()
        try:
            await written
        except DatabaseUnavailable:
            self._count(0)
            raise
        self._count(new.size)

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                while page := self._take():
                    await self._insert(page)
            except DatabaseUnavailable as error:
                self._reject(error)

    def _take(self) -> list[Waiting]:
        """Return the next responses, without those whose caller has left."""
        page: list[Waiting] = []
        size = 0
        while self._waiting and len(page) < PAGE and size < PAGE_BYTES:
            new, written = self._waiting.pop(0)
            self._waiting_bytes -= new.size
            if not written.done():
                page.append((new, written))
                size += new.size
        return page

    async def _insert(self, page: Sequence[Waiting]) -> None:
        """Write a page. Raise DatabaseUnavailable after the callers of the page were rejected."""
        try:
            await self._commit([new for new, _ in page])
        except DatabaseUnavailable as error:
            _reject(page, error)
            raise
        except asyncio.CancelledError:
            _reject(page, DatabaseUnavailable("the gateway stops"))
            raise
        except Exception as error:
            log.exception("responses cannot be stored", task_ids=[new.row.task_id for new, _ in page])
            _reject(page, DatabaseUnavailable(f"a response cannot be stored: {type(error).__name__}"))
        else:
            for _, written in page:
                if not written.done():
                    written.set_result(None)

    async def _commit(self, page: Sequence[New]) -> None:
        async with self._database.writing(WRITE_S) as connection:
            erased = await self._erased(connection, {new.row.user for new in page})
            wanted = [new for new in page if new.row.created > erased.get(new.row.user, -1)]
            # all replicas write in one order: two that write the same rows would wait for each other otherwise
            wanted.sort(key=lambda new: new.row.task_id)
            if wanted:
                await connection.execute(_INSERT[connection.dialect.name], [_values(new) for new in wanted])
        for new in wanted:
            self._wrote(new.row.owner)

    def _reject(self, error: DatabaseUnavailable) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        _reject(waiting, error)


def _reject(page: Sequence[Waiting], error: DatabaseUnavailable) -> None:
    for _, written in page:
        if not written.done():
            written.set_exception(error)


def _values(new: New) -> dict[str, object]:
    row = new.row
    return {
        "task": row.task_id,
        "key_id": row.key_id,
        "user_name": row.user,
        "created": row.created,
        "expires": row.expires,
        "background": row.background,
        "model": row.model,
        "falls": row.falls,
        "previous": row.previous,
        "size": new.size,
        "ended": None,
        "status": "",
        "echo": row.echo,
        "input": new.input_items,
        "output": None,
    }
