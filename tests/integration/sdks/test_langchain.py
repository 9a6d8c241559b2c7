"""langchain-openai: chat, stream, tools, embeddings and errors through its own classes."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import SecretStr
from tests.support.serving import NO_TLS

from fairlane.gateway.accounts.callers import digest
from fairlane.gateway.settings import CallerKey

from .cast import CALLS, LOGPROBS, VECTOR
from .stage import Stage, staged

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


async def test_its_synchronous_calls(stage: Stage) -> None:
    def run() -> tuple[str, str]:
        with openai.DefaultHttpxClient(trust_env=False, verify=NO_TLS) as http:
            model = ChatOpenAI(
                model="talk",
                base_url=stage.base_url,
                api_key=SecretStr("none"),
                max_retries=0,
                http_client=http,
            )
            return model.invoke("hi").text, "".join(chunk.text for chunk in model.stream("hi"))

    assert await asyncio.to_thread(run) == ("Hello wörld", "Hello wörld")


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


async def test_log_probabilities_come_back(stage: Stage, chat: Chat) -> None:
    message = await chat("thinker", logprobs=True).ainvoke("hi")
    assert message.response_metadata["logprobs"] == LOGPROBS
    assert stage.cast.seen[0]["logprobs"] is True


async def test_several_choices(stage: Stage, chat: Chat) -> None:
    result = await chat("choices", n=2).agenerate([[HumanMessage("hi")]])
    assert [generation.text for generation in result.generations[0]] == ["one /0 two/0 ", "one /1 two/1 "]


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


async def test_errors_are_raised_as_their_classes(stage: Stage, chat: Chat) -> None:
    with pytest.raises(openai.NotFoundError):
        await chat("nobody-has-this").ainvoke("hi")
    for call in (chat("refuses").ainvoke, _read_all(chat("refuses"))):
        with pytest.raises(openai.BadRequestError) as caught:
            await call("hi")
        assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.InternalServerError):
        await chat("busy").ainvoke("hi")


def _read_all(model: ChatOpenAI) -> Any:
    async def read(prompt: str) -> list[Any]:
        return [chunk async for chunk in model.astream(prompt)]

    return read


async def test_a_wrong_key_is_an_authentication_error(
    redis_url: str, tmp_path: Path, http: openai.DefaultAsyncHttpxClient
) -> None:
    key = CallerKey(id="team", sha256=digest("right"))
    async with staged(redis_url, tmp_path, keys=[key], key="right") as stage:
        chat = make_chat(stage, http)
        with pytest.raises(openai.AuthenticationError):
            await chat("talk", api_key=SecretStr("wrong")).ainvoke("hi")
        message = await chat("talk", api_key=SecretStr("right")).ainvoke("hi")
        assert message.content == "Hello wörld"


async def test_a_failure_in_the_middle_of_a_stream_raises_with_its_message(stage: Stage, chat: Chat) -> None:
    texts: list[str] = []

    async def read() -> None:
        async for chunk in chat("breaks").astream("hi"):
            texts.append(chunk.text)

    with pytest.raises(openai.APIError, match="The model fell over"):
        await read()
    assert "".join(texts) == "half of "


async def test_a_caller_who_closes_a_stream_stops_the_worker(stage: Stage, chat: Chat) -> None:
    stream: Any = chat("endless").astream("hi")
    async for chunk in stream:
        if chunk.text:
            break
    await stream.aclose()
    await stage.reached(stage.cast.cancelled, "the cancel at the worker")
