"""How a gateway treats memory: the collector comes seldom, and the allocator gives back what a peak took.

glibc maps large blocks by themselves and gives them back when they are freed, but it raises the size from which it does so with
each one that is freed, up to 32 MiB: after the first large bodies the next ones lie on the heap, and what is freed there below
anything that lives stays with the process. With a fixed size this does not happen to large blocks; of small ones whole pages are
given back now and then. Each thread would get a heap of its own, too: a few share one.
"""

import asyncio
import contextlib
import ctypes
import gc
import sys
from collections.abc import AsyncIterator

from fairlane.queues.loops import end_tasks

_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
MAPPED_BYTES = 128 * 1024
"""The size with which glibc begins. Bodies, pages of logs and results are larger; mapping one costs some 20 us."""
HEAPS = 2
GIVE_BACK_S = 20.0
"""How often whole free pages are given back: 2 ms where there are few, some 50 ms for 400 MiB."""


def _libc() -> ctypes.CDLL | None:
    """glibc, or None where the allocator is another one, which has rules of its own."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        libc = ctypes.CDLL(None)
        _ = libc.mallopt, libc.malloc_trim
    except (OSError, AttributeError):  # another C library
        return None
    return libc


def give_back_peaks() -> bool:
    """Fix those sizes, once per process, at its start. False where the allocator is not glibc's."""
    libc = _libc()
    if libc is None:
        return False
    return bool(libc.mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)) and bool(libc.mallopt(_M_ARENA_MAX, HEAPS))


def settle_memory() -> None:
    """Leave what start-up made out of garbage collection, and collect seldom: tasks leave few cycles behind, and each collection
    holds up every stream. What a peak took is given back."""
    give_back_peaks()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@contextlib.asynccontextmanager
async def giving_back() -> AsyncIterator[None]:
    """For as long as the block lasts, give whole free pages back now and then."""
    libc = _libc()
    giving = None if libc is None else asyncio.create_task(_give_back(libc), name="memory")
    try:
        yield
    finally:
        await end_tasks(giving)


async def _give_back(libc: ctypes.CDLL) -> None:
    while True:
        await asyncio.sleep(GIVE_BACK_S)
        libc.malloc_trim(0)
