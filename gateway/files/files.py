"""Files of callers: what can be done with them.

A file that arrives has a row first (`rows.py`), then its bytes, and is there when both are whole. Whoever stops in between, by an
error, a lost client or a crash, leaves a row of something that arrives no more: its bytes are removed at once, or by whoever
sweeps (`sweeping.py`).
"""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.database.database import REPORT_S, Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.errors import ApiError
from fairlane.gateway.files import identity, rows
from fairlane.gateway.files.identity import WrongStorage
from fairlane.gateway.files.limits import Held, Most, check_room, storage_full
from fairlane.gateway.files.names import is_file_id, plain_name
from fairlane.gateway.files.rows import FileRow, new_file_id
from fairlane.gateway.files.storage import NotStored, Storage, StorageError, StorageFull, Writer
from fairlane.gateway.settings import FilesSettings
from fairlane.queues.clock import now_ms
from fairlane.queues.logs.sums import SummedLine
from fairlane.queues.loops import end_tasks
from fairlane.streaming.turns import Turns

log = structlog.get_logger("fairlane.gateway")

OURS = frozenset({"batch_output"})
"""Purposes of files that are made here: what they hold has been paid for, so they count, and are not refused for want of room."""
BLOCK = 512 * 1024
"""Bytes that are written at once."""
LEASE_MS = 5 * 60_000
"""A file of which nobody has said for so long that it still arrives does so no more."""
SET_ASIDE = 1024 * 1024
"""Bytes that are set aside at first for a file of unknown size; then as many again as it has."""
REMOVE_AGAIN_MS = 60_000
COUNT_AGAIN_MS = 3_600_000
"""All files are counted so often, though they are added up with each change."""
READS, WRITES = 2, 1
"""Transactions at once, of all callers: others wait in line, callers in turns."""
WAIT_S = 30.0
"""For such a turn."""
LOOK_AGAIN_S = 5.0
"""After a storage was not the right one, or did not answer."""
TELL_AGAIN_S = 60.0
"""Between two lines in the log of why it is not the right one."""
HOLDS_S = 1.0
"""How long it is believed to be the right one by those who write or remove: what is mounted may go while a gateway runs."""
REMOVE_S = 5.0
"""How long those wait for a storage who have something removed there: what is not done then is done by who sweeps."""
CLOSE_S = 5.0
ROWS = 1000
"""That are read at once: others have their turn between."""


