"""Background tasks, and waiting for several of them."""

import asyncio
import contextlib
from collections.abc import Awaitable, Iterable
from typing import Any, TypeVar

import structlog

from fairlane.queues.errors import StoreError

log = structlog.get_logger("fairlane.loops")

RETRY_CANCEL_S = 1.0

T = TypeVar("T")


class Periodic:
    """A component that calls `step` and waits `interval_s`, repeatedly, from `start` to `close`. Subclasses set the fields.

    `step` may return another time to wait, in seconds. A failed step is repeated after `interval_s`. Failures in `expected` are
    not logged, because another component reports them. `delay_s` passes before the first step. Setting `wake` cuts a wait short.
    """

    name: str
    interval_s: float
    expected: tuple[type[Exception], ...] = ()
    delay_s = 0.0
    wake: asyncio.Event | None = None
    _task: "asyncio.Task[None] | None" = None

    def start(self) -> Awaitable[None] | None:
        """Begin."""
        self._task = asyncio.create_task(self._repeat(), name=self.name)
        return None

    async def close(self) -> None:
        """End."""
        await cancel_and_wait(self._task)

    async def step(self) -> float | None:
        """Do the work once."""
        raise NotImplementedError

    async def _repeat(self) -> None:
        await asyncio.sleep(self.delay_s)
        while True:
            pause_s = None
            try:
                pause_s = await self.step()
            except self.expected:
                pass
            except Exception:  # one failed step must not end the loop
                log.exception("a background step failed and will be repeated", step=self.name)
            pause_s = self.interval_s if pause_s is None else pause_s
            if self.wake is None:
                await asyncio.sleep(pause_s)
            else:
                await wait_event(self.wake, pause_s)
                self.wake.clear()


async def cancel_and_wait(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks and wait until they have ended, whatever their outcome. None is skipped.

    A task may lose a cancellation: `asyncio.gather` raises the failure of one of its parts when that comes in the same moment,
    and a loop that continues after failures continues. So a task that has not ended is cancelled again.
    """
    left = {task for task in tasks if task is not None}
    while left:
        for task in left:
            task.cancel()
        over, left = await asyncio.wait(left, timeout=RETRY_CANCEL_S)
        for task in over:
            if not task.cancelled():
                task.exception()  # or it is logged as never retrieved


async def wait_event(event: asyncio.Event, timeout_s: float | None) -> None:
    """Wait until an event is set, for `timeout_s` seconds at most. None means no limit."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


async def gather_all(work: Iterable[Awaitable[T]]) -> list[T]:
    """Return the results in order. If some fail, raise the first failure when all have ended, so that nothing runs on."""
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    made: list[T] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        made.append(outcome)
    return made


async def gather_available(work: Iterable[Awaitable[T]]) -> list[T]:
    """Return the results of calls to several pools, in order, without those of pools that are unavailable. If all are, raise the
    StoreError of the first one."""
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    made: list[T] = []
    failed: StoreError | None = None
    for outcome in outcomes:
        if isinstance(outcome, StoreError):
            failed = failed or outcome
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            made.append(outcome)
    if failed is not None and not made:
        raise failed
    return made
