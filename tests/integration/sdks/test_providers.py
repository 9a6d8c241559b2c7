"""Anthropic and Gemini behind a gateway, as the official OpenAI client sees them, and Anthropic's."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.support.serving import DEADLINE_S, until
from tests.support.talk import Talk
from tests.support.upstreams import (
    anthropic_error,
    anthropic_events,
    anthropic_message,
    gemini_chunks,
    gemini_content,
    sse,
)

from fairlane.workers.adapters import PROVIDERS
from fairlane.workers.sdk import Worker

from .anthropics import ASKED, anthropic_sdk
from .openais import Sdk, python_sdk
from .stage import MESSAGES

pytestmark = pytest.mark.anyio
CHAT = "chat.completions.create"

Start = Callable[..., AbstractAsyncContextManager[Talk]]

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
CACHED = {"type": "ephemeral"}
THOUGHT = {"type": "thinking", "thinking": "I must look.", "signature": "sig-1"}


class Upstream:
    """A provider on a real port: answers calls a tool once, then texts; `refuse` and `hang` change that."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.url = ""
        """Of the gateway before it."""
        self.base_url = ""
        self.bodies: list[Any] = []
        self.refuse = False
        self.hang = False
        self.overloaded = False
        """The next stream says so after its beginning, before any output."""
        self.left = asyncio.Event()
        """The other side has closed a stream that hung."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            if head.startswith("GET"):
                await self._send(writer, 200, b'{"data": []}')
            else:
                length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0])
                self.bodies.append(json.loads(await reader.readexactly(length)))
                await self._answer(head, reader, writer)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def _answer(self, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = self.bodies[-1]
        stream = "streamGenerateContent" in head or body.get("stream")
        if self.refuse:
            low = "Your credit balance is too low to access the Anthropic API."
            said = anthropic_error("invalid_request_error", low)
            google = {"error": {"code": 400, "message": "no", "status": "FAILED_PRECONDITION"}}
            await self._send(writer, 400, json.dumps(said if self.name == "anthropic" else google).encode())
            return
        asked_before = "tool_result" in json.dumps(body) or "functionResponse" in json.dumps(body)
        calls = bool(body.get("tools")) and not asked_before
        if self.name == "anthropic":
            call = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Köln"}}
            content = [THOUGHT, call] if calls else [{"type": "text", "text": "It is sunny in Köln."}]
            stop = "tool_use" if calls else "end_turn"
            events = sse(*anthropic_events(content, stop), named=True)
            whole = anthropic_message(content, stop)
        else:
            call = {
                "functionCall": {"name": "weather", "args": {"city": "Köln"}},
                "thoughtSignature": "sig-1",
            }
            parts = [call] if calls else [{"text": "It is sunny in Köln."}]
            events, whole = sse(*gemini_chunks(parts)), gemini_content(parts)
        if self.overloaded:
            self.overloaded = False
            beginning = (
                anthropic_events([])[0]
                if self.name == "anthropic"
                else {"usageMetadata": {"promptTokenCount": 3}}
            )
            google = {"error": {"code": 503, "message": "no", "status": "UNAVAILABLE"}}
            error = anthropic_error("overloaded_error") if self.name == "anthropic" else google
            await self._send(writer, 200, sse(beginning, error), events=True)
        elif not stream:
            await self._send(writer, 200, json.dumps(whole).encode())
        elif self.hang:
            await self._send(writer, 200, events[: len(events) * 3 // 4], events=True, more=True)
            await reader.read()
            self.left.set()
        else:
            await self._send(writer, 200, events, events=True)

    async def _send(
        self,
        writer: asyncio.StreamWriter,
        status: int,
        body: bytes,
        *,
        events: bool = False,
        more: bool = False,
    ) -> None:
        kind = "text/event-stream" if events else "application/json"
        length = "" if more else f"Content-Length: {len(body)}\r\n"
        writer.write(
            f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\n{length}Connection: close\r\n\r\n".encode()
            + body
        )
        await writer.drain()


@pytest.fixture(params=["anthropic", "gemini"])
async def upstream(request: pytest.FixtureRequest, shared_gateway: Start) -> AsyncIterator[Upstream]:
    """A provider, a gateway, and the provider's worker between them."""
    provider = Upstream(request.param)
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with shared_gateway() as talk:
        served = talk.served
        worker = Worker("provider", gateway=served.url, slots=4)
        provider.base_url = base_url = f"http://127.0.0.1:{port}/v1"
        PROVIDERS[request.param].adapter(base_url=base_url, models=["m"], api_key="k").attach(worker)
        stop = asyncio.Event()
        working = asyncio.create_task(worker.serve(stop, stop))
        try:
            pool = served.gateway.dispatcher.pool
            await until(
                lambda: any(True for _ in pool) and not any(w.reserved or w.cap == 0 for w in pool),
                "a worker",
            )
            provider.url = f"{served.url}/v1"
            yield provider
        finally:
            stop.set()
            async with asyncio.timeout(DEADLINE_S):
                await working
            server.close()


