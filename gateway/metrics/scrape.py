"""The sources of a scrape: the processes of this gateway, Redis, and the database."""

from collections.abc import Callable
from dataclasses import dataclass

from fairlane.gateway.metrics.database_gauges import rows_of
from fairlane.gateway.metrics.database_survey import DatabaseSurveyor
from fairlane.gateway.metrics.siblings import Siblings, snapshots_of
from fairlane.gateway.metrics.snapshot import Snapshot, take_snapshot
from fairlane.gateway.metrics.store_gauges import Rows
from fairlane.queues.errors import StoreError
from fairlane.queues.inspect.inspector import StoreInspector, StoreSnapshot
from fairlane.queues.metrics import Recorder
from fairlane.workers.server.congestion import ModelLimits


@dataclass(frozen=True, slots=True)
class Scrape:
    """`gauges`: current values of this process; `limits`: how long models may be silent; `silences`: how long they have been
    silent; `most_file_bytes`: the limit of the total size of files."""

    siblings: Siblings
    recorder: Recorder
    gauges: Callable[[], dict[str, float]]
    limits: Callable[[], dict[str, ModelLimits]]
    silences: Callable[[], dict[str, float]]
    inspector: StoreInspector
    database: DatabaseSurveyor
    most_file_bytes: Callable[[], int]

    def own(self) -> Snapshot:
        """Return the metrics of this process."""
        return take_snapshot(
            self.siblings.index, self.recorder, self.gauges(), self.limits(), self.silences()
        )

    async def snapshots(self) -> list[Snapshot]:
        """Return the metrics of each process that answers in time."""
        return await snapshots_of(self.siblings, self.own())

    async def survey(self) -> StoreSnapshot | None:
        """Return the values in Redis; None while it is unavailable."""
        try:
            return await self.inspector.recent()
        except StoreError:
            return None

    async def of_database(self) -> Rows | None:
        """Return the values in the database as gauges; None while it is unavailable."""
        survey = await self.database.recent()
        return None if survey is None else rows_of(survey, self.most_file_bytes())
