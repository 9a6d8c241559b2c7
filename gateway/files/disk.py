"""Files in a directory, local or mounted: the storage that needs nothing else. Blocking calls run in a few threads."""

import contextlib
import errno
import os
from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from fairlane.gateway.files.storage import MARK, PIECE, NotStored, Storage, StorageError, StorageFull, Writer
from fairlane.queues.secure_files import DIRECTORY_MODE, FILE_MODE, make_private_directory

MAX_THREADS = 4
KEEP_FREE = 512 << 20
"""Bytes of the disk that files leave free, because the database and Redis may be on it."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

T = TypeVar("T")


class Disk(Storage):
    """A directory. A read that has begun continues when the file is removed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._limiter = CapacityLimiter(MAX_THREADS)

    def __str__(self) -> str:
        return str(self._directory)

    async def write(self, name: str) -> Writer:
        path = self._path(name)
        return DiskWriter(self, path, await self.run(partial(_create, self._directory, path)))

    async def read(self, name: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        path = self._path(name)
        number = await self.run(partial(os.open, path, os.O_RDONLY | os.O_CLOEXEC))
        try:
            while start < end:
                piece = await self.run(partial(os.pread, number, min(PIECE, end - start), start))
                if not piece:
                    raise NotStored(f"{path} is cut off at {start}")
                start += len(piece)
                yield piece
        finally:
            os.close(number)

    async def remove(self, name: str) -> None:
        await self.run(partial(self._path(name).unlink, missing_ok=True), abandon=True)

    async def run(self, work: Callable[[], T], *, abandon: bool = False) -> T:
        """Call `work` in a thread; with `abandon`, a cancellation does not wait for it. Raise StorageError for an OSError."""
        try:
            return await to_thread.run_sync(work, abandon_on_cancel=abandon, limiter=self._limiter)
        except FileNotFoundError as error:
            raise NotStored(f"there is no {error.filename}") from error
        except OSError as error:
            kind = StorageFull if error.errno in _FULL else StorageError
            raise kind(f"{error.filename or self._directory}: {error.strerror}") from error

    def _path(self, name: str) -> Path:
        # by the end of its name, so that no directory has too many files
        return self._directory / (name if name == MARK else f"{name[-2:]}/{name}")


class DiskWriter(Writer):
    def __init__(self, disk: Disk, path: Path, number: int) -> None:
        self._disk = disk
        self._path = path
        self._number = number

    async def write(self, block: bytes) -> None:
        await self._disk.run(partial(_append, self._number, block))

    async def finish(self) -> None:
        await self._disk.run(partial(os.fsync, self._number))
        for directory in (self._path.parent, self._path.parent.parent):
            await self._disk.run(partial(_sync_directory, directory))

    def close(self) -> None:
        os.close(self._number)


def _create(directory: Path, path: Path) -> int:
    if path.name == MARK:
        make_private_directory(directory)
    else:
        (directory / MARK).stat()  # a disk that is not mounted leaves an empty directory, or none
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir()
            path.parent.chmod(DIRECTORY_MODE)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)


def _append(number: int, block: bytes) -> None:
    room = os.fstatvfs(number)
    if room.f_blocks and room.f_bavail * room.f_frsize < KEEP_FREE + len(block):
        raise OSError(errno.ENOSPC, f"less than {KEEP_FREE} bytes would stay free on the disk")
    view = memoryview(block)
    while view:
        view = view[os.write(number, view) :]


def _sync_directory(directory: Path) -> None:
    number = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)
