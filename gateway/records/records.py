"""Wires the records: moved from Redis to SQL, read there, and deleted after their retention."""

from collections.abc import Callable, Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.attached import Attached
from fairlane.gateway.audit.rejections import RejectionCounts, write_rejections
from fairlane.gateway.audit.table import AuditTable, Values
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.database.database import Database
from fairlane.gateway.lifecycle import Component
from fairlane.gateway.records.erasure import ErasedUsers, erase_from_usage, user_of_usage
from fairlane.gateway.records.outbox import Outbox, Table
from fairlane.gateway.records.retention import Retention
from fairlane.gateway.usage.reports import ReportSlots, UsageReports
from fairlane.gateway.usage.usage import UsageTable
from fairlane.queues.keys import Keys
from fairlane.queues.metrics import Recorder
from fairlane.queues.store.link import RedisLink


class EndTable:
    """Takes entries of the kind `usage`; without a table for usage, those of the kind `charge` (of a chain that ended while parts
    of it ran)."""

    def __init__(
        self, erased: ErasedUsers, attached: Sequence[Attached], usage: UsageTable | None = None
    ) -> None:
        self._erased = erased
        self._attached = attached
        self._usage = usage

    async def write(self, connection: AsyncConnection, packed: Sequence[bytes]) -> int:
        """See `outbox.Table`."""
        unnamed = await self._erased.anonymized(connection, packed, user_of_usage, erase_from_usage)
        written = 0 if self._usage is None else await self._usage.write(connection, unnamed)
        for feature in self._attached:
            if feature.recorded is not None:
                await feature.recorded(connection, packed, unnamed)
        return written


class Records:
    """The records of a gateway. `parts` start and stop with it."""

    def __init__(
        self,
        database: Database,
        pools: Sequence[tuple[RedisLink, Keys]],
        replica: str,
        current: ActiveConfig,
        metrics: Recorder,
        as_shown: Callable[[str, Values], Values],
        attached: Sequence[Attached],
    ) -> None:
        """`pools`: each has an outbox; that of the first one has the audit log too. `as_shown`: see `AuditTable`."""
        self.slots = ReportSlots(database)
        self.erased = ErasedUsers(database)
        self.rejections = RejectionCounts(*pools[0], replica)
        self.usage = UsageReports(self.slots)
        used = UsageTable(lambda queue: current.settings.tier_of(queue), lambda: current.settings.models)
        tables: dict[str, Table] = {
            "usage": EndTable(self.erased, attached, used).write,
            "charge": EndTable(self.erased, attached).write,
            "audit": AuditTable(as_shown, self.erased).write,
            "rejections": write_rejections,
        }
        outboxes = [Outbox(link, keys, database, tables, metrics) for link, keys in pools]
        self.outbox = outboxes[0]
        self.parts: list[Component] = [*outboxes, self.rejections, Retention(database, current)]
