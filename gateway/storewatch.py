"""Says what is wrong with Redis for as long as it is: in the log, and to whoever asks (`trouble`)."""

import asyncio
import contextlib
import time
from typing import Any

import structlog

from fairlane.queues.errors import StoreError
from fairlane.queues.keys import Keys
from fairlane.queues.link import RedisLink

log = structlog.get_logger("fairlane.gateway")

LOOK_S = 1.0
AGAIN_S = 60.0
"""How often the log repeats what lasts."""
QUIET_S = 2.0
"""No write was refused for so long, and one was taken: it is over."""


class StoreWatch:
    """Looks once a second. `start` begins it, `close` ends it."""

    def __init__(self, link: RedisLink, keys: Keys, replica: str) -> None:
        self._link = link
        self._probe = keys("probe")
        self._replica = replica
        self._task: asyncio.Task[None] | None = None
        self._refused_since: float | None = None
        self._told_at = 0.0

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._watch(), name="store-watch")

    async def close(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def refuses(self) -> bool:
        """Whether Redis is there, and takes no writes."""
        return self._link.up and self._link.refusals.since is not None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            with contextlib.suppress(StoreError):  # away, or this write was refused, too
                await self._look_at_writes()

    async def _look_at_writes(self) -> None:
        refusals, now = self._link.refusals, time.time()
        if refusals.since is not None:
            if self._refused_since is None or now - self._told_at >= AGAIN_S:
                self._refused_since, self._told_at = refusals.since, now
                log.error("Redis refuses writes", **self._about(now - refusals.since), why=refusals.why)
            await self._link.command("SET", self._probe, "1", "PX", 1000)
            if now - refusals.latest >= QUIET_S:
                log.info("Redis takes writes again", **self._about(now - refusals.since))
                self._refused_since = None
                refusals.over()

    def _about(self, seconds: float) -> dict[str, Any]:
        return {"replica": self._replica, "for_s": round(seconds, 1)}
