"""The operators' overview: queues, models, workers, counts and the newest tasks of all replicas."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fairlane import __version__
from fairlane.gateway.admin.rows import configuration_row, host_row, model_row, queue_row, worker_row
from fairlane.gateway.admin.search import search
from fairlane.gateway.audit.log import AuditRecord
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.database.database import Database
from fairlane.gateway.store.pools import StorePools
from fairlane.queues.clock import now_ms
from fairlane.queues.errors import StoreError
from fairlane.queues.inspect.inspector import StoreInspector
from fairlane.queues.scheduler import Scheduler
from fairlane.workers.server.hooks.congestion import Congestion


@dataclass(eq=False)
class OverviewReader:
    """Reads the overview."""

    _scheduler: Scheduler
    _store: StorePools
    _database: Database
    _inspector: StoreInspector
    _current: ActiveConfig
    _congestion: Congestion

    async def read(self, tasks: int) -> dict[str, Any]:
        """Return the response of GET /api/admin/overview, with at most `tasks` of the newest tasks. Raise StoreError."""
        survey, (task_rows, _) = await asyncio.gather(
            self._inspector.snapshot(), search(self._scheduler, {}, "", tasks)
        )
        settings, limits = self._current.settings, self._congestion.effective_limits()
        return {
            "now": survey.now_ms,
            "queues": [
                queue_row(settings.queues[row.queue], row)
                for row in survey.queues
                if row.queue in settings.queues
            ],
            "models": [
                model_row(row, limits.get(row.model), self._current.endpoints.of_model(row.model))
                for row in survey.models
                if not row.gone
            ],
            "workers": [worker_row(row) for row in survey.workers],
            "counts": {
                "queued": sum(row.waiting for row in survey.queues),
                "executing": sum(row.running for row in survey.models),
                **survey.ended,
                "queuedBytes": survey.queued_bytes,
                "retainedBytes": survey.retained_bytes,
                "droppedEarly": survey.dropped,
                "recordsWaiting": survey.outbox,
                "recordsMax": settings.tuning.outbox_max_entries,
            },
            "store": self.store(),
            "database": self.database(),
            "tasks": task_rows,
            "replicas": [
                {
                    "replica": name,
                    "ageMs": max(15_000 - (end - survey.now_ms), 0),
                    **host_row(survey.hosts.get(name)),
                    "configuration": configuration_row(survey.configurations.get(name), survey.configuration),
                }
                for name, end in survey.replicas.items()
            ],
        }

    def store(self) -> dict[str, Any]:
        """Return what this replica knows about Redis: address, connection, whether it accepts writes, since when not (ms)."""
        states = [pool.monitor.state() for pool in self._store.pools]
        worst = next((state for state in states if not state["up"] or state["rejectsWrites"]), states[0])
        named = [{"pool": pool.name, **state} for pool, state in zip(self._store.pools, states, strict=True)]
        return worst | {"pools": named if len(named) > 1 else []}

    def database(self) -> dict[str, Any]:
        """Return what this process knows about the SQL database: address, whether it responds, since when not (ms), and why."""
        trouble = self._database.trouble
        return {
            "address": str(self._database.address),
            "up": trouble is None,
            "since": trouble and trouble.since_ms,
            "reason": trouble and trouble.why,
        }


NOTHING_KNOWN: Mapping[str, Any] = {
    **dict.fromkeys(("queues", "models", "workers", "replicas"), ()),
    **dict.fromkeys(("asOf", "audit")),
    "counts": {},
}


@dataclass(eq=False)
class OverviewFeed:
    """Makes the event that all dashboards get. While Redis is unavailable, it has the last known values.

    `presence`: the workers connected here. `about`: facts of this replica.
    """

    _overview: OverviewReader
    _record: AuditRecord
    _replica: str
    _presence: Callable[[], list[dict[str, Any]]]
    _about: Callable[[], dict[str, Any]]
    _known: dict[str, Any] = field(default_factory=lambda: dict(NOTHING_KNOWN), init=False)

    async def __call__(self) -> bytes:
        try:
            overview = await self._overview.read(0)
            newest = await self._record.newest()
        except StoreError:
            self._known["workers"] = [
                *(worker_row(row) for row in self._presence()),
                *(row for row in self._known["workers"] if row["replica"] != self._replica),
            ]
        else:
            del overview["tasks"]
            self._known = overview | {"asOf": overview["now"], "audit": newest}
        event = self._known | {
            "now": now_ms(),
            "store": self._overview.store(),
            "database": self._overview.database(),
            "gateway": {"replica": self._replica, "version": __version__, **self._about()},
        }
        return b"event: overview\ndata: " + msgspec.json.encode(event) + b"\n\n"
