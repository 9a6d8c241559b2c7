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
from fairlane.gateway.metrics.gauges import Gauge, Rows
from fairlane.queues.loops import Periodic

CHECK_S = 10.0
PAGE = 50
"""Responses that are deleted together: they may be large."""

_c = responses.c
_sums = (
    select(_c.task, func.sum(_c.size).over(order_by=(_c.created.desc(), _c.task)).label("sum"))
    .where(_c.user_name == bindparam("user"), _c.key_id == bindparam("key_id"))
    .subquery()
)
"""A caller's responses, each with the bytes of it and all newer ones."""
_excess = select(_sums.c.task).where(_sums.c.sum > bindparam("most")).limit(PAGE)
_DELETE: Final = delete(responses).where(_c.task.in_(_excess))


GAUGES = (
    Gauge("fairlane_stored_responses", (), "Stored responses, counted every ten minutes"),
    Gauge("fairlane_stored_response_bytes", (), "Bytes of stored responses"),
)
_COUNT = select(func.count(), func.coalesce(func.sum(_c.size), 0)).select_from(responses)


async def read_gauges(connection: AsyncConnection) -> Rows:
    """Return the values of GAUGES."""
    number, size = (await connection.execute(_COUNT)).one()
    return {"fairlane_stored_responses": {(): int(number)}, "fairlane_stored_response_bytes": {(): int(size)}}


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
        values = {"user": owner.user, "key_id": owner.key_id, "most": self._most()}
        deleted = PAGE
        while deleted == PAGE:
            async with self._database.writing() as connection:
                deleted = (await connection.execute(_DELETE, values)).rowcount