@pytest.fixture
async def sdk(upstream: Upstream) -> AsyncIterator[Sdk]:
    async with python_sdk("async", upstream.url) as sdk:
        yield sdk


async def test_a_chat_streams_with_usage_as_from_openai(upstream: Upstream, sdk: Sdk) -> None:
    chunks = await sdk.chunks(CHAT, model="m", messages=MESSAGES, stream_options={"include_usage": True})
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "It is sunny in Köln."
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    usage = chunks[-1].usage
    expected = {"anthropic": (33, 7, 20), "gemini": (32, 9, 20)}[upstream.name]
    assert (
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.prompt_tokens_details.cached_tokens,
    ) == expected
    if upstream.name == "gemini":
        assert usage.completion_tokens_details.reasoning_tokens == 5
    whole = await sdk.call(CHAT, model="m", messages=MESSAGES)
    assert (whole.choices[0].message.content, whole.usage) == (text, usage)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_loop_of_tools_brings_back_what_the_provider_must_see_again(
    upstream: Upstream, sdk: Sdk, stream: bool
) -> None:
    asked: dict[str, Any] = {"model": "m", "messages": [*MESSAGES], "tools": TOOLS, "reasoning_effort": "low"}
    if stream:
        _, completion = await sdk.helper(**asked)
        message = completion.choices[0].message
    else:
        message = (await sdk.call(CHAT, **asked)).choices[0].message
    (call,) = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Köln"})
    said = message.model_dump(
        exclude_none=True, exclude={"parsed": True, "tool_calls": {"__all__": {"index"}}}
    )
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    answer = await sdk.call(CHAT, **{**asked, "messages": [*MESSAGES, said, result]})
    assert answer.choices[0].message.content == "It is sunny in Köln."
    again = upstream.bodies[-1]
    if upstream.name == "anthropic":
        assert again["thinking"]["type"] == "adaptive"
        use, block = again["messages"][1]["content"][-1], again["messages"][1]["content"][0]
        assert block == THOUGHT
        assert (use["id"], use["input"]) == ("c1", {"city": "Köln"})
        assert again["messages"][2]["content"][0]["tool_use_id"] == "c1"
    else:
        part = again["contents"][1]["parts"][0]
        assert (part["thoughtSignature"], part["functionCall"]["args"]) == ("sig-1", {"city": "Köln"})
        assert again["contents"][2]["parts"][0]["functionResponse"]["response"] == {"result": "sunny"}


async def test_a_provider_that_is_overloaded_after_a_good_beginning_is_asked_again(
    upstream: Upstream, sdk: Sdk
) -> None:
    upstream.overloaded = True
    chunks = await sdk.chunks(CHAT, model="m", messages=MESSAGES)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "It is sunny in Köln."
    assert len(upstream.bodies) == 2


async def test_a_caller_who_leaves_a_stream_closes_the_provider_s(upstream: Upstream, sdk: Sdk) -> None:
    upstream.hang = True
    assert await sdk.leave(model="m", messages=MESSAGES)
    async with asyncio.timeout(DEADLINE_S):
        await upstream.left.wait()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_loop_of_tools_over_messages_brings_back_what_the_provider_must_see_again(
    upstream: Upstream, stream: bool
) -> None:
    tools = [{"name": "weather", "input_schema": TOOLS[0]["function"]["parameters"], "cache_control": CACHED}]
    asked: dict[str, Any] = {**ASKED, "model": "m", "tools": tools, "thinking": {"type": "adaptive"}}
    async with anthropic_sdk("async", upstream.url.removesuffix("/v1")) as claude:
        if stream:
            _, message = await claude.helper(**asked)
        else:
            message = await claude.call("messages.create", **asked)
        *thoughts, use = message.content
        assert (message.stop_reason, use.name, use.input) == ("tool_use", "weather", {"city": "Köln"})
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "sunny", "is_error": False}
        said = [*ASKED["messages"], message.to_param(), {"role": "user", "content": [result]}]
        text, answer = await claude.helper(**{**asked, "messages": said})
    assert text == "It is sunny in Köln."
    usage = answer.usage
    if upstream.name == "anthropic":
        assert [block.model_dump() for block in thoughts] == [THOUGHT]
        again = upstream.bodies[-1]
        assert again["messages"][1]["content"][0] == THOUGHT
        assert again["messages"][2]["content"] == [
            {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "sunny"}]}
        ]
        assert again["thinking"] == {"type": "adaptive"}
        assert again["tools"][0]["cache_control"] == CACHED
        assert (message.id, usage.input_tokens, usage.output_tokens) == ("msg_1", 10, 7)
        assert (usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (20, 3)
    else:
        assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (12, 20, 9)
        assert upstream.bodies[-1]["contents"][2]["parts"][0]["functionResponse"]["response"] == {
            "result": "sunny"
        }