class Files:
    """The files of all callers. Everything raises DatabaseUnavailable, and ApiError: 404 for a file that is not there or is
    somebody else's, 503 while the storage does not do what it is asked for."""

    def __init__(
        self,
        database: Database,
        storage: Storage,
        settings: Callable[[], FilesSettings],
        now_ms: Callable[[], int] = now_ms,
        *,
        failed: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`settings`: those that hold now; of the storage what was said at the start. `failed`: `Metrics.storage_failed`."""
        self._database = database
        self._storage = storage
        self._settings = settings
        self._now = now_ms
        self._failed = failed
        self._reads, self._writes = Turns(READS), Turns(WRITES)
        self._identified: float | None = None
        """When the storage was last seen to be the one in which the files of this database are; None: it was not, or never."""
        self._identifying = asyncio.Lock()
        self._trouble: tuple[float, ApiError] | None = None
        """When that could not be found out last, and what callers are told."""
        self._told_at = 0.0
        """When the log told of it last."""
        self._why = ""
        self._failing = SummedLine(
            lambda times: log.warning("the storage of files fails", why=self._why, times=times)
        )
        self._full = SummedLine(
            lambda times: log.error("there is no room for files", why=self._why, times=times)
        )
        self._taking_back: set[asyncio.Task[None]] = set()

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
        """A file of these bytes, which is there, and stored for good, when this returns; whole or not at all.

        `expires_s`: it expires so many seconds after its creation, if the settings do not say that it does before. `most`: bytes
        that it may have; None: as the settings say. `file_id`: its id, which nobody has had before; None: a new one. Raises
        ApiError (413, 429, 507), and what `chunks` raises.
        """
        refused = purpose not in OURS
        async with self.arriving(owner, most=most, refused=refused, file_id=file_id) as arriving:
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
        refused: bool = True,
        file_id: str | None = None,
    ) -> AsyncIterator["Arriving"]:
        """A file that is to be written, and finished, within the block; else nothing of it is left.

        `size`: how large it will be at most, where that is known: so much is set aside at once. `refused`: whether it is, where
        there is no room for it. Raises as `create`."""
        await self.identify(HOLDS_S)
        limit = self._settings().max_file_bytes if most is None else most
        now = self._now()
        file_id = file_id or new_file_id(now)
        aside = min(size, limit)
        try:
            async with self._writing(owner) as connection:
                await self._make_room(connection, owner, 1, aside, refused=refused)
                await rows.begin(connection, file_id, owner, aside, now, now + LEASE_MS)
        except asyncio.CancelledError:  # amid its commit the row may be there all the same
            await self._take_back(file_id)
            raise
        alive = asyncio.create_task(self._keep_alive(file_id, owner), name="arriving file")
        finished = False
        try:
            with self.told_to_callers():
                writer = await self._storage.write(file_id)
            try:
                row = FileRow(file_id, 0, now, "", "", None, owner)
                arriving = Arriving(self, writer, row, aside, limit, refused=refused)
                yield arriving
                finished = arriving.finished
            finally:
                with contextlib.suppress(StorageError):
                    await writer.close()
        finally:
            await end_tasks(alive)
            if not finished:
                await self._take_back(file_id)

    async def row(self, owner: Owner | None, file_id: str) -> FileRow:
        """A file of an owner; None: whoever's it is."""
        found = None
        if is_file_id(file_id):
            async with self._reading(owner) as connection:
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
        """An owner's files by time, at most so many; `after`: behind the one of this id, be it still there or not."""
        found: list[FileRow] = []
        async with self._reading(owner) as connection:
            now = self._now()
            while (most := min(limit - len(found), ROWS)) > 0:
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
        """Whether so many files and bytes more of an owner have room now; nothing is set aside. Raises ApiError (429, 507)."""
        async with self._reading(owner) as connection:
            await self._make_room(connection, owner, count, size, refused=True)

    async def delete(self, owner: Owner | None, file_id: str) -> None:
        """Delete a file of an owner (None: whoever's it is), also one that still arrives: from now on it is not there. Who reads
        it meanwhile may be cut off."""
        gone = False
        if is_file_id(file_id):
            now = self._now()
            async with self._writing(owner) as connection:
                gone = await rows.drop(connection, file_id, owner, now, now + REMOVE_AGAIN_MS)
        if not gone:
            raise not_found(file_id)
        await self._remove_soon(file_id)

    async def open(
        self, owner: Owner | None, file_id: str, start: int = 0, end: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The bytes of a file from `start` on, to before `end`, in pieces of 256 KiB at most, no faster than they are taken.
        Close it (`contextlib.aclosing`) where it is not read to its end."""
        row = await self.row(owner, file_id)
        async for piece in self.pieces(row, start, end):
            yield piece

    async def pieces(
        self, row: FileRow, start: int = 0, end: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The same of a file that was found. Raises ApiError(404) also where it was deleted meanwhile."""
        await self.identify()
        end = row.bytes if end is None else min(end, row.bytes)
        if start >= end:
            return
        with self.told_to_callers():
            try:
                async with contextlib.aclosing(self._storage.read(row.id, start, end)) as pieces:
                    async for piece in pieces:
                        yield piece
            except NotStored as error:
                await self.identify(0.0)  # where the storage has gone the file is not lost
                log.error("the bytes of a file are missing", file=row.id, why=str(error))
                raise not_found(row.id) from error

    # ---- for who sweeps ----------

    async def identify(self, holds_s: float = math.inf) -> None:
        """Return when the storage is the right one (`identity.py`), as was seen within the last `holds_s` seconds. Raises
        ApiError(503)."""
        asked = time.monotonic()
        if self._seen_since(asked - holds_s):
            return
        async with self._identifying:  # one looks, for all who came before it
            await self._identify(asked - holds_s)

    def _seen_since(self, at: float) -> bool:
        return self._identified is not None and self._identified >= at

    async def _identify(self, since: float) -> None:
        if self._seen_since(since):
            return
        began = time.monotonic()
        if self._trouble is not None and time.monotonic() - self._trouble[0] < LOOK_AGAIN_S:
            raise self._trouble[1]
        try:
            await identity.check(self._database, self._storage)
        except (WrongStorage, StorageError) as error:
            new = self._trouble is None
            if self._trouble is not None and self._trouble[1].facts["cause"] != str(error):
                new = began - self._told_at >= TELL_AGAIN_S  # (some servers never say the same twice)
            if new and self._settings().enabled:
                self._told_at = began
                log.warning("files are not served here", storage=str(self._storage), why=str(error))
            if self._settings().enabled:
                self._failed("failed")
            self._identified, self._trouble = None, (time.monotonic(), _unavailable(error))
            raise self._trouble[1] from error
        if self._trouble is not None and self._settings().enabled:
            log.info("files are served here again", storage=str(self._storage))
        self._identified, self._trouble = began, None

    async def close(self) -> None:
        """Let go of the storage."""
        if self._taking_back:
            await asyncio.wait(self._taking_back, timeout=CLOSE_S)
        await self._storage.close()

    async def take_due(self, most: int) -> Sequence[rows.Due]:
        """Take files whose time has come, or that arrive no more: they are not there, and are to be removed."""
        now = self._now()
        async with self._writing(None) as connection:
            return await rows.due(connection, now, now + REMOVE_AGAIN_MS, most)

    async def count_again(self) -> None:
        """Count all files, if nobody has done so lately."""
        now = self._now()
        async with self._writing(None) as connection:
            await rows.count_again(connection, now, now - COUNT_AGAIN_MS)

    async def held(self) -> tuple[int, int]:
        """Files of all owners, and their bytes."""
        async with self._reading(None) as connection:
            return await rows.held_by_all(connection)

    async def remove(self, file_id: str) -> None:
        """Remove the bytes of a file that is not there, then its row. Raises StorageError, ApiError."""
        await self.identify(
            HOLDS_S
        )  # nothing is found in a storage that has gone, and what is in it would stay
        try:
            await self._storage.remove(file_id)
        except StorageError:
            self._failed("failed")
            raise
        async with self._writing(None) as connection:
            await rows.remove(connection, file_id)

    async def _remove_soon(self, file_id: str) -> None:
        """The same for those who wait for it: a storage that does not answer holds them up no longer than REMOVE_S."""
        with contextlib.suppress(StorageError, DatabaseUnavailable, ApiError, TimeoutError):
            async with asyncio.timeout(REMOVE_S):
                await self.remove(file_id)

    # ---- for what arrives ----------

    @contextlib.contextmanager
    def told_to_callers(self) -> Iterator[None]:
        """How a storage fails, as callers are told it. Batches ask again and again, so the log has a line a minute of each."""
        try:
            yield
        except StorageFull as error:
            self._why = str(error)
            self._full.add(1)
            self._failed("full")
            raise storage_full() from error
        except StorageError as error:
            self._why = str(error)
            self._failing.add(1)
            self._failed("failed")
            raise _unavailable(error) from error

    async def _make_room(
        self, connection: AsyncConnection, owner: Owner, count: int, size: int, *, refused: bool
    ) -> None:
        if refused:
            said = self._settings()
            most = Most(said.max_files_per_caller, said.max_bytes_per_caller, said.max_files, said.max_bytes)
            check_room(Held(*await rows.held(connection, owner)), most, files=count, size=size)

    async def set_aside(self, row: FileRow, size: int, more: int, *, refused: bool) -> None:
        """Set more aside for a file that arrives: `size` in all. Raises ApiError."""
        async with self._writing(row.owner) as connection:
            await self._make_room(connection, row.owner, 0, more, refused=refused)
            if not await rows.set_aside(connection, row.id, size):
                raise _lost()

    async def finish(self, row: FileRow) -> None:
        """All of a file is stored: it is there from now on. Raises ApiError."""
        async with self._writing(row.owner) as connection:
            if not await rows.finish(connection, row):
                raise _lost()

    def expiry(self, created: int, expires_s: int | None) -> int | None:
        """When a file expires that was created then, ms; None: not by itself."""
        ttl_ms = self._settings().ttl_ms
        ends = [ms for ms in (ttl_ms, None if expires_s is None else expires_s * 1000) if ms is not None]
        return created + min(ends) if ends else None

    async def _keep_alive(self, file_id: str, owner: Owner) -> None:
        """Say again and again that a file still arrives, as long as it does."""
        while True:
            await asyncio.sleep(LEASE_MS / 5000)
            with contextlib.suppress(DatabaseUnavailable, ApiError):
                async with self._writing(owner) as connection:
                    if not await rows.renew(connection, file_id, self._now() + LEASE_MS):
                        return

    async def _take_back(self, file_id: str) -> None:
        """Nothing is to be left of a file that did not come to its end. What cannot be done now is done by who sweeps. Also when
        the call is being cancelled it is tried, and does not take long."""

        async def take_back() -> None:
            with contextlib.suppress(DatabaseUnavailable, ApiError):
                async with self._writing(None) as connection:
                    left = await rows.give_up(connection, file_id, self._now() + REMOVE_AGAIN_MS)
                if left:
                    await self._remove_soon(file_id)

        task = asyncio.create_task(take_back(), name="take back a file")
        self._taking_back.add(task)
        task.add_done_callback(self._taking_back.discard)
        await asyncio.shield(task)

    @contextlib.asynccontextmanager
    async def _reading(self, who: object) -> AsyncIterator[AsyncConnection]:
        async with self._turn(self._reads, who), self._database.reading(REPORT_S) as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def _writing(self, who: object) -> AsyncIterator[AsyncConnection]:
        async with self._turn(self._writes, who), self._database.writing(REPORT_S) as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def _turn(self, turns: Turns, who: object) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(WAIT_S):
                await turns.acquire(who)
        except TimeoutError:
            raise ApiError(503, "BUSY", "Too many calls about files at once", retry_after_ms=1000) from None
        try:
            yield
        finally:
            turns.release()


class Arriving:
    """A file that arrives. Whoever has it writes it in order, and finishes it."""

    def __init__(
        self, files: Files, writer: Writer, row: FileRow, aside: int, most: int, *, refused: bool
    ) -> None:
        self._files = files
        self._writer = writer
        self._row = row
        self._aside = aside
        self._most = most
        self._refused = refused
        self._size = self._waiting = 0
        self._pieces: list[bytes] = []
        self.finished = False
        """It is there."""

    async def write(self, data: bytes) -> None:
        """More of it, of any size. Raises ApiError: 413, 429, 507, 503."""
        self._size += len(data)
        if self._size > self._most:
            raise file_too_large(self._most)
        if self._size > self._aside:
            await self._set_aside()
        self._pieces.append(data)
        self._waiting += len(data)
        if self._waiting >= BLOCK:
            await self._store()

    async def finish(self, name: str, purpose: str, expires_s: int | None = None) -> FileRow:
        """All of it has come. Raises as `write`."""
        await self._store()
        with self._files.told_to_callers():
            await self._writer.finish()
        row = self._row._replace(
            bytes=self._size,
            name=plain_name(name),
            purpose=purpose,
            expires=self._files.expiry(self._row.created, expires_s),
        )
        await self._files.finish(row)
        self.finished = True
        return row

    async def _set_aside(self) -> None:
        """As much again, or where there is no room for that, what has come."""
        for aside in (min(max(self._size, 2 * self._aside, SET_ASIDE), self._most), self._size):
            try:
                await self._files.set_aside(self._row, aside, aside - self._aside, refused=self._refused)
            except ApiError as error:
                if error.status not in (429, 507) or aside == self._size:
                    raise
            else:
                self._aside = aside
                return

    async def _store(self) -> None:
        pieces, self._pieces, self._waiting = self._pieces, [], 0
        if pieces:
            with self._files.told_to_callers():
                await self._writer.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))


def not_found(file_id: str) -> ApiError:
    """The same answer for a file of somebody else, an expired one and one that never was."""
    return ApiError(404, "FILE_NOT_FOUND", f"No such file: {file_id[:100]}", param="file_id")


def file_too_large(most: int) -> ApiError:
    return ApiError(413, "FILE_TOO_LARGE", f"The file is larger than the limit of {most} bytes", param="file")


def _lost() -> ApiError:
    return ApiError(
        503,
        "FILE_LOST",
        "The file took too long to be stored, and was given up: send it again",
        retry_after_ms=1000,
    )


def _unavailable(error: Exception) -> ApiError:
    away = ApiError(503, "STORAGE_UNAVAILABLE", "The storage of files is unavailable", retry_after_ms=1000)
    away.facts = {"cause": str(error)}
    return away
