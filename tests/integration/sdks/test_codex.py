"""Codex's requests, as sessions of it send them: a chat worker serves them, and its calls come back as Codex's own tools."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.codex import SESSIONS
from tests.support.serving import DEADLINE_S, http_client, serving, until

from fairlane.workers.sdk import Context, Delta, Task, Worker

pytestmark = pytest.mark.anyio
FUNCTIONS = (
    ("exec_command", "multi_agent_v1__close_agent"),
    ("apply_patch", "tool_search"),
    ("functions__exec", "collaboration__list_agents"),
)
"""The functions that the model calls in each session."""
CALLS = ("function_call", "custom_tool_call", "tool_search_call")


def arguments_of(item: dict[str, Any]) -> str:
    """What a chat model says to call a tool as this item does."""
    if item["type"] == "custom_tool_call":
        return json.dumps({"input": item["input"]})
    arguments = item["arguments"]
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


async def test_a_chat_worker_runs_codex(redis_url: str, tmp_path: Path) -> None:
    planned: list[list[Delta]] = []
    seen: list[Any] = []
    async with serving(redis_url, tmp_path) as served, http_client(served.url, timeout=DEADLINE_S) as http:
        worker = Worker("coder", gateway=served.url, slots=1)

        @worker.handler([body["model"] for body in SESSIONS])
        async def handle(task: Task, _: Context) -> AsyncIterator[Any]:
            seen.append(task.payload)
            for delta in planned.pop(0):
                yield delta

        stop = asyncio.Event()
        working = asyncio.create_task(worker.serve(stop, stop))
        try:
            await until(lambda: any(True for _ in served.gateway.dispatcher.pool), "the worker")
            for session, names in zip(SESSIONS, FUNCTIONS, strict=True):
                items = session["input"]
                places = [at for at, item in enumerate(items) if item.get("type") in CALLS]
                for at, name in zip(places, names, strict=True):
                    item = items[at]
                    for stream in (True, False):
                        planned.append(pieces(item["call_id"], name, arguments_of(item)))
                        body = {**session, "input": items[:at], "stream": stream}
                        answer = await http.post("/v1/responses", json=body)
                        assert answer.status_code == 200, answer.text
                        shown = ended(answer.text) if stream else answer.json()
                        (output,) = shown["output"]
                        assert {**output, "id": item["id"]} == item
                planned.append([Delta(content="Done.")])
                answer = await http.post("/v1/responses", json={**session, "stream": False})
                assert answer.json()["output"][0]["content"][0]["text"] == "Done."
                check_chat(seen[-1], names)
        finally:
            stop.set()
            async with asyncio.timeout(DEADLINE_S):
                await working


def pieces(call_id: str, name: str, arguments: str) -> list[Delta]:
    head = {"index": 0, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
    parts = [{"index": 0, "function": {"arguments": one}} for one in (arguments[:7], arguments[7:])]
    return [Delta(tool_calls=msgspec.Raw(msgspec.json.encode([one]))) for one in (head, *parts)]


def ended(stream: str) -> dict[str, Any]:
    response: dict[str, Any] = json.loads(stream.split("data: ")[-2])["response"]
    return response


def check_chat(payload: dict[str, Any], names: tuple[str, ...]) -> None:
    """Check that the model is offered the functions that it called, and that each call has its result."""
    offered = {tool["function"]["name"] for tool in payload["tools"]}
    called = [call for message in payload["messages"] for call in message.get("tool_calls", ())]
    results = {message["tool_call_id"] for message in payload["messages"] if message["role"] == "tool"}
    assert [call["function"]["name"] for call in called] == list(names)
    assert set(names) <= offered
    assert "web_search" not in offered
    assert {call["id"] for call in called} == results


async def test_a_websocket_of_codex_is_sent_to_http(redis_url: str, tmp_path: Path) -> None:
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    async with serving(redis_url, tmp_path) as served, http_client(served.url) as http:
        answer = await http.get("/v1/responses", headers=headers)
        assert answer.status_code == 426
        assert answer.json()["error"]["code"] == "UPGRADE_REQUIRED"
