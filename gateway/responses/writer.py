"""Writes rows of responses to SQL. Those that come while a transaction is under way share the next one."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

import structlog
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.database.tables import responses
from fairlane.gateway.responses.store import New
from fairlane.queues.loops import Periodic

log = structlog.get_logger("fairlane.gateway")

WRITE_S = 5.0
"""The deadline of a transaction."""
PAGE = 200
"""Responses in one transaction."""
PAGE_BYTES = 32 << 20
"""A transaction takes no further response once it has these."""
MAX_WAITING_BYTES = 256 << 20
"""Responses that wait or are being written; a further one is rejected."""

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
        _settle(self._waiting, DatabaseUnavailable("the gateway stops"))

    async def check(self) -> None:
        """Raise DatabaseUnavailable if the database failed the last write and still takes none."""
        if self._database.trouble is not None:
            async with self._database.writing(WRITE_S):
                pass

    async def write(self, new: New) -> None:
        """Return when the row is committed; a row of the same task stays as it is. Raise DatabaseUnavailable."""
        if self._waiting_bytes + new.size > MAX_WAITING_BYTES:
            self._count(0)
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
        """Write the responses that wait. If the database is unavailable, all of them are rejected."""
        while self._waiting:
            sizes = accumulate(new.size for new, _ in self._waiting[: PAGE - 1])
            end = 1 + sum(size < PAGE_BYTES for size in sizes)
            page, self._waiting = self._waiting[:end], self._waiting[end:]
            failure: DatabaseUnavailable | None = DatabaseUnavailable("the gateway stops")
            try:
                await self._commit([new for new, written in page if not written.done()])
                failure = None
            except DatabaseUnavailable as error:
                failure = error
                page, self._waiting = page + self._waiting, []
            except Exception as error:
                log.exception("responses cannot be stored", task_ids=[new.row.task_id for new, _ in page])
                failure = DatabaseUnavailable(f"a response cannot be stored: {type(error).__name__}")
            finally:
                _settle(page, failure)
                self._waiting_bytes -= sum(new.size for new, _ in page)

    async def _commit(self, page: Sequence[New]) -> None:
        """Write these responses but for those of users erased since. Raise DatabaseUnavailable."""
        async with self._database.writing(WRITE_S) as connection:
            erased = await self._erased(connection, {new.row.user for new in page})
            wanted = [new for new in page if new.row.created > erased.get(new.row.user, -1)]
            # all replicas write in one order: two that write the same rows would wait for each other otherwise
            wanted.sort(key=lambda new: new.row.task_id)
            if wanted:
                await connection.execute(_INSERT[connection.dialect.name], [_values(new) for new in wanted])
        for new in wanted:
            self._wrote(new.row.owner)


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
