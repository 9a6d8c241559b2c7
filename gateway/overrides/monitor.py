"""The overrides as this replica knows them: read at the start, and when a sweep returns another version of them. So an override
holds within about a second on every replica, and immediately where it was created. While Redis is unavailable they stay as they
were.
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from fairlane.queues.errors import StoreError
from fairlane.queues.loops import cancel_and_wait
from fairlane.queues.overrides import Override, Overrides, OverrideStore

log = structlog.get_logger("fairlane.gateway")

START_S = 5.0
"""The first read is retried for this long: the connection may be lost just then."""
RETRY_DELAY_S = 0.1


class OverrideMonitor:
    """`start` it, `close` it."""

    def __init__(self, store: OverrideStore, take: Callable[[Sequence[Override]], None]) -> None:
        """`take` is called with all overrides whenever one has changed."""
        self._store = store
        self._take = take
        self._version = b""
        self._reading: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        """Read the overrides before any task arrives. Raise StoreError if Redis stays unavailable."""
        give_up = asyncio.get_running_loop().time() + START_S
        while True:
            try:
                await self.read()
            except StoreError:
                if asyncio.get_running_loop().time() >= give_up:
                    raise
                await asyncio.sleep(RETRY_DELAY_S)
            else:
                return

    async def close(self) -> None:
        """End."""
        await cancel_and_wait(self._reading)

    def notice(self, version: bytes) -> None:
        """Read the overrides again if this is another version; a read that fails is retried with the next sweep."""
        if version != self._version and (self._reading is None or self._reading.done()):
            self._reading = asyncio.create_task(self._read_again(), name="overrides")

    async def read(self) -> Overrides:
        """Return all overrides as they are now; they hold here from now on. Raise StoreError."""
        async with self._lock:  # so that no older reply arrives after a newer one
            known = await self._store.all()
            if known.version != self._version:
                self._take(known.overrides)
                self._version = known.version
            return known

    async def _read_again(self) -> None:
        try:
            await self.read()
        except StoreError:
            pass
        except Exception:  # the overrides of before stay, and the next sweep retries
            log.exception("cannot apply the overrides")
