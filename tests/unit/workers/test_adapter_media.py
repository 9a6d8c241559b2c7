"""Audio, images and moderations through the adapter, against scripted upstreams, and those that are simulated."""

import re
import wave
from base64 import b64encode
from io import BytesIO
from typing import Any

import httpx2
import msgspec
import pytest
import respx

from fairlane.gateway.serve.workers import _arguments
from fairlane.gateway.settings import UpstreamSettings
from fairlane.workers.adapters import PROVIDERS, SIMULATED, SimulateAdapter, Simulation
from fairlane.workers.sdk import Context, Task, TaskError, Usage
from fairlane.workers.sdk.media import ImageRequest, ModerationRequest, Transcript, TranscriptionRequest
from fairlane.workers.tasktypes import IMAGE, IMAGE_EDIT, MEDIA, MODERATION, SPEECH, TRANSCRIPTION

pytestmark = pytest.mark.anyio
BASE = "http://upstream.test/v1"
FILE = {"filename": "a.wav", "contentType": "audio/wav", "data": b64encode(b"sound").decode()}


def task(type: str, payload: Any, *, stream: bool = False) -> Task:
    return Task(task_id="t", type=type, model="m", payload_bytes=msgspec.json.encode(payload), stream=stream)


async def run(handler: Any, task: Task) -> list[Any]:
    context = Context(task)
    return [item async for item in handler(task, context)]


async def ask(task: Task, response: httpx2.Response, path: str) -> tuple[list[Any], httpx2.Request]:
    """What the adapter makes of an upstream's answer, and what it asked."""
    adapter = PROVIDERS["openai"].adapter(base_url=BASE, models={"m": "theirs"}, task_types=MEDIA)
    with respx.mock() as mocked:
        route = mocked.post(f"{BASE}{path}").mock(return_value=response)
        try:
            items = await run(adapter, task)
        finally:
            await adapter.aclose()
        return items, route.calls.last.request


async def test_images_are_requested_whole() -> None:
    answer = {"created": 1, "data": [{}], "usage": {"input_tokens": 3, "output_tokens": 9}}
    payload = {"model": "m", "prompt": "x", "stream": True, "partial_images": 2, "size": "8x8"}
    items, request = await ask(
        task(IMAGE, payload, stream=True), httpx2.Response(200, json=answer), "/images/generations"
    )
    assert msgspec.json.decode(request.content) == {"model": "theirs", "prompt": "x", "size": "8x8"}
    usage, result = items
    assert (usage.input_tokens, usage.output_tokens) == (3, 9)
    assert msgspec.json.decode(result.value) == answer


@pytest.mark.parametrize(
    ("body", "kind", "code"),
    [
        (b'{"error": {"message": "no voice"}}', "audio/mpeg", "UPSTREAM_ERROR"),
        (
            b'{"base_resp":{"status_code":1008,"status_msg":"insufficient balance"}}',
            "text/json",
            "UPSTREAM_QUOTA",
        ),
        (b"<html>Please log in</html>", "text/html", "UPSTREAM_ERROR"),
        (b"", "audio/mpeg", "UPSTREAM_ERROR"),
    ],
)
async def test_what_is_no_speech_is_told_so(body: bytes, kind: str, code: str) -> None:
    response = httpx2.Response(200, headers={"content-type": kind}, content=body)
    with pytest.raises(TaskError) as caught:
        await ask(task(SPEECH, {"input": "hi", "stream_format": "sse"}), response, "/audio/speech")
    assert caught.value.code == code


async def test_a_transcription_that_ends_without_its_end_was_cut_off() -> None:
    body = b'data: {"type": "transcript.text.delta", "delta": "hea"}\n\n'
    response = httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=body)
    with pytest.raises(TaskError) as caught:
        await ask(
            task(TRANSCRIPTION, {"file": FILE, "stream": True}, stream=True),
            response,
            "/audio/transcriptions",
        )
    assert caught.value.code == "UPSTREAM_TRUNCATED"


async def test_what_would_steer_the_upstream_is_not_sent() -> None:
    payload = {"file": FILE, "api_base[x]": "http://evil", "Model": "other", "tags": ["a"], "language": "en"}
    _, request = await ask(
        task(TRANSCRIPTION, payload), httpx2.Response(200, json={"text": ""}), "/audio/transcriptions"
    )
    names = re.findall(rb'; name="([^"]*)"', request.content)
    assert sorted(names) == [b"file", b"language", b"model"]
    for rejected in ({"api_base": "http://evil"}, {"file": {**FILE, "data": "no base64!"}}):
        with pytest.raises(TaskError) as caught:
            await ask(task(TRANSCRIPTION, {"file": FILE, **rejected}), httpx2.Response(200), "/")
        assert caught.value.code == "BAD_REQUEST"


async def test_nothing_of_media_is_offered_unless_it_is_named() -> None:
    with pytest.raises(TaskError, match="does not run tasks of type"):
        await run(PROVIDERS["openai"].adapter(base_url=BASE, models=["m"]), task(SPEECH, {"input": "hi"}))
    for provider, asked in (("anthropic", SPEECH), ("openai", "openaiSong"), ("openai", "http")):
        with pytest.raises(ValueError, match="is not a task type of this upstream"):
            PROVIDERS[provider].adapter(models=["m"], api_key="k", task_types=[asked])
    settings = {"provider": "vllm", "models": ["m"], "task_types": [TRANSCRIPTION]}
    assert f"--task-type={TRANSCRIPTION}" in _arguments("ears", UpstreamSettings.model_validate(settings))
    quirks = {"tools.web_search": "allow", "max_output_tokens": 9}
    arguments = _arguments("ears", UpstreamSettings.model_validate({**settings, "quirks": quirks}))
    assert {"--quirk=tools.web_search=allow", "--quirk=max_output_tokens=9"} <= {*arguments}
    with pytest.raises(ValueError, match="task_types of gemini are openaiLike"):
        UpstreamSettings.model_validate({**settings, "provider": "gemini", "base_url": "http://x.test"})


# ---- simulated ----------


async def simulated(type: str, payload: Any, **options: Any) -> list[Any]:
    simulation = Simulation(ttft_ms=0, tokens_per_second=0, **options)
    assert type in SIMULATED
    return await run(SimulateAdapter(simulation), task(type, payload))


async def test_a_simulated_voice_is_a_wave_and_speaks_what_it_can() -> None:
    items = await simulated(SPEECH, {"input": "one two", "response_format": "wav"})
    assert isinstance(items[0], Usage)
    with wave.open(BytesIO(b"".join(item for item in items if isinstance(item, bytes)))) as sound:
        assert sound.getnframes() == 2400
    with pytest.raises(TaskError, match="speaks mp3, wav and pcm"):
        await simulated(SPEECH, {"input": "one", "response_format": "opus"})


def test_requests_as_values() -> None:
    heard = TranscriptionRequest.of(task(TRANSCRIPTION, {"file": FILE, "temperature": 0, "unknown": [1]}))
    assert (heard.file.data, heard.file.filename, heard.temperature) == (b"sound", "a.wav", 0)
    assert [upload.data for upload in ImageRequest.of(task(IMAGE_EDIT, {"image": FILE})).images] == [b"sound"]
    assert ImageRequest.of(task(IMAGE, {"prompt": "x"})).images == []
    parts = [{"type": "text", "text": "a"}]
    for given, inputs in (("a", ["a"]), (["a", "b"], ["a", "b"]), (parts, [parts])):
        assert ModerationRequest.of(task(MODERATION, {"input": given})).inputs == inputs
    assert msgspec.to_builtins(Transcript("x")) == {"text": "x"}
