"""Tasks that go on until somebody ends them, what they rest by, and work that is done side by side."""

import asyncio
import contextlib
from collections.abc import Awaitable, Iterable
from typing import Any, TypeVar

AGAIN_S = 1.0

T = TypeVar("T")


async def end_tasks(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks and wait until they are over, whatever they end with. None is passed over.

    A task may lose a cancellation: `asyncio.gather` raises the failure of one of its parts when that comes in the same moment,
    and who goes on after failures goes on. So who is not over is cancelled again.
    """
    left = {task for task in tasks if task is not None}
    while left:
        for task in left:
            task.cancel()
        over, left = await asyncio.wait(left, timeout=AGAIN_S)
        for task in over:
            if not task.cancelled():
                task.exception()  # or it is logged as never retrieved


async def set_within(event: asyncio.Event, timeout_s: float | None) -> None:
    """Wait until an event is set, for so long at most; None: as long as it takes."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


async def all_of(work: Iterable[Awaitable[T]]) -> list[T]:
    """What each comes to, in order; where some fail, the first failure, when all are over: nothing goes on behind it."""
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    made: list[T] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        made.append(outcome)
    return made
