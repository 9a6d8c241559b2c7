"""How a gateway treats memory: the collector comes seldom, and the allocator gives back what a peak took.

glibc maps large blocks by themselves and gives them back when they are freed, but it raises the size from which it does so with
each one that is freed, up to 32 MiB: after the first large bodies the next ones lie on the heap, and what is freed there below
anything that lives stays with the process. With a fixed size this does not happen.
"""

import ctypes
import gc
import sys

_M_MMAP_THRESHOLD = -3
MAPPED_BYTES = 128 * 1024
"""The size with which glibc begins. Bodies, pages of logs and results are larger; mapping one costs some 20 us."""


def give_back_peaks() -> bool:
    """Fix that size, once per process, at its start. False where the allocator is not glibc's, which has rules of its own."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES))


def settle_memory() -> None:
    """Leave what start-up made out of garbage collection, and collect seldom: tasks leave few cycles behind, and each collection
    holds up every stream. What a peak took is given back."""
    give_back_peaks()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
