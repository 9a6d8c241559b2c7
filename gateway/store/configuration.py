"""Writes this replica's settings of queues and models to Redis, and again if others are in effect (`queues/versions.py`) or Redis
has been emptied.
"""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import structlog

from fairlane.gateway.admin.changes import configured
from fairlane.gateway.configuration import ActiveConfig
from fairlane.queues.errors import StoreError
from fairlane.queues.loops import Periodic
from fairlane.queues.metrics import REDIS_EMPTIED, Recorder
from fairlane.queues.scheduler import Scheduler, configuration
from fairlane.queues.store.link import RedisLink
from fairlane.queues.versions import Version, hash_of

log = structlog.get_logger("fairlane.gateway")

COMPARE_S = 5.0
"""Between two checks of the configuration in effect, and of the identity of the store."""


class ConfigurationMonitor(Periodic):
    """Keeps the settings in the store up to date."""

    name = "configuration"
    interval_s = delay_s = COMPARE_S
    expected = (StoreError,)

    def __init__(
        self,
        scheduler: Scheduler,
        current: ActiveConfig,
        address: str,
        metrics: Recorder,
        on_emptied: Callable[[], Awaitable[None]],
    ) -> None:
        """`address`: the store's, for the log. `on_emptied` is called if Redis lost everything without closing the connection."""
        self._scheduler = scheduler
        self._current = current
        self._address = address
        self._metrics = metrics
        self._on_emptied = on_emptied
        self._born = ""
        self._overruled_by = ""

    async def bring(self, link: RedisLink | None = None) -> None:
        """Write our settings. Log once if another replica has newer ones, which apply here, too, or if Redis lost everything.

        `link`: a connection that is being made. Raises StoreError.
        """
        mine = self._current.settings
        version = Version(mine.origins.modified_ms, max(mine.origins.read_ms, self._current.endpoints_ms))
        state = await self._scheduler.configure(*configured(mine), version, link)
        effective = state.effective
        overruled_by = effective.hash if state.outcome == "older" else ""
        if overruled_by and overruled_by != self._overruled_by:
            log.warning(
                "another replica has a newer configuration, which holds for queues and models as long as it lives: give "
                "this gateway the same file, or touch its own and send SIGHUP",
                replica=self._scheduler.replica,
                modified=_when(version.modified_ms),
                newer_replica=effective.replica,
                newer_modified=_when(effective.modified_ms),
            )
        self._overruled_by = overruled_by
        before, self._born = self._born, state.born
        if before and before != state.born:
            self._metrics.count(REDIS_EMPTIED)
            log.error(
                "Redis has come back empty: every task that waited, ran or was kept is lost, and what was changed while "
                "running, what keys had used of their limits, and records that the SQL database had not yet; see that it "
                "writes to a disk (appendonly yes), and that no client empties it (FLUSHALL)",
                replica=self._scheduler.replica,
                address=self._address,
            )
            if link is None:
                await self._on_emptied()

    async def step(self) -> None:
        """Write ours again if another configuration is in effect: it applies only as long as a replica with it lives."""
        effective, born = await self._scheduler.effective_configuration()
        mine = hash_of(configuration(*configured(self._current.settings)))
        if effective is None or effective.hash != mine or born != self._born:
            await self.bring()


def _when(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
