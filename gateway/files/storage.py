"""The storage of files' bytes: its interface, and how it fails."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator

MARK = "fairlane-storage"
"""The name of the object that identifies a storage (`Files.identify`). Every other name is `file-…`."""
PIECE = 256 * 1024
"""Bytes of one read."""


class StorageError(Exception):
    """The storage cannot do it. The text is the reason, for operators."""


class StorageFull(StorageError):
    """The storage has no room left."""


class NotStored(StorageError):
    """The storage has nothing by this name."""


class Writer(ABC):
    """An object that is being written. It is not read before `finish` has returned."""

    @abstractmethod
    async def write(self, block: bytes) -> None:
        """Append. Raise StorageError."""

    @abstractmethod
    async def finish(self) -> None:
        """Return when the object is durable. Raise StorageError."""

    @abstractmethod
    def close(self) -> None:
        """Release the writer. If it was not finished, the caller removes the object."""


class Storage(ABC):
    """A storage that all replicas share. No call blocks the event loop or holds more than a few pieces in memory. Its text is its
    location, without secrets."""

    @abstractmethod
    async def write(self, name: str) -> Writer:
        """Begin to write, replacing any object of this name. Raise StorageError."""

    @abstractmethod
    def read(self, name: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Yield the bytes from `start` to before `end`. Raise StorageError, NotStored."""

    @abstractmethod
    async def remove(self, name: str) -> None:
        """Remove an object, finished or not. A missing one is no error. Raise StorageError."""
