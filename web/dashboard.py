"""The dashboard's live feed: one event a second for all watchers, and none without watchers."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

import structlog

from fairlane.queues.loops import cancel_and_wait

log = structlog.get_logger("fairlane.web")

TICK_S = 1.0


class SharedFeed:
    """Paints one picture per tick, however many watch it.

    The first watcher starts the painting, the last one to leave ends it. A watcher who is slower than the ticks misses pictures
    and never delays others: each is a whole, so the newest one is enough.
    """

    def __init__(self, paint: Callable[[], Awaitable[bytes]], tick_s: float = TICK_S) -> None:
        """`paint` makes a picture. When it fails, that is logged and the next tick tries again."""
        self._paint = paint
        self._tick_s = tick_s
        self._watchers = 0
        self._task: asyncio.Task[None] | None = None
        self._picture = b""
        self._number = 0
        self._painted = asyncio.Condition()
        self._closed = False

    @property
    def watchers(self) -> int:
        """How many watch."""
        return self._watchers

    @property
    def number(self) -> int:
        """How many pictures were painted so far."""
        return self._number

    async def watch(self) -> AsyncGenerator[bytes, None]:
        """Pictures as they come, beginning with one that is no older than a tick. Ends with the feed."""
        if self._closed:
            return
        self._watchers += 1
        if self._task is None:
            self._picture = b""
            self._task = asyncio.create_task(self._run(), name="dashboard-feed")
        seen = -1
        try:
            while not await self._over(seen):
                seen = self._number
                yield self._picture
        finally:
            self._watchers -= 1
            if not self._watchers and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _over(self, seen: int) -> bool:
        """Wait for another picture than the one with this number, or the end. Return whether the feed has ended."""
        async with self._painted:
            await self._painted.wait_for(
                lambda: self._closed or (self._picture != b"" and self._number != seen)
            )
        return self._closed

    async def close(self) -> None:
        """End the painting, and with it every `watch`."""
        self._closed = True
        task, self._task = self._task, None
        await cancel_and_wait(task)
        async with self._painted:
            self._painted.notify_all()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + self._tick_s
            try:
                picture = await self._paint()
            except Exception:  # those who watch keep the last picture; the next tick tries again
                log.exception("cannot paint the dashboard")
            else:
                async with self._painted:
                    self._picture, self._number = picture, self._number + 1
                    self._painted.notify_all()
            await asyncio.sleep(max(due - loop.time(), 0.1))
