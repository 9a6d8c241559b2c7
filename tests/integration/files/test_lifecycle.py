"""The lives of files, on each kind of database: whole or not there, in whatever moment something stops; and room for all."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection
from tests.support.serving import until

from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.database.tables import files as table
from fairlane.gateway.errors import ApiError
from fairlane.gateway.files import rows
from fairlane.gateway.files.disk import Disk, DiskWriter
from fairlane.gateway.files.files import ARRIVING_MS, RETRY_REMOVE_MS, Files
from fairlane.gateway.files.settings import FilesSettings
from fairlane.gateway.files.storage import MARK, StorageError, StorageFull

pytestmark = pytest.mark.anyio
ANN, BOB = Owner("key", "key/ann"), Owner("key", "key/bob")
KIB = 1024


async def of(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


class Keeping:
    """Files whose clock is moved by hand."""

    def __init__(self, database: Database, folder: Path, **settings: Any) -> None:
        self.database = database
        self.folder = folder
        self.now = 1_800_000_000_000
        self.disk = Disk(folder)
        self.settings = FilesSettings(**settings)
        self.files = self.another()
        self.sweep = self.files.sweep

    def another(self) -> Files:
        """Those of another replica."""
        return Files(self.database, self.disk, lambda: self.settings, lambda: self.now)

    async def rows(self) -> dict[str, str]:
        async with self.database.reading() as connection:
            found = await connection.execute(select(table.c.id, table.c.state))
            return {row.id: row.state for row in found}

    def stored(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("*/*"))

    async def content(self, owner: Owner | None, file_id: str, start: int = 0) -> bytes:
        row = await self.files.row(owner, file_id)
        return b"".join([piece async for piece in self.files.pieces(row, start)])


@pytest.fixture
async def keeping(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keeping:
    # on a busy machine a disk may take long, and what then cannot be done at once is left to who sweeps
    monkeypatch.setattr("fairlane.gateway.files.files.REPORT_S", 60.0)
    return Keeping(database, tmp_path / "storage")


async def test_a_mark_that_was_never_whole_is_made_anew(keeping: Keeping) -> None:
    keeping.folder.mkdir(mode=0o700)
    (keeping.folder / MARK).write_bytes(b"half a ma")  # whoever made it died
    made = await keeping.files.create(ANN, "x", "batch", of(b"x"))
    assert await keeping.content(ANN, made.id) == b"x"
    assert await keeping.another().create(ANN, "y", "batch", of(b"y")), "it is the same one for all"


async def test_a_file_of_a_given_id_that_arrives_can_be_ended_by_its_owner(keeping: Keeping) -> None:
    file_id = "file-" + "0" * 32

    async def is_ended() -> None:
        async with keeping.files.arriving(ANN, file_id=file_id) as arriving:
            await arriving.write(b"x")
            await keeping.another().delete(ANN, file_id)
            await arriving.finish("x", "batch_output")

    with pytest.raises(ApiError) as lost:
        await is_ended()
    assert lost.value.code == "FILE_LOST"
    assert (await keeping.rows(), keeping.stored()) == ({}, [])
    made = await keeping.files.create(ANN, "out", "batch_output", of(b"y"), file_id=file_id)
    assert made.id == file_id
    assert await keeping.content(ANN, file_id) == b"y"


class Stopped(Exception):
    """What stops a writer."""


async def test_whatever_stops_a_writer_leaves_nothing(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def breaks() -> AsyncIterator[bytes]:
        yield b"x" * 700 * KIB
        raise Stopped

    with pytest.raises(Stopped):
        await keeping.files.create(ANN, "x", "batch", breaks())
    assert (await keeping.rows(), keeping.stored()) == ({}, [])

    async def waits() -> AsyncIterator[bytes]:
        yield b"x" * 700 * KIB
        await asyncio.Event().wait()

    task = asyncio.create_task(keeping.files.create(ANN, "x", "batch", waits()))
    await until(lambda: len(keeping.stored()) == 1, "the file to arrive")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await keeping.rows(), keeping.stored()) == ({}, [])

    with pytest.raises(ApiError) as large:
        await keeping.files.create(ANN, "x", "batch", of(b"x" * KIB, b"x"), most=KIB)
    assert (large.value.status, large.value.code) == (413, "FILE_TOO_LARGE")

    for failure, status, code in (
        (StorageFull("full"), 507, "STORAGE_FULL"),
        (StorageError("away"), 503, "STORAGE_UNAVAILABLE"),
    ):
        for moment in ("write", "finish"):

            async def fails(*_: Any, failure: StorageError = failure) -> None:
                raise failure

            with monkeypatch.context() as patched:
                patched.setattr(DiskWriter, moment, fails)
                with pytest.raises(ApiError) as refused:
                    await keeping.files.create(ANN, "x", "batch", of(b"x"))
            assert (refused.value.status, refused.value.code) == (status, code)
    assert (await keeping.rows(), keeping.stored()) == ({}, [])


async def test_a_writer_that_died_is_swept_when_its_lease_is_over(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: Any) -> None:
        """As if the process had died."""

    monkeypatch.setattr(rows, "give_up", nothing)
    monkeypatch.setattr(Files, "_remove_soon", nothing)

    async def dies() -> None:
        async with keeping.files.arriving(ANN) as arriving:
            await arriving.write(b"x" * 700 * KIB)
            raise Stopped

    with pytest.raises(Stopped):
        await dies()
    whole = await keeping.files.create(ANN, "y", "batch", of(b"y"))
    keeping.now += ARRIVING_MS - 1
    assert not await keeping.sweep()
    assert len(await keeping.rows()) == len(keeping.stored()) == 2
    keeping.now += 1
    assert not await keeping.sweep()
    assert await keeping.rows() == {whole.id: "ready"}
    assert keeping.stored() == [whole.id]


async def test_of_a_call_that_is_cancelled_amid_the_commit_of_its_row_nothing_is_left(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keeping.files.identify()
    writing = keeping.database.writing

    @contextlib.asynccontextmanager
    async def cancelled_behind_the_commit(*said: Any) -> AsyncIterator[AsyncConnection]:
        async with writing(*said) as connection:
            yield connection
        monkeypatch.setattr(keeping.database, "writing", writing)
        raise asyncio.CancelledError

    monkeypatch.setattr(keeping.database, "writing", cancelled_behind_the_commit)
    with pytest.raises(asyncio.CancelledError):
        await keeping.files.create(ANN, "x", "batch", of(b"x"))
    assert (await keeping.rows(), keeping.stored()) == ({}, [])


async def test_files_expire_and_go(keeping: Keeping) -> None:
    short = await keeping.files.create(ANN, "x", "batch", of(b"x"), expires_s=3600)
    long = await keeping.files.create(ANN, "y", "batch", of(b"y"))
    assert long.expires == keeping.now + 30 * 24 * 3_600_000
    keeping.now += 3_600_000
    with pytest.raises(ApiError):
        await keeping.files.row(ANN, short.id)
    assert await keeping.files.list(ANN) == [long]
    await keeping.sweep()
    assert await keeping.rows() == {long.id: "ready"}
    assert keeping.stored() == [long.id]


async def test_what_cannot_be_removed_is_tried_again_and_holds_nothing_up(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = await keeping.files.create(ANN, "x", "batch", of(b"x"))
    remove = Disk.remove

    async def fails(disk: Disk, name: str) -> None:
        if name == stuck.id:
            raise StorageError("away")
        await remove(disk, name)

    with monkeypatch.context() as patched:
        patched.setattr(Disk, "remove", fails)
        await keeping.files.delete(ANN, stuck.id)  # it is not there any more, whatever the storage says
        with pytest.raises(ApiError):
            await keeping.files.row(ANN, stuck.id)
        other = await keeping.files.create(ANN, "x", "batch", of(b"x"), expires_s=1)
        keeping.now += RETRY_REMOVE_MS
        await keeping.sweep()
        assert await keeping.rows() == {stuck.id: "deleted"}
        assert other.id not in keeping.stored()
    keeping.now += RETRY_REMOVE_MS
    await keeping.sweep()
    assert (await keeping.rows(), keeping.stored()) == ({}, [])


async def test_a_caller_has_a_maximum_number_of_files(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlane.gateway.files.files.MAX_FILES_PER_CALLER", 2)
    keeping = Keeping(database, tmp_path / "s")
    first = await keeping.files.create(ANN, "x", "batch", of(b"x" * 60))
    async with keeping.files.arriving(ANN, size=40) as arriving:
        with pytest.raises(ApiError, match="may have 2") as refused:
            await keeping.files.create(ANN, "y", "batch", of())
        assert (refused.value.status, refused.value.code) == (429, "TOO_MANY_FILES")
        await arriving.write(b"x" * 40)
        await arriving.finish("x", "batch")
    await keeping.files.create(BOB, "x", "batch", of())
    made = await keeping.files.create(ANN, "out", "batch_output", of(b"x" * 1000))  # it has been paid for
    assert made.bytes == 1000
    await keeping.files.delete(ANN, made.id)
    await keeping.files.delete(ANN, first.id)
    await keeping.files.create(ANN, "y", "batch", of())


async def test_nobody_fills_the_storage_for_others(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlane.gateway.files.files.MAX_FILES", 16)
    keeping = Keeping(database, tmp_path / "s", max_bytes=1000)

    async def takes(owner: Owner, size: int) -> bool:
        try:
            async with keeping.files.arriving(owner, size=size) as arriving:
                await arriving.write(b"x" * size)
                await arriving.finish("x", "batch")
        except ApiError as error:
            if (error.status, error.code) != (507, "STORAGE_FULL"):
                raise
            return False
        return True

    assert not await takes(ANN, 501)
    assert await takes(ANN, 500)
    assert not await takes(ANN, 1)
    assert not await takes(BOB, 251)
    assert await takes(BOB, 250)
    users = [Owner("key", f"key/{number}") for number in range(3)]
    assert [await takes(owner, 0) for owner in users] == [True] * 3
    keeping.settings = FilesSettings(max_bytes=1 << 30)
    taken = 0
    while await takes(ANN, 0):
        taken += 1
    assert 1 + taken == (16 - 4) // 2
    assert await takes(BOB, 0)


async def test_two_at_once_do_not_share_the_same_room(database: Database, tmp_path: Path) -> None:
    keeping = Keeping(database, tmp_path / "s", max_bytes=2000)
    replicas = [keeping.files, keeping.another()]

    async def one(number: int) -> bool:
        try:
            async with replicas[number % 2].arriving(ANN, size=300) as arriving:
                await asyncio.sleep(0.05)
                await arriving.write(b"x" * 300)
                await arriving.finish("x", "batch")
        except ApiError:
            return False
        return True

    assert sum(await asyncio.gather(*map(one, range(10)))) == 3


async def test_the_database_goes_away_while_a_file_arrives(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> Any:
        raise DatabaseUnavailable("away")

    async def loses_it(patched: pytest.MonkeyPatch) -> None:
        async with keeping.files.arriving(ANN) as arriving:
            await arriving.write(b"x" * 700 * KIB)
            patched.setattr(Database, "writing", away)
            await arriving.finish("x", "batch")

    with monkeypatch.context() as patched, pytest.raises(DatabaseUnavailable):
        await loses_it(patched)
    assert len(await keeping.rows()) == len(keeping.stored()) == 1
    keeping.now += ARRIVING_MS
    await keeping.sweep()
    assert (await keeping.rows(), keeping.stored()) == ({}, [])
