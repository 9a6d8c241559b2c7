"""Task ids: UUIDs of version 8 that carry their time and their pool.

    ms since 1970 (48 bits) | version 8 (4) | pool (8) | random (4) | variant (2) | random (62)

Ids sort by time in text and in binary, name the Redis pool that holds the task, and cannot be
guessed (66 random bits). They do not grant access: whose task it is, is checked apart from the id.
"""

import os
import re
import time
from collections.abc import Callable

MAX_POOLS = 256

_EARLIEST_MS = 1_735_689_600_000
"""2025-01-01: no gateway issued an id before."""

_CLOCK_SKEW_MS = 24 * 3600 * 1000
"""How far ahead another replica's clock may be before its ids look foreign."""

_V8 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")

_VERSION_AND_VARIANT = (8 << 76) | (0b10 << 62)
_LOW_62 = (1 << 62) - 1


def new_task_id(now_ms: int = 0, random_bytes: Callable[[int], bytes] = os.urandom) -> str:
    """A new id as lower-case text, 36 characters.

    `now_ms` is wall-clock time, 0: now (its low 48 bits are used). Unique without coordination between replicas. Its pool is 0:
    see `in_pool`.
    """
    now_ms = now_ms or time.time_ns() // 1_000_000
    noise = int.from_bytes(random_bytes(9), "big")
    number = (
        (now_ms & 0xFFFF_FFFF_FFFF) << 80
        | _VERSION_AND_VARIANT
        | (noise >> 62 & 0xF) << 64
        | (noise & _LOW_62)
    )
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def pool_of(task_id: str) -> int:
    """Return the number of a task's pool; 0 if `task_id` is not an id."""
    try:
        return int(task_id[15:17], 16)
    except ValueError:
        return 0


def in_pool(task_id: str, pool: int) -> str:
    """Return the id with the number of another pool: an id is made before the model of its task is known."""
    return f"{task_id[:15]}{pool:02x}{task_id[17:]}"


def could_be_ours(text: str, now_ms: int) -> bool:
    """Whether a gateway of this deployment may have issued `text`: well-formed, with a plausible time.

    Decides between "Task not found or expired" and "Task not found"; it does not say that the task exists.
    """
    if not _V8.fullmatch(text):
        return False
    return _EARLIEST_MS <= issued_ms(text) <= now_ms + _CLOCK_SKEW_MS


def issued_ms(task_id: str) -> int:
    """When an id was made, ms since 1970."""
    return int(task_id[:8] + task_id[9:13], 16)
