"""Claude Code's requests, as a session of it sends them: served by workers of any kind under Claude's names."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.claude_code import MODELS, SESSION
from tests.support.serving import DEADLINE_S, http_client, serving, until

from fairlane.workers.adapters.dialects.anthropic.request import messages_request
from fairlane.workers.adapters.dialects.openai import OpenAIDialect
from fairlane.workers.sdk import Context, Delta, Task, Usage, Worker

pytestmark = pytest.mark.anyio
SAID = "Ich prüfe …"
COMMAND = '{"command": "pytest -q", "description": "Run the tests"}'
OPENAIS: dict[str, set[str]] = {
    "system": {"role", "content"},
    "user": {"role", "content"},
    "assistant": {"role", "content", "tool_calls"},
    "tool": {"role", "content", "tool_call_id"},
}
"""Members of messages that a strict server of OpenAI's takes."""


async def code(task: Task, _: Context) -> AsyncIterator[Any]:
    """Answers in JSON where a schema is given, calls a tool where there are some, else says a word."""
    payload = task.payload
    if "response_format" in payload:
        yield '{"title": "A counter'
        yield ' that fails"}'
    elif payload.get("tools") and payload.get("tool_choice") != "none":
        yield Delta(reasoning="I must ")
        yield Delta(reasoning="look.")
        yield SAID
        head = {"index": 0, "id": "call_1", "type": "function"}
        yield Delta(tool_calls=_raw([{**head, "function": {"name": "Bash", "arguments": ""}}]))
        for at in range(0, len(COMMAND), 7):
            yield Delta(tool_calls=_raw([{"index": 0, "function": {"arguments": COMMAND[at : at + 7]}}]))
        yield Delta(finish_reason="tool_calls")
    else:
        yield "Done."
    yield Usage(1200, 40, {"prompt_tokens_details": {"cached_tokens": 1000}})


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


async def test_a_session_is_served_from_its_first_request_to_its_last(redis_url: str, tmp_path: Path) -> None:
    routes = {name: {"model": "qwen3"} for name in MODELS}
    seen: list[Any] = []
    async with serving(redis_url, tmp_path, routes=routes) as served:
        worker = Worker("coder", gateway=served.url, slots=4)

        @worker.handler(["qwen3"])
        async def handle(task: Task, context: Context) -> AsyncIterator[Any]:
            seen.append(task.payload)
            async for output in code(task, context):
                yield output

        stop = asyncio.Event()
        working = asyncio.create_task(worker.serve(stop, stop))
        try:
            pool = served.gateway.dispatcher.pool
            await until(lambda: any(True for _ in pool), "the worker")
            async with http_client(served.url, timeout=DEADLINE_S) as http:
                for recorded in SESSION:
                    headers = {**recorded["headers"], "x-api-key": "none"}
                    body = json.dumps(recorded["body"], ensure_ascii=False).encode()
                    headers["content-type"] = "application/json"
                    answer = await http.post(recorded["path"], content=body, headers=headers)
                    assert answer.status_code == 200, (recorded["what"], answer.text)
                    assert answer.headers["request-id"]
                    if "count_tokens" in recorded["path"]:
                        assert 1000 < answer.json()["input_tokens"] < 4000
                    elif recorded["body"].get("stream"):
                        _check_stream(answer.text, recorded["body"])
                    else:
                        message = answer.json()
                        assert message["content"] == [{"type": "text", "text": "Done."}]
                        assert message["stop_reason"] == "end_turn"
                        assert message["usage"]["cache_read_input_tokens"] == 1000
        finally:
            stop.set()
            async with asyncio.timeout(DEADLINE_S):
                await working
    assert len(seen) == len(SESSION) - 1
    assert all(payload["model"] == "qwen3" for payload in seen)


def _check_stream(text: str, asked: dict[str, Any]) -> None:
    events = [json.loads(frame.split("data: ", 1)[1]) for frame in text.split("\n\n")[:-1]]
    blocks: dict[int, list[Any]] = {}
    for event in events:
        if event["type"] == "content_block_start":
            blocks[event["index"]] = [event["content_block"]]
        elif event["type"] == "content_block_delta":
            blocks[event["index"]].append(event["delta"])
    assert events[-1] == {"type": "message_stop"}
    told = events[-2]
    assert told["usage"]["input_tokens"] == 200
    if not asked["tools"]:
        assert json.loads("".join(delta["text"] for delta in blocks[0][1:])) == {
            "title": "A counter that fails"
        }
        return
    assert [block[0]["type"] for block in blocks.values()] == ["thinking", "text", "tool_use"]
    assert "".join(delta["text"] for delta in blocks[1][1:]) == SAID
    assert "".join(delta["partial_json"] for delta in blocks[2][1:]) == COMMAND
    assert told["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


def test_a_strict_server_of_openais_is_sent_nothing_that_it_refuses() -> None:
    for payload in _payloads():
        task = Task(task_id="t", type="openaiLike", model="m", payload_bytes=payload, stream=True)
        body = json.loads(OpenAIDialect().call(task, "m", quirks={}, now=0.0).body)
        assert body.keys() <= {
            *(
                "model",
                "messages",
                "max_completion_tokens",
                "stream",
                "stream_options",
                "tools",
                "tool_choice",
            ),
            "user",
            *("reasoning_effort", "response_format", "temperature", "stop"),
        }
        open_calls: set[str] = set()
        for message in body["messages"]:
            assert message.keys() <= OPENAIS[message["role"]], message
            if message["role"] == "tool":  # each behind its call, before anything else is said
                open_calls.remove(message["tool_call_id"])
                assert isinstance(message["content"], str)
            else:
                assert not open_calls
                open_calls = {call["id"] for call in message.get("tool_calls", ())}
        assert all(tool.keys() == {"type", "function"} for tool in body.get("tools", ()))


def test_anthropic_is_sent_what_the_session_says() -> None:
    asked = [recorded["body"] for recorded in SESSION if "count_tokens" not in recorded["path"]]
    for request, payload in zip(asked, _payloads(), strict=True):
        body = messages_request(payload, "m", stream=bool(request.get("stream")), quirks={})
        sent = json.loads(msgspec.json.encode(body))
        expected = json.loads(json.dumps({**request, "model": "m", "stream": bool(request.get("stream"))}))
        expected.pop("context_management", None)  # which clears nothing here
        if not expected.get("tools"):
            expected.pop("tools", None)
        elif "tool_choice" not in expected:
            expected["tool_choice"] = {"type": "auto"}
        messages: list[Any] = []
        for message in expected[
            "messages"
        ]:  # a text is said as a block, and what follows of one role as one turn
            if isinstance(message["content"], str):
                message["content"] = [{"type": "text", "text": message["content"]}]
            for block in message["content"]:
                if isinstance(block.get("content"), str):
                    block["content"] = [{"type": "text", "text": block["content"]}]
            if messages and messages[-1]["role"] == message["role"]:
                messages[-1]["content"] += message["content"]
            else:
                messages.append(message)
        expected["messages"] = messages
        assert sent == expected


def _payloads() -> list[bytes]:
    from fairlane.gateway.core.bodies import parse_object
    from fairlane.gateway.messages.request import chat_of

    requests = [recorded["body"] for recorded in SESSION if "count_tokens" not in recorded["path"]]
    return [
        chat_of(parse_object(json.dumps(one).encode()), stream=bool(one.get("stream"))).payload
        for one in requests
    ]
