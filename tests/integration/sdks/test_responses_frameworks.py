"""LangChain and pydantic-ai, unmodified, on the Responses API: text, streams and tools."""

from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessageChunk
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import SecretStr
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from .stage import Stage

pytestmark = pytest.mark.anyio


# ---- LangChain ----------


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"fair in {city}"


@tool
def clock(zone: str) -> str:
    """The time in a zone."""
    return f"late in {zone}"


def langchain(stage: Stage, http: Any, model: str, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model=model,
        base_url=stage.base_url,
        api_key=SecretStr("none"),
        max_retries=0,
        http_async_client=http,
        use_responses_api=True,
        **options,
    )


async def test_langchain_reads_a_message_and_a_stream(stage: Stage, http: Any) -> None:
    chat = langchain(stage, http, "talk", temperature=0.5)
    message = await chat.ainvoke("hi")
    assert message.text == "Hello wörld"
    assert message.usage_metadata is not None
    assert message.usage_metadata["total_tokens"] == 8
    whole: Any = None
    async for chunk in chat.astream("hi"):
        whole = chunk if whole is None else whole + chunk
    assert whole.text == "Hello wörld"
    assert whole.usage_metadata["total_tokens"] == 8
    assert [seen["temperature"] for seen in stage.cast.seen] == [0.5, 0.5]
    assert "messages" in stage.cast.seen[0]


@pytest.mark.parametrize("model", ["tools", "whole-tools"])
async def test_langchain_calls_tools_and_sends_their_results(stage: Stage, http: Any, model: str) -> None:
    bound = langchain(stage, http, model).bind_tools([weather, clock], tool_choice="any")
    wanted = [("call_a", "weather", {"city": "Oslo"}), ("call_b", "clock", {"zone": "CET"})]
    message = await bound.ainvoke("hi")
    assert [(call["id"], call["name"], call["args"]) for call in message.tool_calls] == wanted
    whole: AIMessageChunk | None = None
    async for chunk in bound.astream("hi"):
        assert isinstance(chunk, AIMessageChunk)
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert [(call["id"], call["name"], call["args"]) for call in whole.tool_calls] == wanted
    results = [
        await one.ainvoke(call) for one, call in zip((weather, clock), message.tool_calls, strict=True)
    ]
    again = await langchain(stage, http, "talk").ainvoke(["hi", message, *results])
    assert again.text == "Hello wörld"
    roles = [(one["role"], one.get("content")) for one in stage.cast.seen[-1]["messages"]]
    assert roles == [("user", "hi"), ("assistant", None), ("tool", "fair in Oslo"), ("tool", "late in CET")]


# ---- pydantic-ai ----------


def agent(stage: Stage, http: Any, model: str, **options: Any) -> Agent[None, str]:
    client = openai.AsyncOpenAI(base_url=stage.base_url, api_key="none", max_retries=0, http_client=http)
    return Agent(OpenAIResponsesModel(model, provider=OpenAIProvider(openai_client=client)), **options)


async def test_pydantic_ai_reads_a_whole_answer_and_a_stream(stage: Stage, http: Any) -> None:
    friend = agent(stage, http, "talk", instructions="Be brief.")
    result = await friend.run("hi")
    assert result.output == "Hello wörld"
    assert (result.usage.input_tokens, result.usage.output_tokens) == (5, 3)
    async with friend.run_stream("hi") as stream:
        texts = [text async for text in stream.stream_text(delta=True, debounce_by=None)]
    assert "".join(texts) == "Hello wörld"
    again = await friend.run("go on", message_history=result.all_messages())
    assert again.output == "Hello wörld"
    roles = [(one["role"], one["content"]) for one in stage.cast.seen[-1]["messages"]]
    assert roles == [("system", "Be brief."), ("user", "hi"), ("assistant", "Hello wörld"), ("user", "go on")]


@pytest.mark.parametrize("streamed", [False, True])
async def test_pydantic_ai_runs_tools(stage: Stage, http: Any, streamed: bool) -> None:
    friend = agent(stage, http, "tools-once")
    seen = []

    @friend.tool_plain
    def weather(city: str) -> str:
        seen.append(city)
        return f"fair in {city}"

    if streamed:
        async with friend.run_stream("hi") as stream:
            output = await stream.get_output()
    else:
        output = (await friend.run("hi")).output
    assert (output, seen) == ("fair in Oslo", ["Oslo"])
    roles = [one["role"] for one in stage.cast.seen[-1]["messages"]]
    assert roles == ["user", "assistant", "tool"]
