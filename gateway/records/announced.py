"""Has webhooks told of the ends of tasks, in the transaction that records these."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.records.entries import read_announced
from fairlane.gateway.records.outbox import Table
from fairlane.gateway.webhooks.enqueue import End, enqueue_all


class Announced:
    """A table of the outbox: what is written to another one, if there is one, and announced where an entry asks for it."""

    def __init__(self, table: Table | None = None) -> None:
        self._table = table

    async def write(self, connection: AsyncConnection, packed: Sequence[bytes]) -> int:
        """See `outbox.Table`."""
        written = 0 if self._table is None else await self._table.write(connection, packed)
        told = [found for found in map(read_announced, packed) if found is not None]
        if told:
            await enqueue_all(
                connection,
                [
                    End(Owner(one.key_id, one.user_name), f"task.{one.state}", one.task, one.ended)
                    for one in told
                ],
            )
        return written
