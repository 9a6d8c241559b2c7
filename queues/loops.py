"""Tasks that go on until somebody ends them."""

import asyncio
from typing import Any

AGAIN_S = 1.0


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
