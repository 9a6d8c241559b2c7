"""Files in a directory, of this machine or mounted there: the storage that needs nothing else.

A disk may be unmounted at any moment, and leaves an empty directory, or none. So nothing is written or removed but in one that
has the mark.
"""

import contextlib
import os
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

from fairlane.gateway.files.storage import MARK, PIECE, CutOff
from fairlane.gateway.files.threads import OpenFile, Threads
from fairlane.queues.private import DIRECTORY_MODE, FILE_MODE, private_directory


class Disk:
    """See `Storage`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._threads = Threads()

    def __str__(self) -> str:
        return str(self._directory)

    async def write(self, name: str) -> "DiskWriter":
        """See `Storage`."""
        file = OpenFile(await self._threads.run(lambda: _create(self._directory, name)))
        return DiskWriter(self._directory / _place(name), file, self._threads)

    async def read(self, name: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """See `Storage`. Who has begun to read goes on, also when the file is removed."""
        path = self._directory / _place(name)
        file = OpenFile(await self._threads.run(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC)))
        try:
            at = start
            while at < end:
                piece = await self._threads.run(lambda at=at: file.read(min(PIECE, end - at), at))  # type: ignore[misc]
                if not piece:
                    raise CutOff(f"{path} is cut off at {at}")
                at += len(piece)
                yield piece
        finally:
            self._threads.later(file.close)

    async def remove(self, name: str) -> None:
        """See `Storage`."""
        await self._threads.run(lambda: _remove(self._directory, name))

    async def close(self) -> None:
        """See `Storage`."""
        self._threads.close()


class DiskWriter:
    """See `Writer`."""

    def __init__(self, path: Path, file: OpenFile, threads: Threads) -> None:
        self._path = path
        self._file = file
        self._threads = threads

    async def write(self, block: bytes) -> None:
        """See `Writer`."""
        await self._threads.run(lambda: self._file.write(block))

    async def finish(self) -> None:
        """See `Writer`."""
        await self._threads.run(lambda: self._file.sync(self._path))

    async def close(self) -> None:
        """See `Writer`."""
        self._threads.later(self._file.close)


def _place(name: str) -> str:
    return name if name == MARK else f"{name[-2:]}/{name}"  # no directory gets too many


@contextlib.contextmanager
def _opened(directory: Path, name: str) -> Iterator[int]:
    """The directory, to write or remove something of this name in it: the one that was looked at, whatever is mounted there
    meanwhile. Raises OSError, also where it has no mark."""
    root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if name != MARK:
            try:
                os.stat(MARK, dir_fd=root)
            except FileNotFoundError as error:
                error.filename = str(directory / MARK)
                raise
        yield root
    finally:
        os.close(root)


def _create(directory: Path, name: str) -> int:
    if name == MARK:
        private_directory(directory)
    with _opened(directory, name) as root:
        if name != MARK:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name[-2:], DIRECTORY_MODE, dir_fd=root)
                os.chmod(name[-2:], DIRECTORY_MODE, dir_fd=root)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        return os.open(_place(name), flags, FILE_MODE, dir_fd=root)


def _remove(directory: Path, name: str) -> None:
    with _opened(directory, name) as root, contextlib.suppress(FileNotFoundError):
        os.unlink(_place(name), dir_fd=root)
