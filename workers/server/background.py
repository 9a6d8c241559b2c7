"""Steps that are not awaited: they run until Redis has answered, or the gateway stops."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import structlog

from fairlane.queues.errors import StoreError
from fairlane.queues.loops import cancel_and_wait, wait_event

log = structlog.get_logger("fairlane.workers")

T = TypeVar("T")

PATIENCE_S = 600.0
FIRST_DELAY_S = 0.05
MAX_DELAY_S = 1.0


class Background:
    """The background steps of one replica. `close` cancels those under way: leases end by themselves."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[object]] = set()
        self._store_back = asyncio.Event()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[object, object, object]) -> None:
        """Begin a step. Log it if it fails."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("a background step failed; leases end by themselves", error=repr(error))

    async def until_answered(self, call: Callable[[], Awaitable[T]], give_up_s: float = PATIENCE_S) -> T:
        """Repeat an idempotent call until Redis answers it. Raise StoreError if it has not after `give_up_s`."""
        delay = FIRST_DELAY_S
        give_up_at = self._loop.time() + give_up_s
        while True:
            try:
                return await call()
            except StoreError:
                if self._loop.time() > give_up_at:
                    raise
            await wait_event(self._store_back, delay)
            delay = min(delay * 2, MAX_DELAY_S)

    def store_is_back(self) -> None:
        """Retry the calls that wait for Redis now: it answers again."""
        self._store_back.set()
        self._store_back.clear()

    async def close(self) -> None:
        """Cancel the steps that are running."""
        await cancel_and_wait(*self._tasks)


def observe(reply: asyncio.Future[Any]) -> None:
    """Retrieve a reply that is not awaited, so that it is not logged as never retrieved."""
    if not reply.cancelled():
        reply.exception()
