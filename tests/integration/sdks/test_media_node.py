"""openai-node's calls for audio, images and moderations, unmodified."""

from base64 import b64decode
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.media_upstream import HEARD, PICTURE, SPOKEN

from .media import KEY, PIECES, Media
from .nodes import run_node

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def scenario(media: Media, node_project: Path) -> Any:
    """Runs one of `node/media.mjs`."""
    return partial(_run, media, node_project)


async def _run(media: Media, project: Path, name: str) -> Any:
    return await run_node(project, name, media.base_url, client="media.mjs", apiKey=KEY)


async def test_transcriptions_in_each_format(scenario: Any) -> None:
    told = await scenario("transcriptions")
    assert "simulated answer" in told["json"]["text"]
    assert told["verbose"]["segments"][0]["start"] == 0
    assert "simulated answer" in told["text"]
    assert told["srt"].startswith("1\n00:00:00,000 --> ")
    assert told["vtt"].startswith("WEBVTT\n\n")


async def test_what_was_uploaded_reaches_the_handler(media: Media, scenario: Any) -> None:
    assert (await scenario("heard"))["text"] == "One two drüi"
    (heard,) = media.seen
    assert len(heard.file.data) == 70_000
    assert heard.file.filename.endswith(".wav")
    assert (heard.language, heard.temperature) == ("de", 0.25)
    assert heard.timestamp_granularities == ["word", "segment"]


async def test_a_transcription_streams_its_text(scenario: Any) -> None:
    events = await scenario("stream")
    assert "".join(event["delta"] for event in events[:-1]) == "One two drüi"
    assert (events[-1]["type"], events[-1]["text"]) == ("transcript.text.done", "One two drüi")


async def test_a_translation_and_a_moderation(scenario: Any) -> None:
    assert "simulated answer" in (await scenario("translation"))["text"]
    assert [result["flagged"] for result in (await scenario("moderation"))["results"]] == [False, True]


async def test_speech_is_bytes(scenario: Any) -> None:
    told = await scenario("speech")
    assert bytes.fromhex(told["pieces"]) == b"".join(PIECES)
    assert bytes.fromhex(told["wav"]).startswith(b"RIFF")


async def test_the_first_bytes_come_before_the_last_are_spoken_and_a_caller_who_leaves_stops_the_worker(
    media: Media, scenario: Any
) -> None:
    assert await scenario("pieces") == {"first": "first!", "type": "audio/mpeg"}
    await media.cancelled.wait()


async def test_images(scenario: Any) -> None:
    told = await scenario("images")
    for name, number in (("made", 2), ("edited", 1), ("varied", 1)):
        assert [b64decode(image["b64_json"])[:4] for image in told[name]["data"]] == [b"\x89PNG"] * number
    assert [event["type"] for event in told["events"]] == [
        "image_generation.partial_image",
        "image_generation.completed",
    ]


async def test_a_server_behind_the_adapter(scenario: Any) -> None:
    told = await scenario("far")
    assert told["heard"]["text"] == "".join(HEARD)
    assert told["events"][-1]["usage"]["input_tokens"] == 14
    assert bytes.fromhex(told["spoken"]) == b"".join(SPOKEN)
    assert b64decode(told["edited"]["data"][0]["b64_json"]) == PICTURE


async def test_who_offers_no_speech_is_a_404_and_a_refusal_before_the_first_byte_has_its_status(
    scenario: Any,
) -> None:
    error = await scenario("none")
    assert (error["name"], error["status"], error["code"]) == ("NotFoundError", 404, "TYPE_NOT_OFFERED")
    error = await scenario("mute")
    assert (error["name"], error["status"], error["code"]) == ("BadRequestError", 400, "BAD_REQUEST")
