"""/v1/files over HTTP: what is brought is told, listed, read and deleted, each by its caller alone."""

import errno
import os
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import select
from structlog.testing import capture_logs
from tests.support.signing import derived
from tests.support.talk import Talk

from fairlane.gateway.accounts.callers import digest
from fairlane.gateway.database.tables import files as table
from fairlane.gateway.files import files as files_module
from fairlane.gateway.files import routes as api_files
from fairlane.gateway.files.files import Files
from fairlane.gateway.files.settings import FilesSettings
from fairlane.gateway.files.storage import PIECE
from fairlane.gateway.settings import CallerKey

from .uploads import FILE, PURPOSE, form, part, send, upload

pytestmark = pytest.mark.anyio
Make = Callable[..., AbstractAsyncContextManager[Talk]]
SIGNS = derived("secret").hex()


def stored(folder: Path) -> list[str]:
    """What the storage of a gateway with this data directory holds, but for its mark."""
    return sorted(path.name for path in (folder / "files").glob("*/*"))


async def test_a_file_is_brought_told_read_and_deleted(here: Talk, tmp_path: Path) -> None:
    before = int(time.time())
    told = await upload(here.http, b"hello \xff\x00\r\n--", 'wörds of "mine".jsonl')
    assert told == {
        "id": told["id"],
        "object": "file",
        "bytes": 12,
        "created_at": told["created_at"],
        "expires_at": told["created_at"] + 30 * 24 * 3600,
        "filename": 'wörds of "mine".jsonl',
        "purpose": "user_data",
        "status": "processed",
        "status_details": None,
    }
    assert before <= told["created_at"] <= time.time()
    assert stored(tmp_path) == [told["id"]]
    again = await here.http.get(f"/v1/files/{told['id']}")
    assert again.json() == told
    content = await here.http.get(f"/v1/files/{told['id']}/content")
    assert content.content == b"hello \xff\x00\r\n--"
    assert content.headers["content-type"] == "application/octet-stream"
    assert content.headers["content-disposition"].startswith("attachment; filename=")
    assert content.headers["x-content-type-options"] == "nosniff"
    deleted = await here.http.delete(f"/v1/files/{told['id']}")
    assert deleted.json() == {"id": told["id"], "object": "file", "deleted": True}
    assert stored(tmp_path) == []
    for answer in (
        await here.http.get(f"/v1/files/{told['id']}"),
        await here.http.get(f"/v1/files/{told['id']}/content"),
        await here.http.delete(f"/v1/files/{told['id']}"),
        await here.http.get("/v1/files/of-nobody"),
    ):
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "FILE_NOT_FOUND"


async def test_fields_may_stand_behind_the_file_and_an_empty_file_is_one(here: Talk) -> None:
    answer = await send(here.http, form(part("file", b"", "empty"), PURPOSE))
    assert answer.status_code == 200, answer.text
    assert answer.json()["bytes"] == 0
    content = await here.http.get(f"/v1/files/{answer.json()['id']}/content")
    assert (content.status_code, content.content) == (200, b"")


async def test_a_part_of_a_file(here: Talk) -> None:
    told = await upload(here.http, bytes(range(256)) * 4096)
    url = f"/v1/files/{told['id']}/content"
    whole = bytes(range(256)) * 4096
    for asked, start, end in (("5-9", 5, 10), ("1048570-", 1048570, 1 << 20), ("-3", (1 << 20) - 3, 1 << 20)):
        answer = await here.http.get(url, headers={"range": f"bytes={asked}"})
        assert answer.status_code == 206
        assert answer.content == whole[start:end]
        assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/{1 << 20}"
    beyond = await here.http.get(url, headers={"range": "bytes=1048576-"})
    assert beyond.status_code == 416
    assert beyond.headers["content-range"] == "bytes */1048576"
    assert (await here.http.get(url, headers={"range": "lines=1-2"})).content == whole


