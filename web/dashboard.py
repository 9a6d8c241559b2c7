"""The dashboard's live feed: one event a second for all watchers, and none without watchers."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial

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
        self.watchers = 0
        self.number = 0
        """How many pictures were painted so far."""
        self._picture = b""
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Condition()
        self._closed = False

    async def watch(self) -> AsyncGenerator[bytes, None]:
        """Yield pictures as they come, beginning with one that is no older than a tick. Ends with the feed."""
        self.watchers += 1
        if self._task is None and not self._closed:
            self._picture = b""
            self._task = asyncio.create_task(self._run(), name="dashboard-feed")
        seen = -1
        try:
            while True:
                async with self._changed:
                    await self._changed.wait_for(partial(self._has_news, seen))
                if self._closed:
                    return
                seen = self.number
                yield self._picture
        finally:
            self.watchers -= 1
            if not self.watchers and self._task is not None:
                self._task.cancel()
                self._task = None

    def _has_news(self, seen: int) -> bool:
        return self._closed or (self._picture != b"" and self.number != seen)

    async def close(self) -> None:
        """End the painting, and with it every `watch`."""
        self._closed = True
        task, self._task = self._task, None
        await cancel_and_wait(task)
        async with self._changed:
            self._changed.notify_all()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + self._tick_s
            try:
                picture = await self._paint()
            except Exception:  # watchers keep the last picture; the next tick tries again
                log.exception("cannot paint the dashboard")
            else:
                async with self._changed:
                    self._picture, self.number = picture, self.number + 1
                    self._changed.notify_all()
            await asyncio.sleep(max(due - loop.time(), 0.1))
