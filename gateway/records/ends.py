"""Writes what the end of a task leaves in SQL: its usage record, the deliveries of webhooks, and the charge."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.credits.ledger import add_rows, rows_of
from fairlane.gateway.records.entries import read_announced, read_charge
from fairlane.gateway.records.erasure import ErasedUsers, erase_from_usage, user_of_usage
from fairlane.gateway.usage.usage import UsageTable
from fairlane.gateway.webhooks.enqueue import enqueue


class EndTable:
    """Takes entries of the kind `usage`; without a table for usage, those of the kind `charge` (of a chain that ended while parts
    of it ran)."""

    def __init__(self, erased: ErasedUsers, usage: UsageTable | None = None) -> None:
        self._erased = erased
        self._usage = usage

    async def write(self, connection: AsyncConnection, packed: Sequence[bytes]) -> int:
        """See `outbox.Table`."""
        named = packed  # the ledger keeps the name of a user who pays, even if the user was erased
        packed = await self._erased.anonymized(connection, packed, user_of_usage, erase_from_usage)
        written = 0 if self._usage is None else await self._usage.write(connection, packed)
        ends = [end for end in map(read_announced, packed) if end]
        if ends:
            await enqueue(connection, ends)
        charges = [charge for charge in map(read_charge, named) if charge]
        if charges:
            await add_rows(connection, [row for charge in charges for row in rows_of(charge)])
        return written