async def test_a_file_that_is_cut_off_by_its_storage_leaves_no_traceback(
    here: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = await upload(here.http, b"x" * (PIECE + 1))
    read = os.pread

    def fails(file: int, size: int, at: int) -> bytes:
        if at:
            raise OSError(errno.EIO, "Input/output error")
        return read(file, size, at)

    monkeypatch.setattr(os, "pread", fails)
    with capture_logs() as lines, pytest.raises(httpx2.RemoteProtocolError):
        await here.http.get(f"/v1/files/{told['id']}/content")
    assert [line["event"] for line in lines if line["log_level"] != "info"] == ["the storage of files fails"]


async def test_files_are_listed_in_pages_by_time(here: Talk) -> None:
    files = [await upload(here.http, name=f"{number}") for number in range(5)]
    files[1] = await upload(here.http, name="batch", fields={"purpose": "batch"})
    ids = sorted((file["id"] for file in [*files]), reverse=True)
    everything = (await here.http.get("/v1/files")).json()
    assert everything["object"] == "list"
    assert len(everything["data"]) == 6
    assert everything["has_more"] is False
    order = [file["id"] for file in everything["data"]]
    assert order == sorted(order, reverse=True)
    assert (await here.http.get("/v1/files?purpose=batch")).json()["data"] == [files[1]]
    with pytest.MonkeyPatch.context() as few:  # it is read, and told, in parts
        few.setattr(files_module, "PAGE", 4)
        few.setattr(api_files, "MAX_LISTED", 2)
        assert (await here.http.get("/v1/files")).json() == everything
        ids_of_five = [file["id"] for file in (await here.http.get("/v1/files?limit=5")).json()["data"]]
        assert ids_of_five == order[:5]
    found: list[str] = []
    after = ""
    while True:
        page = (await here.http.get(f"/v1/files?limit=4&order=asc{after}")).json()
        found += [file["id"] for file in page["data"]]
        if not page["has_more"]:
            break
        await here.http.delete(f"/v1/files/{page['last_id']}")  # the place is found all the same
        after = f"&after={page['last_id']}"
    assert found == order[::-1]
    assert set(ids) <= set(found)
    for wrong in (
        "limit=0",
        "limit=10001",
        "limit=x",
        "order=up",
        "after=file-1",
        "unknown=1",
        "purpose=%00",
    ):
        answer = await here.http.get(f"/v1/files?{wrong}")
        assert answer.status_code == 400, wrong


async def test_callers_see_their_own_files_and_admins_all(gateway: Make) -> None:
    keys = [
        CallerKey(id="a", sha256=digest("key-a"), delegating=True),
        CallerKey(id="b", sha256=digest("key-b")),
        CallerKey(id="ops", sha256=digest("key-ops"), scopes=["admin"]),
    ]
    async with gateway(keys=keys) as talk:
        a, b, ops = (talk.client(f"key-{name}") for name in ("a", "b", "ops"))
        ann = talk.client("key-a", **{"x-fairlane-user": "ann"})
        async with a, b, ops, ann:
            assert (await talk.http.get("/v1/files")).status_code == 401
            of_a, of_ann = await upload(a), await upload(ann)
            for other in (b, ann):
                url = f"/v1/files/{of_a['id']}"
                for answer in (
                    await other.get(url),
                    await other.get(f"{url}/content"),
                    await other.delete(url),
                ):
                    assert answer.status_code == 404
            assert [file["id"] for file in (await ann.get("/v1/files")).json()["data"]] == [of_ann["id"]]
            assert (await b.get("/v1/files")).json()["data"] == []
            assert (await ops.get(f"/v1/files/{of_a['id']}/content")).content == b"hello"
            assert (await ops.delete(f"/v1/files/{of_a['id']}")).status_code == 200
            assert (await ops.get("/v1/files")).json()["data"] == []


async def test_a_file_expires_as_its_caller_asks_and_no_later_than_the_settings_say(gateway: Make) -> None:
    async with gateway(files=FilesSettings(ttl_ms=7_200_000)) as talk:
        for seconds, expected in ((3600, 3600), (2_592_000, 7200)):
            fields = {"expires_after[anchor]": "created_at", "expires_after[seconds]": str(seconds)}
            told = await upload(talk.http, fields=fields)
            assert told["expires_at"] == told["created_at"] + expected
        assert (await upload(talk.http))["expires_at"] is not None
    async with gateway(files=FilesSettings(ttl_ms=None)) as talk:
        assert (await upload(talk.http))["expires_at"] is None


async def test_a_gateway_may_take_no_files(gateway: Make) -> None:
    async with gateway(files=FilesSettings(max_bytes=0)) as talk:
        batch = {"input_file_id": "file-1", "endpoint": "/v1/embeddings", "completion_window": "24h"}
        for answer in (
            await send(talk.http, form(FILE, PURPOSE)),
            await talk.http.post("/v1/batches", json=batch),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "FILES_OFF")


async def test_an_open_gateway_takes_no_forms_from_web_pages(here: Talk) -> None:
    body = form(FILE, PURPOSE)
    assert (await send(here.http, body)).status_code == 200
    assert (await send(here.http, body, origin=here.served.url)).status_code == 200
    assert (await send(here.http, body, origin="https://evil.example")).status_code == 403
    assert (await send(here.http, body, **{"sec-fetch-site": "cross-site"})).status_code == 403


async def test_a_forgotten_users_files_go(gateway: Make, tmp_path: Path, database_url: str) -> None:
    keys = [
        CallerKey(id="a", sha256=digest("key-a"), delegating=True),
        CallerKey(id="ops", sha256=digest("key-ops"), scopes=["admin"]),
    ]
    async with gateway(keys=keys, database_url=database_url) as talk:
        headers = {"x-fairlane-user": "zebra"}
        async with (
            talk.client("key-ops") as ops,
            talk.client("key-a", **headers) as zebra,
            talk.client("key-a") as a,
        ):
            files = [await upload(zebra, name=f"zebra-{number}.txt") for number in range(2)]
            kept = await upload(a)
            told = await ops.delete("/api/admin/users/a/zebra")
            assert (told.json()["files"], told.json()["more"]) == (2, False)
            for file in files:
                assert (await zebra.get(f"/v1/files/{file['id']}")).status_code == 404
                assert (await ops.get(f"/v1/files/{file['id']}/content")).status_code == 404
            async with talk.served.gateway.database.reading() as connection:
                assert "zebra" not in repr((await connection.execute(select(table))).all())
            await talk.served.gateway.part(Files).sweep()
            assert stored(tmp_path) == [kept["id"]]
            again = await ops.delete("/api/admin/users/a/zebra")
            assert again.json()["files"] == 0
            assert (await upload(zebra))["bytes"] == 5  # what comes later is new


async def test_limits_are_taken_over_while_running_and_the_storage_at_the_next_start(
    gateway: Make, tmp_path: Path
) -> None:
    async with gateway() as talk:
        assert (await send(talk.http, form(FILE, PURPOSE))).status_code == 200
        current = talk.served.gateway.current
        new = FilesSettings(max_bytes=4, storage=str(tmp_path / "elsewhere"))
        changed = current.settings.model_copy(update={"files": new})
        assert current.replace(changed)["needs_restart"] == ["files.storage"]
        assert current.settings.files == FilesSettings(max_bytes=4)
        assert (await send(talk.http, form(FILE, PURPOSE))).status_code == 507
        assert not (tmp_path / "elsewhere").exists()
