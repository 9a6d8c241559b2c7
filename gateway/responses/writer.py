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
from fairlane.queues.loops import Periodic

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


class ResponseWriter(Periodic):
    """See the module."""

    name = "write responses"
    interval_s = 60.0  # `wake` ends the wait
    wake: asyncio.Event

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
        self.wake = asyncio.Event()

    async def close(self) -> None:
        """Stop. Responses that still wait are rejected."""
        await super().close()
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
        self.wake.set()
        try:
            await written
        except DatabaseUnavailable:
            self._count(0)
            raise
        self._count(new.size)

    async def step(self) -> None:
        """Write the responses that wait."""
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
        failure: DatabaseUnavailable | None = DatabaseUnavailable("the gateway stops")
        try:
            await self._commit([new for new, _ in page])
            failure = None
        except DatabaseUnavailable as error:
            failure = error
            raise
        except Exception as error:
            log.exception("responses cannot be stored", task_ids=[new.row.task_id for new, _ in page])
            failure = DatabaseUnavailable(f"a response cannot be stored: {type(error).__name__}")
        finally:
            _settle(page, failure)

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
        _settle(waiting, error)


def _settle(page: Sequence[Waiting], failure: DatabaseUnavailable | None) -> None:
    for _, written in page:
        if written.done():
            continue
        if failure is None:
            written.set_result(None)
        else:
            written.set_exception(failure)


def _values(new: New) -> dict[str, object]:
    values = new.row._asdict()
    values |= {"task": values.pop("task_id"), "user_name": values.pop("user")}
    return {**values, "size": new.size, "input": new.input_items, "output": None}
