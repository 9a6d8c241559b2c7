"""The changes of settings, as this replica knows them: read at the start, and whenever a sweep tells another version of them. So
one holds here within about a second, whatever message is lost; where it was made, at once. While Redis is away they stay as they
were.
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from fairlane.queues.changes import ChangeStore, Known, PlannedChange
from fairlane.queues.errors import StoreError
from fairlane.queues.loops import end_tasks

log = structlog.get_logger("fairlane.gateway")

START_S = 5.0
"""For so long the reading at the start is tried again."""
AGAIN_S = 0.1


class ChangesWatch:
    """`start` it, `close` it."""

    def __init__(self, store: ChangeStore, take: Callable[[Sequence[PlannedChange]], None]) -> None:
        """`take`: hears all changes, whenever one of them has changed."""
        self._store = store
        self._take = take
        self._version = b""
        self._reading: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Read them before any task comes; a connection that is lost meanwhile may come back. Raises StoreError."""
        give_up = asyncio.get_running_loop().time() + START_S
        while True:
            try:
                await self.read()
            except StoreError:
                if asyncio.get_running_loop().time() >= give_up:
                    raise
                await asyncio.sleep(AGAIN_S)
            else:
                return

    async def close(self) -> None:
        """End."""
        await end_tasks(self._reading)

    def told(self, version: bytes) -> None:
        """This is the version now. What cannot be read is told again by the next sweep."""
        if version != self._version and (self._reading is None or self._reading.done()):
            self._reading = asyncio.create_task(self._read_again(), name="changes")

    async def read(self) -> Known:
        """All changes, as they are now; they hold here from now on. Raises StoreError."""
        async with self._turn:  # so that no older answer comes behind a newer one
            known = await self._store.all()
            if known.version != self._version:
                self._take(known.changes)
                self._version = known.version
            return known

    async def _read_again(self) -> None:
        try:
            await self.read()
        except StoreError:
            pass
        except Exception:  # what held goes on to hold, and the next sweep tells again
            log.exception("cannot take over the changes of settings")
