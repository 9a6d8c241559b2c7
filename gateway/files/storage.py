"""What keeps the bytes of files: one way to ask for it, and how it fails."""

from collections.abc import AsyncGenerator
from typing import Protocol

MARK = "fairlane-storage"
"""What is called so in a storage says which one it is (`identity.py`). All else is named `file-…`."""
PIECE = 256 * 1024
"""Bytes that are read at once."""


class StorageError(Exception):
    """The storage does not do what it is asked for; the text says why, to operators."""


class StorageFull(StorageError):
    """There is no room left."""


class NotStored(StorageError):
    """There is nothing by this name."""


class CutOff(StorageError):
    """It has fewer bytes than were asked for."""


class Writer(Protocol):
    """Something that is being written. Nobody reads it before it is finished; who is done with it closes it."""

    async def write(self, block: bytes) -> None:
        """Take more of it. Raises StorageError."""
        ...

    async def finish(self) -> None:
        """Return when all of it is stored for good: it outlives a loss of power here. Raises StorageError."""
        ...

    async def close(self) -> None:
        """Let go of it. What is not finished is to be removed."""
        ...


class Storage(Protocol):
    """One storage, which all replicas share. Names are ours. Nothing here holds the event loop, or more than a few pieces."""

    def __str__(self) -> str:
        """Where it is, for people: no secret is in it."""
        ...

    async def write(self, name: str) -> Writer:
        """Begin to write; whatever is there by this name is replaced. Raises StorageError."""
        ...

    def read(self, name: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """The bytes from `start` to before `end`, in pieces of PIECE or less. Raises StorageError, NotStored."""
        ...

    async def remove(self, name: str) -> None:
        """Remove what is there by this name, finished or not. Nothing is no error. Raises StorageError."""
        ...

    async def close(self) -> None:
        """Let go of all."""
        ...
