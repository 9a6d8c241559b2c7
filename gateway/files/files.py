"""Files of callers: what can be done with them.

A file that arrives has a row first (`rows.py`), then its bytes, and is there when both are whole. Whoever stops in between, by an
error, a lost client or a crash, leaves a row that arrives no more: its bytes are removed at once, or by whoever sweeps
(`sweeping.py`).
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence

import structlog

from fairlane.gateway.database.database import REPORT_S, Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.errors import ApiError
from fairlane.gateway.files import rows
from fairlane.gateway.files.limits import Held, Most, check_room, storage_full
from fairlane.gateway.files.names import plain_name
from fairlane.gateway.files.rows import FileRow, Owner
from fairlane.gateway.files.storage import NotStored, Storage, StorageError, StorageFull, Writer
from fairlane.gateway.settings import FilesSettings
from fairlane.queues.loops import end_tasks
from fairlane.streaming.turns import Turns

log = structlog.get_logger("fairlane.gateway")

OURS = frozenset({"batch_output"})
"""Purposes of files that are made here: what they hold has been paid for, so they count, and are not refused for want of room."""
BLOCK = 512 * 1024
"""Bytes that are written at once."""
LEASE_MS = 5 * 60_000
"""A file of which nobody has said for so long that it still arrives does not."""
SET_ASIDE = 16 * 1024 * 1024
"""Bytes that are set aside for a file of unknown size, and again and again as it grows."""
REMOVE_AGAIN_MS = 60_000
READS, WRITES = 2, 1
"""Transactions at once, of all callers: others wait in line, callers in turns."""


class Files:
    """The files of all callers. Everything raises DatabaseUnavailable, and ApiError: 404 for a file that is not there or is
    somebody else's, 503 while the storage does not answer."""

    def __init__(
        self,
        database: Database,
        storage: Storage,
        settings: FilesSettings,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._database = database
        self._storage = storage
        self._settings = settings
        self._now = now_ms
        self._reads, self._writes = Turns(READS), Turns(WRITES)

    async def create(
        self,
        owner: Owner,
        name: str,
        purpose: str,
        chunks: AsyncIterator[bytes],
        *,
        expires_s: int | None = None,
        most: int | None = None,
    ) -> FileRow:
        """A file of these bytes, which is there, and stored for good, when this returns; whole or not at all.

        `expires_s`: it expires so many seconds after its creation, if the settings do not say that it does before. `most`: bytes
        that it may have; None: as the settings say. Raises ApiError (413, 429, 507), and what `chunks` raises.
        """
        async with self.arriving(owner, most=most, refused=purpose not in OURS) as arriving:
            async for chunk in chunks:
                await arriving.write(chunk)
            return await arriving.finish(name, purpose, expires_s)

    @contextlib.asynccontextmanager
    async def arriving(
        self, owner: Owner, *, size: int = 0, most: int | None = None, refused: bool = True
    ) -> AsyncIterator["Arriving"]:
        """A file that is to be written, and finished, within the block; else nothing of it is left. `size`: how large it will be
        at most, as far as that is known. `refused`: whether it is, where there is no room for it. Raises as `create`."""
        raise NotImplementedError

    async def row(self, owner: Owner | None, file_id: str) -> FileRow:
        """A file of an owner; None: whoever's it is."""
        raise NotImplementedError

    async def list(
        self,
        owner: Owner,
        *,
        purpose: str | None = None,
        after: str | None = None,
        descending: bool = True,
        limit: int = 10_000,
    ) -> Sequence[FileRow]:
        """An owner's files by time, at most so many; `after`: behind the one of this id, be it still there or not."""
        raise NotImplementedError

    async def delete(self, owner: Owner | None, file_id: str) -> None:
        """Delete a file of an owner (None: whoever's it is): from now on it is not there. Who reads it meanwhile may be cut off."""
        raise NotImplementedError

    async def open(
        self, owner: Owner | None, file_id: str, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        """The bytes of a file from `start` on, to before `end`, in pieces of 256 KiB at most, no faster than they are taken. Close
        it (`contextlib.aclosing`) where it is not read to its end."""
        raise NotImplementedError
        yield b""


class Arriving:
    """A file that arrives."""

    async def write(self, data: bytes) -> None:
        """More of it, of any size. Raises ApiError: 413, 429, 507, 503."""
        raise NotImplementedError

    async def finish(self, name: str, purpose: str, expires_s: int | None = None) -> FileRow:
        """All of it has come. Raises as `write`."""
        raise NotImplementedError
