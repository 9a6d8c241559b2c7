"""Ends the tasks of keys that are revoked."""

import asyncio
from collections.abc import Collection

import structlog

from fairlane.gateway.core.cancel import Cancel
from fairlane.queues.errors import StoreError
from fairlane.queues.loops import gather_all
from fairlane.queues.scheduler import Scheduler
from fairlane.workers.server.background import Background

log = structlog.get_logger("fairlane.gateway")

MAX_SCANNED = 500
"""Tasks that one call of the store scans: others are served in between."""
MAX_CONCURRENT = 50
"""Tasks that are cancelled at the same time."""
AFTER_S = 1.5
"""By then every replica knows of the change and rejects these keys."""


class KeyTasks:
    """Ends tasks by the key that submitted them, whatever they do."""

    def __init__(self, scheduler: Scheduler, cancel: Cancel, background: Background) -> None:
        self._scheduler = scheduler
        self._cancel = cancel
        self._background = background

    async def end(self, keys: Collection[str]) -> int:
        """Cancel all tasks of these keys that wait or run; return how many. May be called again after a StoreError."""
        number, cursor = 0, ""
        while cursor != "0":
            found, cursor = await self._scheduler.tasks_of_keys(keys, cursor or "0", MAX_SCANNED)
            for at in range(0, len(found), MAX_CONCURRENT):
                part = found[at : at + MAX_CONCURRENT]
                number += sum(await gather_all(self._cancel.end(task_id, "admin") for task_id in part))
        return number

    def end_soon(self, keys: Collection[str]) -> None:
        """Do the same once no replica accepts tasks of these keys, retried until Redis answers. Each replica does it, as any may
        die."""
        self._background.spawn(self._end_soon(keys))

    async def _end_soon(self, keys: Collection[str]) -> None:
        await asyncio.sleep(AFTER_S)
        try:
            number = await self._background.until_answered(lambda: self.end(keys))
        except StoreError as error:
            log.error("tasks of a revoked key may still wait or run", keys=sorted(keys), error=str(error))
            return
        if number:
            log.info("tasks of revoked keys were cancelled", keys=sorted(keys), tasks=number)
