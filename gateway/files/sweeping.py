"""Removes files whose time has come: those that expired, those whose writer died, and what could not be removed before."""

import asyncio
import random

import structlog

from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.errors import ApiError
from fairlane.gateway.files.files import Files
from fairlane.gateway.files.rows import ARRIVING
from fairlane.gateway.files.storage import StorageError
from fairlane.queues.logs.sums import SummedLine
from fairlane.queues.loops import end_tasks

log = structlog.get_logger("fairlane.gateway")

LOOK_S = 60.0
AT_ONCE = 50


class FileSweep:
    """Every replica does it: each file is taken by one of them. `start` begins, `close` ends, and lets go of the storage."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._task: asyncio.Task[None] | None = None
        self._stuck: tuple[str, str] = ("", "")
        """The last one that could not be removed, and why."""
        self._sticking = SummedLine(self._tell)

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="files sweep")

    async def close(self) -> None:
        """End."""
        await end_tasks(self._task)
        await self._files.close()

    async def _run(self) -> None:
        await asyncio.sleep(random.uniform(LOOK_S / 2, LOOK_S))  # noqa: S311 - not all replicas at once
        while True:
            try:
                while await self.sweep():
                    pass
            except (DatabaseUnavailable, ApiError):
                pass  # both tell of themselves
            except Exception:  # what is not removed now is later
                log.exception("cannot remove old files")
            try:
                await self._files.count_again()
            except (DatabaseUnavailable, ApiError):
                pass
            except Exception:  # they are added up all the same
                log.exception("cannot count files")
            await asyncio.sleep(LOOK_S)

    async def sweep(self) -> bool:
        """Remove some; whether there may be more. What cannot be removed now is due again in a minute. Raises ApiError,
        DatabaseUnavailable."""
        await self._files.identify()
        due = await self._files.take_due(AT_ONCE)
        for one in due:
            if one.state == ARRIVING:
                log.warning(
                    "a file did not arrive to its end, and is removed", file=one.id, **one.owner._asdict()
                )
            try:
                await self._files.remove(one.id)
            except StorageError as error:
                self._stuck = one.id, str(error)
                self._sticking.add(1)
        return len(due) == AT_ONCE

    def _tell(self, times: int) -> None:
        file, why = self._stuck
        log.warning("a file cannot be removed: it is tried again", file=file, why=why, times=times)
