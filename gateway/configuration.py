"""Brings this replica's settings of queues and models to the store, and again while others hold (`queues/versions.py`)."""

import asyncio
import contextlib
from datetime import UTC, datetime

import structlog

from fairlane.gateway.current import Current
from fairlane.gateway.operator.settings import configured
from fairlane.gateway.settings import Settings
from fairlane.queues.errors import StoreError
from fairlane.queues.link import RedisLink
from fairlane.queues.scheduler import Scheduler, configuration
from fairlane.queues.versions import Version, hash_of

log = structlog.get_logger("fairlane.gateway")

COMPARE_S = 5.0
"""How often a replica looks which configuration of queues and models holds."""


class ConfigurationWatch:
    """`start` it, `close` it."""

    def __init__(self, scheduler: Scheduler, current: Current) -> None:
        self._scheduler = scheduler
        self._current = current
        self._hashed: tuple[Settings, str] | None = None
        self._overruled_by = ""
        self._comparing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to compare."""
        self._comparing = asyncio.create_task(self._compare(), name="configuration")

    async def close(self) -> None:
        """End."""
        if self._comparing is not None:
            self._comparing.cancel()
            await asyncio.gather(self._comparing, return_exceptions=True)

    async def bring(self, link: RedisLink | None = None) -> None:
        """Bring our settings, and say once when another replica has newer ones, which hold here, too.

        `link`: a connection that is being made. Raises StoreError.
        """
        mine = self._current.settings
        version = Version(mine.times.modified_ms, mine.times.read_ms)
        standing = await self._scheduler.configure(*configured(mine), version, link)
        in_force = standing.in_force
        overruled_by = in_force.hash if standing.outcome == "older" else ""
        if overruled_by and overruled_by != self._overruled_by:
            log.warning(
                "another replica has a newer configuration, which holds for queues and models as long as it lives: give "
                "this gateway the same file, or touch its own and send SIGHUP",
                replica=self._scheduler.replica,
                modified=_when(version.modified_ms),
                newer_replica=in_force.replica,
                newer_modified=_when(in_force.modified_ms),
            )
        self._overruled_by = overruled_by

    async def _compare(self) -> None:
        """Bring ours again while another one holds: it does so no longer than a replica lives that has it."""
        while True:
            await asyncio.sleep(COMPARE_S)
            with contextlib.suppress(StoreError):
                in_force = await self._scheduler.in_force()
                if in_force is None or in_force.hash != self._hash():
                    await self.bring()

    def _hash(self) -> str:
        settings = self._current.settings
        if self._hashed is None or self._hashed[0] is not settings:
            self._hashed = (settings, hash_of(configuration(*configured(settings))))
        return self._hashed[1]


def _when(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
