"""The memory of another process, as the system counts it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import psutil

MIB = 1 << 20


@dataclass
class Peak:
    """Resident memory over a while, in MiB."""

    before: float
    peak: float = 0.0

    @property
    def grown(self) -> float:
        """How far it rose above the start."""
        return self.peak - self.before


def resident(pid: int) -> float:
    """Resident memory of a process, MiB."""
    return float(psutil.Process(pid).memory_info().rss) / MIB


@contextlib.asynccontextmanager
async def watched(pid: int) -> AsyncIterator[Peak]:
    """The peak of a process's memory inside the block, from looks every few ms."""
    found = Peak(resident(pid))
    found.peak = found.before
    process = psutil.Process(pid)  # to make one costs more than to ask it

    async def look() -> None:
        while True:
            found.peak = max(found.peak, process.memory_info().rss / MIB)
            await asyncio.sleep(0.005)

    task = asyncio.create_task(look())
    try:
        yield found
        found.peak = max(found.peak, resident(pid))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
