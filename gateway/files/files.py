"""Callers' files: what can be done with them, and their removal.

A file has a row first (`rows.py`), then its bytes, and is readable when both are complete. A failed upload leaves a row that is
not readable. `sweep` removes such bytes and rows, so that nothing needs to list the storage.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence

import structlog
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.database.database import REPORT_S, Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.database.inserting import insert_new
from fairlane.gateway.database.tables import facts
from fairlane.gateway.errors import ApiError
from fairlane.gateway.files import rows
from fairlane.gateway.files.rows import FileRow, is_file_id, new_file_id, plain_name
from fairlane.gateway.files.settings import FilesSettings
from fairlane.gateway.files.storage import MARK, NotStored, Storage, StorageError, StorageFull, Writer
from fairlane.queues.clock import now_ms
from fairlane.queues.logs.rate_limited import RateLimitedLogger
from fairlane.queues.loops import Periodic

log = structlog.get_logger("fairlane.gateway")

OURS = frozenset({"batch_output"})
"""Purposes of files that the gateway writes. They count for their owner, and are never rejected because the storage is full."""
BLOCK = 512 * 1024
"""Bytes of one write."""
ARRIVING_MS = 6 * 3_600_000
"""An upload may take this long; a later one is considered abandoned."""
RETRY_REMOVE_MS = 60_000
REMOVE_S = 5.0
"""How long `delete` waits for the storage. The sweep does the rest."""
SWEEP_S = 60.0
MAX_SWEPT = 50
PAGE = 1000
MAX_FILE_BYTES = 512 << 20
MAX_FILES_PER_CALLER = 10_000
MAX_FILES = 100_000
FACT, MARK_CHARS = "files_storage", 32


class Files(Periodic):
    """The files of all callers. Everything raises DatabaseUnavailable, and ApiError: 404 for a file that does not exist or
    belongs to another owner, 503 while the storage fails."""

    name = "files sweep"
    interval_s, delay_s = SWEEP_S, SWEEP_S / 2
    expected = (DatabaseUnavailable, ApiError)

    def __init__(
        self,
        database: Database,
        storage: Storage,
        settings: Callable[[], FilesSettings],
        now_ms: Callable[[], int] = now_ms,
        *,
        failed: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`settings`: the current ones. `failed` counts failures of the storage."""
        self._database = database
        self._storage = storage
        self._settings = settings
        self._now = now_ms
        self._failed = failed
        self._identified = False
        self._failing = RateLimitedLogger(burst=1, per_second=1 / 60)

    async def step(self) -> None:
        """Sweep."""
        while await self.sweep():
            pass

    # ---- callers ----------

    async def create(
        self,
        owner: Owner,
        name: str,
        purpose: str,
        chunks: AsyncIterator[bytes],
        *,
        expires_s: int | None = None,
        most: int | None = None,
        file_id: str | None = None,
    ) -> FileRow:
        """Store a file of these bytes, complete and durable, or nothing.

        `expires_s`: seconds after which it expires, unless the settings say sooner. `most`: its limit in bytes, None for the
        setting. `file_id`: its id; an unfinished file of this id is replaced. Raise ApiError (413, 429, 507), and what `chunks`
        raises.
        """
        async with self.arriving(owner, most=most, limited=purpose not in OURS, file_id=file_id) as arriving:
            async for chunk in chunks:
                await arriving.write(chunk)
            return await arriving.finish(name, purpose, expires_s)

    @contextlib.asynccontextmanager
    async def arriving(
        self,
        owner: Owner,
        *,
        size: int = 0,
        most: int | None = None,
        limited: bool = True,
        file_id: str | None = None,
    ) -> AsyncIterator["Arriving"]:
        """Return a file to be written and finished within the block; otherwise nothing of it stays.

        `size`: its maximum, if known: room for it is reserved; otherwise room is checked at the end. `limited`: whether it is
        rejected when there is no room. Raises as `create`."""
        await self.identify()
        limit = MAX_FILE_BYTES if most is None else most
        now = self._now()
        file_id = file_id or new_file_id(now)
        reserved = min(size, limit)
        arriving = None
        try:
            async with self._database.writing(REPORT_S) as connection:
                if limited:
                    await self._check_room(connection, owner, 1, reserved)
                await rows.begin(connection, file_id, owner, reserved, now, now + ARRIVING_MS)
            with self.translated():
                writer = await self._storage.write(file_id)
            try:
                row = FileRow(file_id, 0, now, "", "", None, owner)
                arriving = Arriving(self, writer, row, limit, reserved if limited else limit)
                yield arriving
            finally:
                writer.close()
        finally:
            if arriving is None or not arriving.finished:
                with contextlib.suppress(DatabaseUnavailable):
                    async with self._database.writing(REPORT_S) as connection:
                        await rows.give_up(connection, file_id, self._now())
                    await self._remove_soon(file_id)

    async def row(self, owner: Owner | None, file_id: str) -> FileRow:
        """Return a file of an owner (None: of any)."""
        found = None
        if is_file_id(file_id):
            async with self._database.reading(REPORT_S) as connection:
                found = await rows.read(connection, file_id, owner, self._now())
        if found is None:
            raise not_found(file_id)
        return found

    async def list(
        self,
        owner: Owner,
        *,
        purpose: str | None = None,
        after: str | None = None,
        descending: bool = True,
        limit: int = 10_000,
    ) -> Sequence[FileRow]:
        """Return an owner's files by time, at most `limit`, behind the id `after`, whether that still exists or not."""
        found: list[FileRow] = []
        async with self._database.reading(REPORT_S) as connection:
            now = self._now()
            while (most := min(limit - len(found), PAGE)) > 0:
                part = await rows.page(
                    *(connection, owner, now),
                    purpose=purpose,
                    after=found[-1].id if found else after,
                    descending=descending,
                    most=most,
                )
                found += part
                if len(part) < most:
                    break
        return found

    async def check_room(self, owner: Owner, count: int, size: int) -> None:
        """Check that an owner has room for more files and bytes. Raise ApiError (429, 507)."""
        async with self._database.reading(REPORT_S) as connection:
            await self._check_room(connection, owner, count, size)

    async def delete(self, owner: Owner | None, file_id: str) -> None:
        """Delete a file of an owner (None: of any), also one that is arriving. A reader may be cut off."""
        gone = False
        if is_file_id(file_id):
            now = self._now()
            async with self._database.writing(REPORT_S) as connection:
                gone = await rows.drop(connection, file_id, owner, now, now + RETRY_REMOVE_MS)
        if not gone:
            raise not_found(file_id)
        await self._remove_soon(file_id)

    async def pieces(
        self, row: FileRow, start: int = 0, end: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a file from `start` to before `end`. Close it unless it is read to its end. Raise ApiError(404) also
        if it was deleted since."""
        await self.identify()
        end = row.bytes if end is None else min(end, row.bytes)
        if start >= end:
            return
        with self.translated():
            try:
                async with contextlib.aclosing(self._storage.read(row.id, start, end)) as pieces:
                    async for piece in pieces:
                        yield piece
            except NotStored as error:
                self._identified = False  # if the storage is gone, the file is not lost
                await self.identify()
                log.error("the bytes of a file are missing", file=row.id, reason=str(error))
                raise not_found(row.id) from error

    # ---- the storage ----------

    async def identify(self) -> None:
        """Check once that the storage holds the files of this database: another replica's directory does not. The first gateway
        writes a mark into both. Raise ApiError(503)."""
        if self._identified:
            return
        with self.translated():
            mark = select(facts.c.value).where(facts.c.name == FACT)
            async with self._database.reading() as connection:
                known = await connection.scalar(mark)
            if known is None:
                async with self._database.writing() as connection:
                    await rows.lock(connection)
                    known = await connection.scalar(mark)
                    if known is None:
                        known = await self._read_mark() or await self._write_mark()
                        await insert_new(connection, facts, [{"name": FACT, "value": known}])
            found = await self._read_mark()
            if found != known:
                raise StorageError(
                    f"{self._storage} does not hold the files of this database ({MARK} says {found}, expected {known}): "
                    "have all replicas share one directory or bucket, by the setting files.storage"
                )
        self._identified = True

    async def _write_mark(self) -> str:
        mark = os.urandom(MARK_CHARS // 2).hex()
        writer = await self._storage.write(MARK)
        await writer.write(mark.encode())
        await writer.finish()
        writer.close()
        return mark

    async def _read_mark(self) -> str | None:
        try:
            mark = b"".join([piece async for piece in self._storage.read(MARK, 0, MARK_CHARS)])
        except NotStored:  # or an incomplete one, whose writer died
            return None
        return mark.decode("ascii", "replace")

    async def sweep(self) -> bool:
        """Remove some files that expired, were deleted or whose upload was abandoned; return whether there may be more. Every
        replica sweeps; one that cannot be removed is due again in a minute."""
        await self.identify()
        now = self._now()
        async with self._database.writing(REPORT_S) as connection:
            due = await rows.due(connection, now, now + RETRY_REMOVE_MS, MAX_SWEPT)
        for file_id in due:
            with contextlib.suppress(ApiError):
                await self._remove(file_id)
        return len(due) == MAX_SWEPT

    async def _remove(self, file_id: str) -> None:
        """Remove the bytes of a deleted file, then its row."""
        with self.translated():
            await self._storage.remove(file_id)
        async with self._database.writing(REPORT_S) as connection:
            await rows.remove(connection, file_id)

    async def _remove_soon(self, file_id: str) -> None:
        """Remove it now if the storage answers soon; otherwise the sweep does."""
        with contextlib.suppress(DatabaseUnavailable, ApiError, TimeoutError):
            async with asyncio.timeout(REMOVE_S):
                await self._remove(file_id)

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Raise a storage's errors as ApiError. The log has a line a minute."""
        try:
            yield
        except StorageError as error:
            self._failing.log(log.warning, "the storage of files fails", reason=str(error))
            self._failed("full" if isinstance(error, StorageFull) else "failed")
            raise (storage_full() if isinstance(error, StorageFull) else _unavailable(error)) from error

    async def _check_room(self, connection: AsyncConnection, owner: Owner, count: int, size: int) -> None:
        """Check the owner's limits and all owners': one owner may have half of the room that the others leave."""
        most = self._settings()
        files, used, all_files, all_used = await rows.held(connection, owner)
        if files + count > MAX_FILES_PER_CALLER:
            sentence = f"You have {files} files, and may have {MAX_FILES_PER_CALLER}: delete some first"
            raise ApiError(429, "TOO_MANY_FILES", sentence)
        left_files = MAX_FILES - (all_files - files)
        left_bytes = most.max_bytes - (all_used - used)
        if 2 * (files + count) > left_files or 2 * (used + size) > left_bytes:
            raise storage_full()

    async def finish(self, row: FileRow, expires_s: int | None, more: int) -> FileRow:
        """Make a stored file readable, which takes `more` bytes than are reserved. Raise ApiError: 429, 503, 507."""
        ends = [
            ms
            for ms in (self._settings().ttl_ms, None if expires_s is None else expires_s * 1000)
            if ms is not None
        ]
        row = row._replace(expires=row.created + min(ends) if ends else None)
        async with self._database.writing(REPORT_S) as connection:
            if more > 0:
                await self._check_room(connection, row.owner, 0, more)
            if not await rows.finish(connection, row):
                sentence = "The file took too long to be stored, and was given up: send it again"
                raise ApiError(503, "FILE_LOST", sentence, retry_after_ms=1000)
        return row


class Arriving:
    """A file that is being uploaded. Its owner writes it in order, then finishes it."""

    def __init__(self, files: Files, writer: Writer, row: FileRow, most: int, room: int) -> None:
        """`room`: bytes that need no further check."""
        self._files = files
        self._writer = writer
        self._row = row
        self._most = most
        self._room = room
        self._size = self._waiting = 0
        self._pieces: list[bytes] = []
        self.finished = False

    async def write(self, data: bytes) -> None:
        """Append bytes. Raise ApiError: 413, 503, 507."""
        self._size += len(data)
        if self._size > self._most:
            sentence = f"The file is larger than the limit of {self._most} bytes"
            raise ApiError(413, "FILE_TOO_LARGE", sentence, param="file")
        self._pieces.append(data)
        self._waiting += len(data)
        if self._waiting >= BLOCK:
            await self._store()

    async def finish(self, name: str, purpose: str, expires_s: int | None = None) -> FileRow:
        """Make the file readable. Raises as `write`."""
        await self._store()
        with self._files.translated():
            await self._writer.finish()
        row = self._row._replace(bytes=self._size, name=plain_name(name), purpose=purpose)
        row = await self._files.finish(row, expires_s, self._size - self._room)
        self.finished = True
        return row

    async def _store(self) -> None:
        pieces, self._pieces, self._waiting = self._pieces, [], 0
        if pieces:
            with self._files.translated():
                await self._writer.write(b"".join(pieces))


def not_found(file_id: str) -> ApiError:
    """Return the one answer for an unknown, an expired and another owner's file."""
    return ApiError(404, "FILE_NOT_FOUND", f"No such file: {file_id[:100]}", param="file_id")


def storage_full() -> ApiError:
    """Return the error for a full storage, whatever owner fills it."""
    sentence = "There is too little room for this file: the operator must make some"
    return ApiError(507, "STORAGE_FULL", sentence)


def _unavailable(error: Exception) -> ApiError:
    away = ApiError(503, "STORAGE_UNAVAILABLE", "The storage of files is unavailable", retry_after_ms=1000)
    away.facts = {"cause": str(error)}
    return away
