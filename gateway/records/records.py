"""Wires the records: moved from Redis to SQL, read there, and deleted after their retention."""

from collections.abc import Callable
from functools import partial

from fairlane.gateway.archive.archive import find_archived
from fairlane.gateway.audit.rejections import RejectionCounts, write_rejections
from fairlane.gateway.audit.table import AuditTable, Values
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.database.database import Database
from fairlane.gateway.lifecycle import Component
from fairlane.gateway.records.ends import EndTable
from fairlane.gateway.records.erasure import ErasedUsers
from fairlane.gateway.records.outbox import Outbox, Table
from fairlane.gateway.records.retention import Retention
from fairlane.gateway.usage.reports import UsageReports
from fairlane.gateway.usage.slots import ReportSlots
from fairlane.gateway.usage.usage import UsageTable
from fairlane.queues.keys import Keys
from fairlane.queues.metrics import Recorder
from fairlane.queues.store.link import RedisLink


class Records:
    """The records of a gateway. `parts` start and stop with it."""

    def __init__(
        self,
        database: Database,
        link: RedisLink,
        keys: Keys,
        replica: str,
        current: ActiveConfig,
        metrics: Recorder,
        as_shown: Callable[[str, Values], Values],
    ) -> None:
        """`as_shown`: see `AuditTable`."""
        self.slots = ReportSlots(database)
        self.erased = ErasedUsers(database)
        self.rejections = RejectionCounts(link, keys, replica)
        self.usage = UsageReports(self.slots)
        self.find_archived = partial(find_archived, database)
        used = UsageTable(lambda queue: current.settings.tier_of(queue), lambda: current.settings.models)
        tables: dict[str, Table] = {
            "usage": EndTable(self.erased, used).write,
            "charge": EndTable(self.erased).write,
            "audit": AuditTable(as_shown, self.erased).write,
            "rejections": write_rejections,
        }
        self.outbox = Outbox(link, keys, database, tables, metrics)
        retention = Retention(database, current)
        self.parts: list[Component] = [self.outbox, self.rejections, retention]
