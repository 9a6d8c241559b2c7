"""How much of files one caller may have, and all together. Pure.

Nobody can fill the storage for others: a caller has at most half of what the others leave free.
"""

from typing import NamedTuple

from fairlane.gateway.errors import ApiError


class Held(NamedTuple):
    """Files, and their bytes, of one owner and of all."""

    files: int
    bytes: int
    all_files: int
    all_bytes: int


class Most(NamedTuple):
    """What there may be of them, by the settings `files`."""

    files: int
    bytes: int
    all_files: int
    all_bytes: int


def check_room(held: Held, most: Most, *, files: int, size: int) -> None:
    """Whether so many files and bytes more have room. Raises ApiError (429, 507)."""
    if held.files + files > most.files:
        raise _caller_full(f"You have {held.files} files, and may have {most.files}: delete some first")
    if held.bytes + size > most.bytes:
        raise _caller_full(
            f"Your files take {held.bytes} bytes, and may take {most.bytes}: {size} more have no room; delete some first"
        )
    others = held.all_files - held.files, held.all_bytes - held.bytes
    if 2 * (held.files + files) > most.all_files - others[0] or 2 * (held.bytes + size) > (
        most.all_bytes - others[1]
    ):
        raise storage_full()


def _caller_full(message: str) -> ApiError:
    return ApiError(429, "TOO_MANY_FILES", message)


def storage_full() -> ApiError:
    """There is no room, whoever's files take it."""
    return ApiError(
        507, "STORAGE_FULL", "There is too little room for this file: the operator must make some"
    )
