"""What is no upload, or no whole one, is told so and leaves nothing behind: no row, no byte."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select
from tests.support.rawhttp import Caller
from tests.support.serving import Served, until
from tests.support.talk import Talk

from fairlane.gateway.database.tables import files
from fairlane.gateway.http import request as calls_http

from .test_file_calls import stored
from .uploads import BOUNDARY, END, FILE, MIB, PURPOSE, TYPE, form, part, send

pytestmark = pytest.mark.anyio
Make = Callable[..., AbstractAsyncContextManager[Talk]]


async def left(served: Served, folder: Path) -> tuple[int, int]:
    """Rows, and stored files."""
    async with served.gateway.database.reading() as connection:
        rows = await connection.scalar(select(func.count()).select_from(files))
    return int(rows or 0), len(stored(folder))


async def nothing_left(served: Served, folder: Path) -> None:
    async def nothing() -> bool:
        return await left(served, folder) == (0, 0)

    await until(nothing, "nothing to be left")


BAD: dict[str, tuple[bytes, int, str, str | None]] = {
    "no part": (END, 400, "no file", "file"),
    "nothing at all": (b"", 400, "cut off", None),
    "no file": (form(PURPOSE), 400, "no file", "file"),
    "two files": (form(FILE, FILE, PURPOSE), 400, "two files", "file"),
    "a file without a name": (form(part("file", b"x"), PURPOSE), 400, "filename", "file"),
    "no purpose": (form(FILE), 400, "purpose is needed", "purpose"),
    "another purpose": (
        form(FILE, part("purpose", b"batch_output")),
        400,
        "purpose must be one of",
        "purpose",
    ),
    "a purpose that is no text": (form(FILE, part("purpose", b"\xff")), 400, "not valid UTF-8", "purpose"),
    "two purposes": (form(PURPOSE, PURPOSE, FILE), 400, "given twice", "purpose"),
    "another field": (form(part("user", b"me"), FILE, PURPOSE), 400, "no field 'user'", "user"),
    "another file": (form(FILE, part("purpose", b"batch", "p.txt")), 400, "must not be a file", "purpose"),
    "a long field": (form(FILE, part("purpose", b"b" * 300)), 413, "larger than the limit of 200", "purpose"),
    "half an expiry": (
        form(FILE, PURPOSE, part("expires_after[seconds]", b"3600")),
        400,
        "both anchor and seconds",
        "expires_after",
    ),
    "a short expiry": (
        form(FILE, PURPOSE, part("expires_after[seconds]", b"3599")),
        400,
        "from 3600 to 2592000",
        "expires_after[seconds]",
    ),
    "another anchor": (
        form(FILE, PURPOSE, part("expires_after[anchor]", b"now")),
        400,
        "must be created_at",
        "expires_after[anchor]",
    ),
    "cut off in the file": ((FILE + PURPOSE)[:70], 400, "cut off", None),
    "cut off before its end": (FILE + PURPOSE, 400, "cut off", None),
    "garbage": (b"garbage", 400, "not a valid multipart/form-data", None),
    "endless parts": (
        form(*[part(f"f{n}", b"", "x") for n in range(100)], FILE),
        400,
        "more than 64 parts",
        None,
    ),
    "many files": (form(FILE, *[part("file", b"", "x")] * 20), 400, "two files", "file"),
    "an endless header": (
        form(part("file", b"x", "x", "x-a: " + "a" * 5000), PURPOSE),
        400,
        "not a valid multipart/form-data",
        None,
    ),
    "endless headers": (
        form(part("file", b"x", "x", *[f"x-{n}: a" for n in range(20)]), PURPOSE),
        400,
        "not a valid multipart/form-data",
        None,
    ),
    "two dispositions": (
        form(part("file", b"x", "x", 'Content-Disposition: form-data; name="purpose"'), PURPOSE),
        400,
        "two headers content-disposition",
        None,
    ),
    "a part without a name": (
        form(b"--%b\r\nContent-Type: text/plain\r\n\r\nx\r\n" % BOUNDARY.encode(), FILE, PURPOSE),
        400,
        "has no name",
        None,
    ),
    "an encoded part": (
        form(part("file", b"eA==", "x", "Content-Transfer-Encoding: base64"), PURPOSE),
        400,
        "Content-Transfer-Encoding",
        None,
    ),
    "too large": (form(part("file", b"x" * (MIB + 1), "x"), PURPOSE), 413, f"limit of {MIB} bytes", "file"),
    "far too large": (form(part("file", b"x" * (4 * MIB), "x"), PURPOSE), 413, "limit", None),
}


@pytest.mark.parametrize("streamed", [False, True], ids=["measured", "streamed"])
async def test_bad_forms_leave_nothing(
    gateway: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streamed: bool
) -> None:
    for module in ("files.routes", "files.files"):
        monkeypatch.setattr(f"fairlane.gateway.{module}.MAX_FILE_BYTES", MIB)
    async with gateway() as talk:
        for what, (body, status, sentence, param) in BAD.items():

            async def pieces(body: bytes = body) -> AsyncIterator[bytes]:
                for at in range(0, len(body), 9973):
                    yield body[at : at + 9973]

            answer = await send(talk.http, pieces() if streamed else body)
            error = answer.json()["error"]
            assert (answer.status_code, sentence in error["message"]) == (status, True), (what, error)
            if not (streamed and what == "far too large"):
                assert error["param"] == param, (what, error)
            assert await left(talk.served, tmp_path) == (0, 0), what
        good = await send(talk.http, form(part("file", b"x" * MIB, "x"), PURPOSE))
        assert good.status_code == 200, good.text


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 415),
        ("multipart/form-data", 400),
        ("multipart/form-data; boundary=", 400),
        (f"multipart/form-data; boundary={'x' * 201}", 400),
        ("multipart/form-data; boundary=another", 400),
    ],
)
async def test_the_type_must_be_that_of_a_form(shared_gateway: Make, content_type: str, status: int) -> None:
    async with shared_gateway() as talk:
        answer = await talk.http.post(
            "/v1/files", content=form(FILE, PURPOSE), headers={"content-type": content_type}
        )
        assert answer.status_code == status, answer.text
        assert await left(talk.served, talk.served.gateway.current.settings.data_dir) == (0, 0)


def head(length: Any) -> bytes:
    lines = ["POST /v1/files HTTP/1.1", "Host: 127.0.0.1", f"Content-Type: {TYPE['content-type']}"]
    return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode()


async def test_a_client_that_leaves_in_the_middle_leaves_nothing(here: Talk, tmp_path: Path) -> None:
    body = part("file", b"x" * (2 * MIB), "x")
    with Caller(here.served.url) as caller:
        await asyncio.to_thread(caller.send, head(10 * MIB) + body[: MIB + 1000])

        async def arrives() -> bool:
            return await left(here.served, tmp_path) == (1, 1)

        await until(arrives, "the file to arrive")
        assert (await here.http.get("/v1/files")).json()["data"] == []
    await nothing_left(here.served, tmp_path)


async def test_a_length_that_is_too_short_cuts_the_form_off(here: Talk, tmp_path: Path) -> None:
    body = form(part("file", b"x" * 1000, "x"), PURPOSE)
    with Caller(here.served.url) as caller:
        await asyncio.to_thread(caller.send, head(500) + body)
        answer = await asyncio.to_thread(caller.answer)
    assert answer[0] == 400
    await nothing_left(here.served, tmp_path)


async def test_a_client_that_falls_silent_is_told_so(
    here: Talk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_http, "BODY_S", 0.2)
    with Caller(here.served.url) as caller:
        await asyncio.to_thread(caller.send, head(MIB) + part("file", b"x" * 1000, "x"))
        answer = await asyncio.to_thread(caller.answer)
    assert answer[0] == 408
    await nothing_left(here.served, tmp_path)


async def test_a_client_that_is_slow_for_too_long_is_told_so(
    here: Talk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_http, "STREAMED_S", 0.3)
    monkeypatch.setattr(calls_http, "BODY_S", 5.0)

    async def slowly() -> AsyncIterator[bytes]:
        yield part("file", b"x" * 1000, "x")
        for _ in range(100):
            await asyncio.sleep(0.01)
            yield b"x"

    answer = await send(here.http, slowly())
    assert answer.status_code == 408
    await nothing_left(here.served, tmp_path)
