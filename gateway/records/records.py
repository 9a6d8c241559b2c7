"""Wires the records: moved from Redis to SQL, read there, and deleted after their retention."""

from collections.abc import Callable
from functools import partial

from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.database.database import Database
from fairlane.gateway.lifecycle import Component
from fairlane.gateway.records.archive import find_archived
from fairlane.gateway.records.archive import purge as purge_archive
from fairlane.gateway.records.audit import AuditTable, Values
from fairlane.gateway.records.audit import purge as purge_audit
from fairlane.gateway.records.balances import Balances
from fairlane.gateway.records.batches import purge as purge_batches
from fairlane.gateway.records.ends import EndTable
from fairlane.gateway.records.erasure import ErasedUsers
from fairlane.gateway.records.ledger import purge as purge_ledger
from fairlane.gateway.records.outbox import Outbox, Table
from fairlane.gateway.records.reconciliation import BalanceReconciler
from fairlane.gateway.records.rejections import RejectionCounts, write_rejections
from fairlane.gateway.records.rejections import purge as purge_rejections
from fairlane.gateway.records.reports import UsageReports
from fairlane.gateway.records.retention import Kept, Retention
from fairlane.gateway.records.slots import ReportSlots
from fairlane.gateway.records.usage import DAY_MS, UsageTable
from fairlane.gateway.records.usage import purge as purge_usage
from fairlane.gateway.responses.store import purge as purge_responses
from fairlane.gateway.webhooks.store import purge as purge_webhooks
from fairlane.queues.keys import Keys
from fairlane.queues.metrics import Recorder
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.store.link import RedisLink

REJECTIONS_DAYS = 90
DELIVERIES_DAYS = 14
BATCHES_DAYS = 30
"""The retention of counts of rejected requests, of deliveries of webhooks, and of batches that have ended."""


class Records:
    """The records of a gateway. `parts` start and stop with it."""

    def __init__(
        self,
        database: Database,
        scheduler: Scheduler,
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
        self.balances = Balances(database, scheduler)
        self.reconciler = BalanceReconciler(database, scheduler, link, keys, metrics)
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
        retention = Retention(
            database,
            [
                Kept(purge_usage, lambda: current.settings.usage_retention_days * DAY_MS),
                Kept(purge_archive, lambda: current.settings.archive_ttl_ms),
                Kept(purge_ledger, lambda: current.settings.audit_retention_days * DAY_MS),
                Kept(purge_audit, lambda: current.settings.audit_retention_days * DAY_MS),
                Kept(purge_webhooks, lambda: DELIVERIES_DAYS * DAY_MS),
                Kept(purge_batches, lambda: BATCHES_DAYS * DAY_MS),
                Kept(purge_rejections, lambda: REJECTIONS_DAYS * DAY_MS),
                Kept(purge_responses, lambda: 0),
            ],
        )
        self.parts: list[Component] = [self.outbox, self.reconciler, self.balances]
        self.parts += [self.rejections, retention]
