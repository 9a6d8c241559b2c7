"""langchain-openai: chat, stream, tools and embeddings through its own classes."""

from collections.abc import Callable
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import SecretStr

from .cast import CALLS, VECTOR
from .stage import Stage

pytestmark = pytest.mark.anyio


Chat = Callable[..., ChatOpenAI]


def make_chat(stage: Stage, http: openai.DefaultAsyncHttpxClient) -> Chat:
    def make(model: str, **options: Any) -> ChatOpenAI:
        options = {"api_key": SecretStr("none"), "max_retries": 0, **options}
        return ChatOpenAI(model=model, base_url=stage.base_url, http_async_client=http, **options)

    return make


@pytest.fixture
def chat(stage: Stage, http: openai.DefaultAsyncHttpxClient) -> Chat:
    """Makes chat models of the stage, without retries."""
    return make_chat(stage, http)


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"fair in {city}"


@tool
def clock(zone: str) -> str:
    """The time in a zone."""
    return f"late in {zone}"


async def test_a_message(stage: Stage, chat: Chat) -> None:
    message = await chat("talk", temperature=0.5).ainvoke([HumanMessage("hi")])
    assert isinstance(message, AIMessage)
    assert message.content == "Hello wörld"
    assert message.usage_metadata is not None
    assert message.usage_metadata["total_tokens"] == 8
    assert message.response_metadata["finish_reason"] == "stop"
    assert stage.cast.seen[0]["temperature"] == 0.5


@pytest.mark.parametrize("usage", [False, True])
async def test_a_stream_with_and_without_usage(stage: Stage, chat: Chat, usage: bool) -> None:
    chunks = [chunk async for chunk in chat("talk", stream_usage=usage).astream("hi")]
    assert "".join(chunk.text for chunk in chunks) == "Hello wörld"
    told = [
        chunk.usage_metadata for chunk in chunks if isinstance(chunk, AIMessageChunk) and chunk.usage_metadata
    ]
    assert [metadata["total_tokens"] for metadata in told] == ([8] if usage else [])


@pytest.mark.parametrize("model", ["tools", "whole-tools"])
async def test_tool_calls_in_one_piece_and_streamed(stage: Stage, chat: Chat, model: str) -> None:
    bound = chat(model).bind_tools([weather, clock], tool_choice="any")
    wanted = [("call_a", "weather", {"city": "Oslo"}), ("call_b", "clock", {"zone": "CET"})]
    message = await bound.ainvoke("hi")
    assert [(call["id"], call["name"], call["args"]) for call in message.tool_calls] == wanted
    whole: AIMessageChunk | None = None
    async for chunk in bound.astream("hi"):
        assert isinstance(chunk, AIMessageChunk)
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert [(call["id"], call["name"], call["args"]) for call in whole.tool_calls] == wanted
    names = [entry["function"]["name"] for entry in stage.cast.seen[0]["tools"]]
    assert names == [call["function"]["name"] for call in CALLS]


async def test_embeddings(stage: Stage, http: openai.DefaultAsyncHttpxClient) -> None:
    embeddings = OpenAIEmbeddings(
        model="vectors",
        base_url=stage.base_url,
        api_key=SecretStr("none"),
        check_embedding_ctx_length=False,
        http_async_client=http,
        max_retries=0,
    )
    assert await embeddings.aembed_documents(["a", "b"]) == [VECTOR, VECTOR]
    assert await embeddings.aembed_query("a") == VECTOR
