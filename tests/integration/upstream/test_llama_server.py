"""`fairlane worker start --provider openai` in front of llama.cpp's own server, driven through the gateway by openai-python."""

import asyncio
import json
from typing import Any

import httpx2
import openai
import pytest
from openai import AsyncOpenAI
from tests.support.processes import NO_PROXIES, process
from tests.support.serving import DEADLINE_S, until

from .conftest import MODEL
from .llama_server import CONTEXT_PER_SLOT

pytestmark = [pytest.mark.anyio, pytest.mark.xdist_group("upstream")]
MESSAGES: list[Any] = [{"role": "user", "content": "Is the queue fair?"}]
FIXED: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "seed": 3}
TOO_LONG = "word " * (CONTEXT_PER_SLOT + 1000)
LONG_TALK = CONTEXT_PER_SLOT - 1000


async def busy_slots(llama: httpx2.AsyncClient) -> int:
    """How many of the server's slots generate now."""
    slots = (await llama.get("/slots")).json()
    return sum(slot["is_processing"] for slot in slots)


async def tokens_predicted(llama: httpx2.AsyncClient) -> int:
    """How many tokens the server has generated since it started, in slots that have come to rest."""
    lines = (await llama.get("/metrics")).text.splitlines()
    (line,) = [line for line in lines if line.startswith("llamacpp:tokens_predicted_total ")]
    return int(line.split()[1])


async def is_busy(llama: httpx2.AsyncClient) -> bool:
    return await busy_slots(llama) > 0


async def at_rest(llama: httpx2.AsyncClient) -> None:
    """Return when the server generates nothing.

    It is asked rarely: it looks for departed callers only after a second in which it has answered nobody.
    """
    async with asyncio.timeout(DEADLINE_S):
        while await busy_slots(llama):
            await asyncio.sleep(1.5)


async def test_a_completion_is_the_servers_own(sdk: AsyncOpenAI, llama: httpx2.AsyncClient) -> None:
    completion = await sdk.chat.completions.create(**FIXED, max_tokens=20)
    direct = (await llama.post("/v1/chat/completions", json={**FIXED, "max_tokens": 20})).json()
    assert completion.choices[0].message.content == direct["choices"][0]["message"]["content"]
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 20
    assert completion.usage.prompt_tokens == direct["usage"]["prompt_tokens"]
    extra = completion.model_extra or {}
    assert extra["timings"]["predicted_n"] == 20  # a member that only this server has


async def test_the_streamed_text_is_the_same(sdk: AsyncOpenAI) -> None:
    whole = await sdk.chat.completions.create(**FIXED, max_tokens=50)
    options: Any = {"include_usage": True}
    stream = await sdk.chat.completions.create(**FIXED, max_tokens=50, stream=True, stream_options=options)
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 50
    (own_id,) = {chunk.id for chunk in chunks}
    assert own_id[:9] == whole.id[:9] == "chatcmpl-"
    assert "-" not in own_id[9:]  # the server's own, not the task's
    assert {chunk.system_fingerprint for chunk in chunks} == {whole.system_fingerprint}
    assert (chunks[-1].model_extra or {})["timings"]["predicted_n"] == 50


async def test_a_schema_is_kept(sdk: AsyncOpenAI) -> None:
    schema = {"type": "object", "properties": {"fair": {"type": "boolean"}}, "required": ["fair"]}
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    completion = await sdk.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=400, seed=3, response_format=wanted
    )
    answer = json.loads(completion.choices[0].message.content or "")
    assert isinstance(answer["fair"], bool)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_is_too_long_is_a_bad_request(sdk: AsyncOpenAI, stream: bool) -> None:
    messages: list[Any] = [{"role": "user", "content": TOO_LONG}]
    with pytest.raises(openai.BadRequestError, match="exceeds the available context size") as caught:
        await sdk.chat.completions.create(model=MODEL, messages=messages, stream=stream)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.type == "invalid_request_error"


async def test_the_server_stops_when_the_caller_of_a_stream_leaves(
    sdk: AsyncOpenAI, llama: httpx2.AsyncClient
) -> None:
    before = await tokens_predicted(llama)
    async with await sdk.chat.completions.create(**FIXED, max_tokens=LONG_TALK, stream=True) as stream:
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                break
        assert await busy_slots(llama) == 1
    await at_rest(llama)
    assert await tokens_predicted(llama) - before < LONG_TALK


async def test_the_server_stops_when_a_waiting_caller_leaves(
    sdk: AsyncOpenAI, llama: httpx2.AsyncClient
) -> None:
    before = await tokens_predicted(llama)
    calling = asyncio.create_task(sdk.chat.completions.create(**FIXED, max_tokens=LONG_TALK))
    await until(lambda: is_busy(llama), "the server to begin")
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    await at_rest(llama)
    assert await tokens_predicted(llama) - before < LONG_TALK


async def test_the_check_says_of_a_real_server_what_works(llama: httpx2.AsyncClient) -> None:
    command = (
        "-m",
        "fairlane.gateway.cli.main",
        "worker",
        "test",
        "--provider",
        "openai",
        "--json",
        "--model",
        MODEL,
    )
    async with process(
        *command, "--base-url", str(llama.base_url).rstrip("/") + "/v1", **NO_PROXIES
    ) as child:
        async with asyncio.timeout(DEADLINE_S * 4):
            out, _ = await child.communicate()
    found = {(row := json.loads(line))["check"]: row for line in out.splitlines()}
    assert list(found) == ["models", "answer", "stream", "tools", "json", "refusal"]
    assert all(found[name]["works"] for name in ("models", "answer", "stream"))
    assert found["stream"]["usage"]["completion_tokens"] > 1
    assert found["stream"]["tokensPerSecond"] > 0
    assert child.returncode == 0
