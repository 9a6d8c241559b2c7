"""The storages: a directory, and a bucket of a real S3-compatible server. Both keep the same promises."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.buckets import Buckets
from tests.support.talk import Talk

from fairlane.gateway.files.disk import Disk
from fairlane.gateway.files.s3 import PART, S3
from fairlane.gateway.files.settings import Bucket, FilesSettings, parse_storage
from fairlane.gateway.files.storage import MARK, PIECE, NotStored, Storage, StorageError, StorageFull

from .test_bad_uploads import nothing_left
from .uploads import FILE, MIB, PURPOSE, form, send, upload

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
Make = Callable[..., AbstractAsyncContextManager[Talk]]
NAME, OTHER = (f"file-{digit * 32}" for digit in "ab")


async def written(storage: Storage, name: str, *blocks: bytes) -> None:
    writer = await storage.write(name)
    for block in blocks:
        await writer.write(block)
    await writer.finish()
    writer.close()


async def content(storage: Storage, name: str, start: int, end: int) -> list[bytes]:
    return [piece async for piece in storage.read(name, start, end)]


async def keeps_its_promises(storage: Storage) -> None:
    """Whatever the storage is."""
    data = os.urandom(2 * PART + 12345)
    await written(storage, NAME, data[:100], data[100:MIB], data[MIB:])
    pieces = await content(storage, NAME, 0, len(data))
    assert b"".join(pieces) == data
    assert max(map(len, pieces)) <= PIECE
    assert b"".join(await content(storage, NAME, 99, 2 * MIB + 1)) == data[99 : 2 * MIB + 1]
    with pytest.raises(StorageError):
        await content(storage, NAME, 0, len(data) + 1)
    await written(storage, OTHER)
    await written(storage, NAME, b"another one")
    assert await content(storage, NAME, 0, 11) == [b"another one"]
    half = await storage.write(OTHER)
    await half.write(b"a half")
    half.close()
    for name in (NAME, OTHER):
        await storage.remove(name)
        await storage.remove(name)
        with pytest.raises(NotStored):
            await content(storage, name, 0, 1)


async def test_a_directory(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "of" / "files")
    await written(disk, MARK, b"it")
    await keeps_its_promises(disk)
    await written(disk, NAME, b"x")
    modes = sorted(oct(path.stat().st_mode)[-3:] for path in (tmp_path / "of").rglob("*"))
    assert modes == ["600", "600", "700", "700", "700"]


async def test_a_full_disk_and_a_directory_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path / "files")
    await written(disk, MARK, b"it")
    writer = await disk.write(NAME)

    def full(number: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(StorageFull):
            await writer.write(b"x")
    writer.close()
    with monkeypatch.context() as patched:
        patched.setattr("fairlane.gateway.files.disk.KEEP_FREE", 1 << 60)
        writer = await disk.write(OTHER)
        with pytest.raises(StorageFull, match="would stay free"):
            await writer.write(b"x")
        writer.close()
    (tmp_path / "a-file").touch()
    with pytest.raises(StorageError):
        await Disk(tmp_path / "a-file").write(NAME)


async def test_a_bucket(buckets: Buckets, tmp_path: Path) -> None:
    place = parse_storage(buckets.storage("promises/"), tmp_path)
    assert isinstance(place, Bucket)
    bucket = S3(place)
    await keeps_its_promises(bucket)
    assert buckets.names("promises") == []


async def test_a_bucket_that_is_not_there_and_keys_that_are_wrong(
    buckets: Buckets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = Bucket("tests", "", "http://127.0.0.1:9", "us-east-1", path_style=True)
    monkeypatch.setattr("fairlane.gateway.files.s3.RETRIES", 0)
    with pytest.raises(StorageError):
        await written(S3(nowhere), NAME, b"x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another secret")
    place = parse_storage(buckets.storage("wrong"), tmp_path)
    assert isinstance(place, Bucket)
    with pytest.raises(StorageError) as refused:
        await written(S3(place), NAME, b"x")
    assert "another secret" not in str(refused.value)
    assert buckets.names("wrong") == []


async def test_a_gateway_with_a_bucket(buckets: Buckets, gateway: Make, tmp_path: Path) -> None:
    data = os.urandom(6 * MIB)
    async with gateway(files=FilesSettings(storage=buckets.storage("gateway"))) as talk:
        told = await upload(talk.http, data)
        assert buckets.names("gateway") == ["fairlane-storage", told["id"]]
        url = f"/v1/files/{told['id']}"
        assert (await talk.http.get(f"{url}/content")).content == data
        part_of_it = await talk.http.get(f"{url}/content", headers={"range": "bytes=100-4000000"})
        assert part_of_it.content == data[100:4000001]
        bad = await send(talk.http, form(FILE))
        assert bad.status_code == 400
        assert buckets.names("gateway") == ["fairlane-storage", told["id"]]
        await talk.http.delete(url)
        await nothing_left(talk.served, tmp_path)
        assert buckets.names("gateway") == ["fairlane-storage"]


async def test_replicas_share_a_storage_or_say_that_they_do_not(gateway: Make, tmp_path: Path) -> None:
    shared: dict[str, Any] = {"database_url": f"sqlite:///{tmp_path}/shared.db"}
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    async with gateway(**shared, files=FilesSettings(storage=str(here))) as one:
        told = await upload(one.http, b"shared")
        async with gateway(**shared, files=FilesSettings(storage=str(here))) as two:
            answer = await two.http.get(f"/v1/files/{told['id']}/content")
            assert answer.content == b"shared"
        for place in (elsewhere, here / "ab"):
            async with gateway(**shared, files=FilesSettings(storage=str(place))) as other:
                for answer in (
                    await other.http.get(f"/v1/files/{told['id']}/content"),
                    await send(other.http, form(FILE, PURPOSE)),
                ):
                    assert answer.status_code == 503
                    assert answer.json()["error"]["code"] == "STORAGE_UNAVAILABLE"
                    assert int(answer.headers["retry-after"]) >= 1
            assert not list(place.glob("*/*"))
        # moved with its mark, it is the same storage
        here.rename(tmp_path / "moved")
        async with gateway(**shared, files=FilesSettings(storage=str(tmp_path / "moved"))) as moved:
            assert (await moved.http.get(f"/v1/files/{told['id']}/content")).content == b"shared"


async def test_a_file_whose_bytes_are_gone_is_not_there(here: Talk, tmp_path: Path) -> None:
    told = await upload(here.http)
    next((tmp_path / "files").glob("*/*")).unlink()
    answer = await here.http.get(f"/v1/files/{told['id']}/content")
    assert answer.status_code == 404
    cut = await upload(here.http, b"x" * 1000)
    path = next((tmp_path / "files").glob("*/*"))
    path.write_bytes(b"x" * 10)
    with contextlib.suppress(httpx2.RemoteProtocolError):
        answer = await here.http.get(f"/v1/files/{cut['id']}/content")
        assert answer.status_code == 503


async def test_who_reads_goes_on_while_it_is_deleted(here: Talk) -> None:
    told = await upload(here.http, b"y" * (8 * MIB))
    async with here.http.stream("GET", f"/v1/files/{told['id']}/content") as stream:
        pieces = stream.aiter_raw(MIB)
        size = len(await anext(pieces))
        assert (await here.http.delete(f"/v1/files/{told['id']}")).status_code == 200
        async for piece in pieces:
            size += len(piece)
    assert size == 8 * MIB
    await asyncio.sleep(0)
