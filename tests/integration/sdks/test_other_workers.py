"""openai-python in front of raw workers: version 1, workers that vanish, workers of a gateway that stops."""

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import openai
import pytest
from langchain_openai import ChatOpenAI
from openai import DefaultAsyncHttpxClient
from pydantic import SecretStr
from tests.support.serving import NO_TLS, until
from tests.support.talk import Talk, talking

from .openais import python_sdk
from .stage import MESSAGES

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
CHAT = "chat.completions.create"
CHOICES: dict[str, Any] = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}}]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("deltas", "result", "text"),
    [
        (["Hel", "lo"], None, "Hello"),
        (["Hel", "lo"], {"content": "Hello"}, "Hello"),
        ([], "Hello", "Hello"),
        ([], CHOICES, "Hello"),
        ([], {"mood": "fair"}, '{"mood": "fair"}'),
        ([], None, ""),
    ],
)
async def test_whatever_a_version_1_worker_says_is_a_completion(
    shared_gateway: Start, stream: bool, deltas: list[str], result: Any, text: str
) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
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


@pytest.mark.parametrize(
    ("deltas", "result", "output"),
    [
        (["Hel", "lo"], None, 2),
        ([], CHOICES, 2),
        ([], {"content": "Hello", "usage": {"prompt_tokens": 7, "completion_tokens": 5}}, 5),
    ],
)
async def test_usage_that_a_worker_does_not_tell_is_counted_and_marked(
    shared_gateway: Start, deltas: list[str], result: Any, output: int
) -> None:
    told = result is not None and "usage" in result
    fields = {"model": "any", "messages": MESSAGES}
    async with shared_gateway() as talk, talk.worker() as worker:
        await talk.workers(1)

        async def answered(call: Any) -> tuple[Any, int]:
            calling = talk.later(call)
            task = await worker.take()
            for delta in deltas:
                await worker.chunk(task, delta)
            await worker.answer(task, result)
            return await calling, 7 if told else len(json.dumps(task["payload"], separators=(",", ":"))) // 4

        async with python_sdk("async", f"{talk.served.url}/v1") as sdk:
            chunks, streamed = await answered(
                sdk.chunks(CHAT, **fields, stream_options={"include_usage": True})
            )
            whole, waited = await answered(sdk.call(CHAT, **fields))
        submitted = await talk.submit(model="any")
        _, native = await answered(talk.reaches(submitted, "completed"))
        async with talk.events(f"/api/task/{submitted}/events") as reader:
            done = (await reader.rest())[-1].data
        async with DefaultAsyncHttpxClient(trust_env=False, verify=NO_TLS) as http:
            chat = ChatOpenAI(
                model="any",
                base_url=f"{talk.served.url}/v1",
                api_key=SecretStr("none"),
                http_async_client=http,
            )
            message, asked = await answered(chat.ainvoke("hi"))
    for usage, prompt in ((chunks[-1].usage, streamed), (whole.usage, waited)):
        assert (usage.prompt_tokens, usage.completion_tokens) == (prompt, output)
        assert usage.total_tokens == prompt + output
        assert (usage.model_extra or {}).get("estimated", False) is not told
    if not told:
        assert done["usage"] == {"inputTokens": native, "outputTokens": output, "estimated": True}
    assert (message.usage_metadata["input_tokens"], message.usage_metadata["output_tokens"]) == (
        asked,
        output,
    )


@pytest.mark.parametrize("call", ["embeddings.create", "completions.create"])
async def test_an_answer_of_another_shape_is_a_502_that_says_what_came(
    shared_gateway: Start, kind: str, call: str
) -> None:
    fields = {"input": "hi"} if call == "embeddings.create" else {"prompt": "hi"}
    async with shared_gateway() as talk, talk.worker() as worker:
        await talk.workers(1)
        async with python_sdk(kind, f"{talk.served.url}/v1") as sdk:
            calling = talk.later(sdk.call(call, model="m", **fields))
            await worker.answer(await worker.take(), {"mood": "fair"})
            with pytest.raises(openai.InternalServerError) as caught:
                await calling
        assert sdk.statuses == [502]
        assert caught.value.code == "JSON_PARSE_FAILED"
        assert "The worker answered with an object with the members mood, not with" in caught.value.message
        if call == "completions.create":
            async with python_sdk(kind, f"{talk.served.url}/v1") as sdk:
                calling = talk.later(sdk.chunks(call, model="m", **fields))
                await worker.answer(await worker.take(), {"mood": "fair"})
                with pytest.raises(openai.APIError, match="with the members mood"):
                    await calling


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


async def test_a_worker_that_vanishes_in_the_middle_of_a_stream_raises(
    shared_gateway: Start, kind: str
) -> None:
    async with shared_gateway() as talk, python_sdk(kind, f"{talk.served.url}/v1") as sdk:
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
