"""Files in a directory, of this machine or mounted there: the storage that needs nothing else."""

import os
from collections.abc import AsyncGenerator
from pathlib import Path

from fairlane.gateway.files.storage import PIECE, StorageError
from fairlane.gateway.files.threads import OpenFile, Threads
from fairlane.queues.private import FILE_MODE, private_directory


class Disk:
    """See `Storage`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._threads = Threads()

    def __str__(self) -> str:
        return str(self._directory)

    async def write(self, name: str) -> "DiskWriter":
        """See `Storage`."""
        path = self._path(name)
        file = OpenFile(await self._threads.run(lambda: _create(self._directory, path)))
        return DiskWriter(path, file, self._threads)

    async def read(self, name: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """See `Storage`. Who has begun to read goes on, also when the file is removed."""
        path = self._path(name)
        file = OpenFile(await self._threads.run(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC)))
        try:
            at = start
            while at < end:
                piece = await self._threads.run(lambda at=at: file.read(min(PIECE, end - at), at))  # type: ignore[misc]
                if not piece:
                    raise StorageError(f"{path} is cut off at {at}")
                at += len(piece)
                yield piece
        finally:
            self._threads.later(file.close)

    async def remove(self, name: str) -> None:
        """See `Storage`."""
        path = self._path(name)
        await self._threads.run(lambda: path.unlink(missing_ok=True))

    async def close(self) -> None:
        """See `Storage`."""
        self._threads.close()

    def _path(self, name: str) -> Path:
        if not name.startswith("file-"):
            return self._directory / name
        return self._directory / name[-2:] / name  # no directory gets too many


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


def _create(directory: Path, path: Path) -> int:
    private_directory(directory)
    private_directory(path.parent)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
