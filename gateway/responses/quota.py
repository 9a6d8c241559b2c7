"""Deletes the oldest stored responses of callers above their limit.

Callers that stored something since the last check are checked, by the process that wrote it. So a caller can be above the limit
until the next check.
"""

from collections.abc import Callable
from typing import Final

from sqlalchemy import bindparam, delete, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.database.tables import responses
from fairlane.queues.loops import Periodic

CHECK_S = 10.0
PAGE = 50
"""Responses that are deleted together: they may be large."""

_c = responses.c
_mine = (_c.user_name == bindparam("user"), _c.key_id == bindparam("key_id"))
_STORED: Final = select(func.coalesce(func.sum(_c.size), 0)).where(*_mine)
_OLDEST: Final = select(_c.task, _c.size).where(*_mine).order_by(_c.created).limit(PAGE)
_DELETE: Final = delete(responses).where(_c.task.in_(bindparam("tasks", expanding=True)))


class StorageQuota(Periodic):
    """See the module."""

    name = "response quota"
    interval_s = CHECK_S
    expected = (DatabaseUnavailable,)  # which the outbox logs

    def __init__(self, database: Database, most: Callable[[], int]) -> None:
        """`most`: the bytes of one caller, as the settings are now."""
        self._database = database
        self._most = most
        self._wrote: dict[Owner, None] = {}
        """Callers to be checked."""

    def wrote(self, owner: Owner) -> None:
        """Have a caller checked that stored something."""
        self._wrote[owner] = None

    async def step(self) -> None:
        """Check callers that stored something. Raise DatabaseUnavailable: then no caller is forgotten."""
        while self._wrote:
            owner = next(iter(self._wrote))
            await self._delete_excess(owner)
            self._wrote.pop(owner, None)

    async def _delete_excess(self, owner: Owner) -> None:
        whose = {"user": owner.user, "key_id": owner.key_id}
        async with self._database.reporting() as connection:
            stored = await connection.scalar(_STORED, whose)
        excess = int(stored or 0) - self._most()
        while excess > 0:
            async with self._database.writing() as connection:
                deleted = await _delete_oldest(connection, whose, excess)
            if not deleted:
                return
            excess -= deleted


async def _delete_oldest(connection: AsyncConnection, whose: dict[str, str], excess: int) -> int:
    """Delete a page of a caller's oldest responses, of `excess` bytes at most and one more; return their bytes."""
    deleted, tasks = 0, list[str]()
    for task, size in await connection.execute(_OLDEST, whose):
        if deleted >= excess:
            break
        tasks.append(task)
        deleted += size
    if tasks:
        await connection.execute(_DELETE, {"tasks": tasks})
    return deleted
