"""Media tasks over plain HTTP: idempotency, usage records, speech as it arrives, and invalid requests."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx2
import pytest
from sqlalchemy import select
from tests.support.serving import until
from tests.support.talk import Talk

from fairlane.gateway.database.tables import usage

from .media import SOUND, TEAM, Media, media_behind
from .stage import PATIENT

pytestmark = pytest.mark.anyio
Start = Callable[..., AbstractAsyncContextManager[Talk]]
FILE = {"file": ("a.wav", SOUND, "audio/wav")}
SPEECH, HEAR = "/v1/audio/speech", "/v1/audio/transcriptions"


@pytest.fixture
async def media(shared_gateway: Start) -> AsyncIterator[Media]:
    async with (
        shared_gateway(**PATIENT, keys=[TEAM], max_body_bytes=400_000) as talk,
        media_behind(talk.served) as media,
    ):
        yield media


@pytest.fixture
async def http(media: Media) -> AsyncIterator[httpx2.AsyncClient]:
    async with media.http() as http:
        yield http


def speak(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "voice": "v", "input": "hi", **more}


# ---- idempotency, usage, native readers ----------


async def test_a_form_with_the_same_key_is_one_task_whatever_its_boundary(
    media: Media, http: httpx2.AsyncClient
) -> None:
    headers = {"Idempotency-Key": "order-7"}
    answers = [await http.post(HEAR, data={"model": "ear"}, files=FILE, headers=headers) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].request.headers["content-type"] != answers[1].request.headers["content-type"]
    assert answers[0].content == answers[1].content
    assert answers[1].headers["idempotency-replayed"] == "true"
    assert len(media.seen) == 1
    other = await http.post(HEAR, data={"model": "ear", "language": "de"}, files=FILE, headers=headers)
    assert other.json()["error"]["code"] == "IDEMPOTENCY_KEY_REUSED"


async def test_a_record_says_what_the_worker_reported_and_nothing_else(
    media: Media, http: httpx2.AsyncClient
) -> None:
    tasks = []
    for path, body, files in (
        (SPEECH, speak("pieces"), None),
        (SPEECH, speak("whole"), None),
        (HEAR, {"model": "ear"}, FILE),
    ):
        call = {"json": body} if files is None else {"data": body, "files": files}
        answer = await http.post(path, **call)
        assert answer.status_code == 200
        tasks.append(answer.headers["x-task-id"])
    columns = usage.c

    async def rows() -> list[Any]:
        async with media.served.gateway.database.reading() as connection:
            asked = select(columns.task_type, columns.input, columns.output, columns.estimated)
            return list(await connection.execute(asked.where(columns.task.in_(tasks))))

    async def there() -> bool:
        return len(await rows()) == 3

    await until(there, "the records")
    told = {(row.task_type, row.input, row.output, bool(row.estimated)) for row in await rows()}
    assert told == {
        ("openaiSpeech", 3, 40, False),
        ("openaiSpeech", None, None, False),
        ("openaiTranscription", None, None, False),
    }


# ---- speech as it comes ----------


async def test_the_first_bytes_come_while_the_worker_speaks(media: Media, http: httpx2.AsyncClient) -> None:
    async with http.stream("POST", SPEECH, json=speak("slow")) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "audio/mpeg"
        assert answer.headers["x-content-type-options"] == "nosniff"
        pieces = answer.aiter_raw()
        assert await anext(pieces) == b"first!"
        media.go_on.set()
        assert b"".join([piece async for piece in pieces]) == b"second"


async def test_a_failure_after_the_first_bytes_cuts_the_connection(
    media: Media, http: httpx2.AsyncClient
) -> None:
    async with http.stream("POST", SPEECH, json=speak("hoarse")) as answer:
        pieces = answer.aiter_raw()
        assert await anext(pieces) == b"half of i"
        media.go_on.set()
        with pytest.raises(httpx2.RemoteProtocolError):
            async for _ in pieces:
                pass


@pytest.mark.parametrize(
    ("model", "status", "code"), [("mute", 400, "BAD_REQUEST"), ("babble", 502, "JSON_PARSE_FAILED")]
)
async def test_a_failure_before_the_first_byte_has_a_status(
    http: httpx2.AsyncClient, model: str, status: int, code: str
) -> None:
    answer = await http.post(SPEECH, json=speak(model))
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/json"


# ---- what is refused ----------


@pytest.mark.parametrize(
    ("path", "call", "status", "words"),
    [
        (HEAR, {"json": {"model": "ear"}}, 415, "multipart/form-data"),
        (HEAR, {"data": {"model": "ear"}, "files": {"other": b"x"}}, 400, "You must provide a file"),
        (HEAR, {"files": {"file": (None, "text"), "model": (None, "ear")}}, 400, "must be a file"),
        (HEAR, {"files": FILE}, 400, "model is missing: one of"),
        (HEAR, {"data": {"model": "ear", "temperature": "hot"}, "files": FILE}, 400, "must be a number"),
        (HEAR, {"data": {"model": "ear", "stream": "yes"}, "files": FILE}, 400, "true or false"),
        (
            HEAR,
            {"data": {"model": "ear", "response_format": "docx"}, "files": FILE},
            400,
            "one of json, text",
        ),
        (HEAR, {"data": {"model": "ear", "a[b][c][d][e]": "x"}, "files": FILE}, 400, "in brackets"),
        (HEAR, {"data": {"model": ["ear", "sim"]}, "files": FILE}, 400, "model must be a string"),
        (HEAR, {"data": {"model": "deaf", "response_format": "vtt"}, "files": FILE}, 502, "without segments"),
        (SPEECH, {"json": {"model": "sim", "voice": "v"}}, 400, "You must provide an input"),
        (SPEECH, {"json": speak("sim", stream_format="ws")}, 400, "one of audio, sse"),
        (SPEECH, {"json": speak("sim", response_format="opus")}, 400, "speaks mp3, wav and pcm"),
        ("/v1/images/edits", {"data": {"model": "sim"}, "files": {"image": b"x"}}, 400, "provide a prompt"),
        ("/v1/images/generations", {"json": {"model": "sim", "prompt": "x", "n": 900}}, 400, "maximum value"),
        ("/v1/moderations", {"json": {"model": "sim"}}, 400, "You must provide an input"),
    ],
)
async def test_what_makes_no_sense_is_refused_in_a_sentence(
    http: httpx2.AsyncClient, path: str, call: dict[str, Any], status: int, words: str
) -> None:
    answer = await http.post(path, **call)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"]["message"]


async def test_a_form_whose_files_are_too_large_as_base64_is_a_413(
    media: Media, http: httpx2.AsyncClient
) -> None:
    for size in (310_000, 500_000):
        answer = await http.post(HEAR, data={"model": "ear"}, files={"file": ("a", b"x" * size)})
        assert answer.status_code == 413, answer.text
        assert answer.json()["error"]["code"] == "BODY_TOO_LARGE"
    fields = {"model": "ear", "prompt": "\x01" * 60_000, "language": "\x01" * 60_000}  # six characters each
    answer = await http.post(HEAR, data=fields, files={"file": ("a", b"x")})
    assert answer.status_code == 413, answer.text
    fits = await http.post(HEAR, data={"model": "ear"}, files={"file": ("a", b"x" * 290_000)})
    assert fits.status_code == 200
    assert len(media.seen) == 1
