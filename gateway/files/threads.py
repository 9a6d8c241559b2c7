"""Threads in which files are written and read: a slow disk, or one that does not answer, holds up nothing but files."""

import asyncio
import errno
import os
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from fairlane.gateway.files.storage import NotStored, StorageError, StorageFull
from fairlane.queues.private import private_directory

THREADS = 4
KEEP_FREE = 512 << 20
"""Bytes of a disk that no file takes: the database and Redis may lie there, too."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Result = TypeVar("Result")


class Threads:
    """A few threads. What one of them is about goes on, also when nobody waits for it any more."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="files")

    async def run(self, work: Callable[[], Result]) -> Result:
        """What `work` returns. Raises StorageError, NotStored, StorageFull for what the system says."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except FileNotFoundError as error:
            raise NotStored(f"there is no {error.filename}") from error
        except OSError as error:
            kind = StorageFull if error.errno in _FULL else StorageError
            place = f"{error.filename}: " if error.filename else ""
            raise kind(f"{place}{error.strerror}") from error
        except RuntimeError as error:  # (the gateway stops, and the threads with it)
            raise StorageError(str(error)) from error

    def later(self, work: Callable[[], None]) -> None:
        """Do it when a thread is free; nobody hears how it ended."""
        try:
            self._threads.submit(work)
        except RuntimeError:  # (the gateway stops)
            work()

    def close(self) -> None:
        """End when what is under way has ended."""
        self._threads.shutdown(wait=False)


class OpenFile:
    """An open file that several threads may use, and one may close: who comes after that fails, and never reaches another file
    that was given the same number."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._lock = threading.Lock()

    def write(self, data: bytes) -> None:
        """Append all of it. Raises OSError, also where it would take what is to stay free."""
        with self._lock:
            room = os.fstatvfs(self._open())
            if room.f_blocks and room.f_bavail * room.f_frsize < KEEP_FREE + len(data):
                raise OSError(errno.ENOSPC, f"less than {KEEP_FREE} bytes would stay free on the disk")
            view = memoryview(data)
            while view:
                view = view[os.write(self._open(), view) :]

    def read(self, size: int, at: int) -> bytes:
        """So many bytes from there on, fewer at the end. Raises OSError."""
        with self._lock:
            return os.pread(self._open(), size, at)

    def sync(self, path: Path) -> None:
        """Have the file, and its name, on the disk. Raises OSError."""
        with self._lock:
            os.fsync(self._open())
        for directory in (path.parent, path.parent.parent):
            _sync_directory(directory)

    def close(self) -> None:
        """Close it, if it is open."""
        with self._lock:
            number, self._number = self._number, -1
            if number >= 0:
                os.close(number)

    def _open(self) -> int:
        if self._number < 0:
            raise OSError(errno.EBADF, "was closed meanwhile")
        return self._number


def nameless(directory: Path) -> OpenFile:
    """A new file without a name there, which is gone with its last user, however that ends. Raises OSError."""
    private_directory(directory)
    with tempfile.TemporaryFile(dir=directory) as file:
        return OpenFile(os.dup(file.fileno()))


def _sync_directory(path: Path) -> None:
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)
