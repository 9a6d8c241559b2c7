"""Lets the allocator give back what a peak took, so that a gateway's memory follows what it holds.

glibc raises the size from which it maps memory of its own with each large block that is freed, up to 32 MiB: after the first
large bodies, others lie on the heap, and what is freed there below anything that lives stays with the process. With a fixed size
every large block is mapped and goes back to the system when it is freed.
"""

import ctypes
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
MAPPED_BYTES = 256 * 1024
"""Blocks of this size and more: bodies, pages of a log, results. A mapping costs some microseconds, and the pages' first use."""
TRIM_BYTES = 512 * 1024


def give_back_peaks() -> bool:
    """Set the allocator up, once per process, at its start. False where it is not glibc's, which has rules of its own."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES) and mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES))
