"""The sources of a scrape: this process, the others of its gateway, Redis, and the database."""

import asyncio
import importlib
import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairlane.gateway.attached import DatabaseGauges
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.metrics.gauges import OUTPUT_LIMIT, TASK_SILENCE, Gauge, Labels, Rows
from fairlane.gateway.metrics.siblings import Siblings, Snapshot, snapshots_of
from fairlane.gateway.watch.health import Health
from fairlane.queues.errors import StoreError
from fairlane.queues.inspect.inspector import StoreInspector, StoreSnapshot
from fairlane.queues.metrics import Recorder
from fairlane.workers.server.dispatch import Dispatcher

READ_S = 2.0


class DatabaseSurveyor:
    """Reads the gauges. Concurrent callers share one query."""

    def __init__(self, database: Database, sources: Sequence[DatabaseGauges]) -> None:
        self._database = database
        self._sources = sources
        self._one = asyncio.Lock()
        self._known: dict[DatabaseGauges, tuple[float, Rows | None]] = {}

    @property
    def gauges(self) -> list[Gauge]:
        """Return all gauges."""
        return [gauge for source in self._sources for gauge in source.gauges]

    async def recent(self) -> Rows | None:
        """Return the values; None if none could be read, as the database is unavailable."""
        async with self._one:
            now = time.monotonic()
            for source in self._sources:
                read_at, _ = self._known.get(source, (-source.every_s, None))
                if now - read_at >= source.every_s:
                    self._known[source] = now, await self._read(source)
            known = [rows for _, rows in self._known.values() if rows is not None]
            if not known and self._sources:
                return None
            return {name: values for rows in known for name, values in rows.items()}

    async def _read(self, source: DatabaseGauges) -> Rows | None:
        try:
            async with self._database.reporting(READ_S) as connection:
                return await source.read(connection)
        except DatabaseUnavailable:
            return None


@dataclass(frozen=True, slots=True)
class Scrape:
    """Reads all metrics."""

    siblings: Siblings
    recorder: Recorder
    health: Health
    dispatcher: Dispatcher
    inspector: StoreInspector
    database: DatabaseSurveyor

    def own(self) -> Snapshot:
        """Return the metrics of this process. Models that share a label have one limit, and the longest silence."""
        label = self.recorder.label
        limits: dict[Labels, float] = {}
        for model, found in self.dispatcher.congestion.effective_limits().items():
            for kind, limit in (("first_output", found.first_output_ms), ("silence", found.silence_ms)):
                if limit is not None:
                    limits[label(model), kind] = limit / 1000
        silences = defaultdict[Labels, float](float)
        for model, silent_s in self.dispatcher.silences().items():
            silences[label(model),] = max(silent_s, silences[label(model),])
        values: dict[str, Mapping[Labels, Any]] = {
            **self.recorder.values,
            **{name: {(): value} for name, value in self.health.gauges().items()},
            OUTPUT_LIMIT.name: limits,
            TASK_SILENCE.name: silences,
        }
        rows = {name: list(of_metric.items()) for name, of_metric in values.items()}
        return Snapshot(self.siblings.index, os.getpid(), rows)

    async def text(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics in a form that the scraper accepts, and its content type. Those of Redis and of the database are
        missing while they are down."""
        snapshots, survey, of_database = await asyncio.gather(
            snapshots_of(self.siblings, self.own()), self._survey(), self.database.recent()
        )
        labels = {row.model: self.recorder.label(row.model) for row in survey.models} if survey else {}
        return await asyncio.to_thread(
            _expose, snapshots, survey, labels.__getitem__, self.database.gauges, of_database, accept
        )

    async def _survey(self) -> StoreSnapshot | None:
        try:
            return await self.inspector.recent()
        except StoreError:
            return None


def _expose(*args: object) -> tuple[bytes, str]:
    """Write the metrics, in a thread: its imports and work would hold the event loop for too long."""
    text: tuple[bytes, str] = importlib.import_module("fairlane.gateway.metrics.exposition").expose(*args)
    return text
