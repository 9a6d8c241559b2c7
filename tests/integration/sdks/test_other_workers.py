"""openai-python in front of raw workers: version 1, workers that vanish, workers of a gateway that stops."""

from pathlib import Path
from typing import Any

import openai
import pytest
from tests.support.serving import until
from tests.support.talk import Talk, talking

from .stage import MESSAGES, python_sdk

pytestmark = pytest.mark.anyio
CHAT = "chat.completions.create"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("deltas", "result", "text"),
    [
        (["Hel", "lo"], None, "Hello"),
        (["Hel", "lo"], {"content": "Hello"}, "Hello"),
        ([], "Hello", "Hello"),
        ([], {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}}]}, "Hello"),
        ([], {"mood": "fair"}, '{"mood": "fair"}'),
        ([], None, ""),
    ],
)
async def test_whatever_a_version_1_worker_says_is_a_completion(
    redis_url: str, tmp_path: Path, stream: bool, deltas: list[str], result: Any, text: str
) -> None:
    async with talking(redis_url, tmp_path) as talk, talk.worker() as worker:
        await talk.workers(1)
        async with python_sdk("async", f"{talk.served.url}/v1") as sdk:
            call = sdk.chunks if stream else sdk.call
            calling = talk.later(call(CHAT, model="any", messages=MESSAGES))
            task = await worker.take()
            assert task["payload"]["messages"] == MESSAGES
            for delta in deltas:
                await worker.chunk(task, delta)
            await worker.answer(task, result)
            answer = await calling
    if stream:
        assert "".join(chunk.choices[0].delta.content or "" for chunk in answer) == text
        assert answer[-1].choices[0].finish_reason == "stop"
    else:
        assert answer.choices[0].message.content == text


async def lose(talk: Talk, sdk: Any, *, stream: bool, after_output: bool) -> openai.APIError:
    """What is raised when the only worker vanishes while it runs the task."""
    async with talk.worker2(["m"]) as worker:
        await talk.workers(1)
        call = sdk.chunks if stream else sdk.call
        calling = talk.later(call(CHAT, model="m", messages=MESSAGES))
        task = await worker.take()
        if after_output:
            await worker.chunk(task, "half of ")
        await worker.leave()
        with pytest.raises(openai.APIError) as caught:
            await calling
        return caught.value


@pytest.mark.parametrize("stream", [False, True])
async def test_a_worker_that_vanishes_is_an_internal_server_error(
    redis_url: str, tmp_path: Path, kind: str, stream: bool
) -> None:
    async with talking(redis_url, tmp_path) as talk, python_sdk(kind, f"{talk.served.url}/v1") as sdk:
        error = await lose(talk, sdk, stream=stream, after_output=False)
    assert isinstance(error, openai.InternalServerError)
    assert (error.status_code, error.code) == (502, "WORKER_LOST")
    assert "Worker disconnected" in error.message


async def test_a_worker_that_vanishes_in_the_middle_of_a_stream_raises(
    redis_url: str, tmp_path: Path, kind: str
) -> None:
    async with talking(redis_url, tmp_path) as talk, python_sdk(kind, f"{talk.served.url}/v1") as sdk:
        error = await lose(talk, sdk, stream=True, after_output=True)
    assert error.code == "WORKER_LOST"
    assert "Worker disconnected" in error.message


@pytest.mark.parametrize("after_output", [False, True])
async def test_a_gateway_that_stops_says_so_in_a_stream(
    redis_url: str, tmp_path: Path, kind: str, after_output: bool
) -> None:
    async with talking(redis_url, tmp_path) as talk, talk.worker2(["m"]) as worker:
        await talk.workers(1)
        async with python_sdk(kind, f"{talk.served.url}/v1") as sdk:
            reading = talk.later(sdk.chunks(CHAT, model="m", messages=MESSAGES))
            task = await worker.take()
            if after_output:
                await worker.chunk(task, "half of ")
                await until(lambda: sdk.statuses == [200], "the stream")
            await talk.served.gateway.drain()
            with pytest.raises(openai.APIError) as caught:
                await reading
    assert caught.value.code == "WORKER_LOST"  # no other worker is there to go on
    assert isinstance(caught.value, openai.InternalServerError) is not after_output
    assert sdk.statuses == ([200] if after_output else [502])
