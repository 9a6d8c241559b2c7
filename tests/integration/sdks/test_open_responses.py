"""The cases of Open Responses' compliance suite (openresponses.org/compliance), rebuilt: what is asked and must be answered.

The suite itself is no package. Its requests have these shapes; its schemas are those of the specification, of which the required
members are listed here.
"""

import json
from typing import Any

import pytest
from tests.support.serving import http_client

from .stage import Stage

pytestmark = pytest.mark.anyio
RESPONSE = {
    **dict.fromkeys(("id", "status", "model", "truncation", "service_tier"), str),
    **dict.fromkeys(("created_at", "top_logprobs"), int),
    **dict.fromkeys(("top_p", "presence_penalty", "frequency_penalty", "temperature"), (int, float)),
    **dict.fromkeys(("parallel_tool_calls", "store", "background"), bool),
    **dict.fromkeys(("output", "tools"), list),
    "text": dict,
    "tool_choice": (str, dict),
}
MAYBE = {
    **dict.fromkeys(("completed_at", "max_output_tokens", "max_tool_calls"), int),
    **dict.fromkeys(("incomplete_details", "error", "reasoning", "usage"), dict),
    **dict.fromkeys(("previous_response_id", "instructions", "safety_identifier", "prompt_cache_key"), str),
    "user": str,
}
ITEMS: dict[str, dict[str, Any]] = {
    "message": {"id": str, "status": str, "role": str, "content": list},
    "function_call": {"id": str, "call_id": str, "name": str, "arguments": str, "status": str},
    "reasoning": {"id": str, "summary": list},
}
PARTS: dict[str, dict[str, Any]] = {
    "output_text": {"text": str, "annotations": list},
    "refusal": {"refusal": str},
    "reasoning_text": {"text": str},
}
PLACED = {"item_id": str, "output_index": int}
EVENTS: dict[str, dict[str, Any]] = {
    **{
        f"response.{state}": {"response": dict} for state in ("created", "queued", "in_progress", "completed")
    },
    **{f"response.output_item.{step}": {"output_index": int, "item": dict} for step in ("added", "done")},
    **{
        f"response.content_part.{step}": {**PLACED, "content_index": int, "part": dict}
        for step in ("added", "done")
    },
    "response.output_text.delta": {**PLACED, "content_index": int, "delta": str},
    "response.output_text.done": {**PLACED, "content_index": int, "text": str},
    "response.function_call_arguments.delta": {**PLACED, "delta": str},
    "response.function_call_arguments.done": {**PLACED, "arguments": str},
}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather at a place.",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string", "description": "A city, such as Oslo"}},
        "required": ["location"],
    },
}
HEART = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="


def said(content: Any, role: str = "user") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "basic-response": ("talk", {"input": [said("Say hello in three words.")]}),
    "streaming-response": ("talk", {"input": [said("Count to five.")], "stream": True}),
    "system-prompt": ("talk", {"input": [said("Speak as pirates do.", "system"), said("Say hello.")]}),
    "tool-calling": ("tools", {"input": [said("How is the weather in Oslo?")], "tools": [WEATHER]}),
    "tool-calling-streaming": (
        "tools",
        {"input": [said("How is the weather in Oslo?")], "tools": [WEATHER], "stream": True},
    ),
    "image-input": (
        "talk",
        {
            "input": [
                said(
                    [
                        {"type": "input_text", "text": "What is in this image?"},
                        {"type": "input_image", "image_url": HEART},
                    ]
                )
            ]
        },
    ),
    "file-input": (
        "talk",
        {
            "input": [
                said(
                    [
                        {"type": "input_text", "text": "What is the title of this file?"},
                        {
                            "type": "input_file",
                            "filename": "a.pdf",
                            "file_data": "data:application/pdf;base64,JVBERi0xLjEK",
                        },
                    ]
                )
            ]
        },
    ),
    "multi-turn": (
        "talk",
        {"input": [said("My name is Alice."), said("Hello Alice!", "assistant"), said("What is my name?")]},
    ),
}


def has(found: dict[str, Any], wanted: dict[str, Any], *, maybe: bool = False) -> None:
    for name, kinds in wanted.items():
        assert name in found, name
        value = found[name]
        if maybe and value is None:
            continue
        assert isinstance(value, kinds), (name, value)
        assert not isinstance(value, bool) or kinds is bool, (name, value)


def check_item(item: dict[str, Any]) -> None:
    has(item, ITEMS[item["type"]])
    for part in item.get("content", ()):
        has(part, PARTS[part["type"]])


def check_response(found: dict[str, Any]) -> None:
    assert found["object"] == "response"
    assert "metadata" in found
    has(found, RESPONSE)
    has(found, MAYBE, maybe=True)
    for item in found["output"]:
        check_item(item)
    for tool in found["tools"]:
        assert tool.keys() >= {"type", "name", "description", "parameters", "strict"}
    if found["usage"] is not None:
        has(found["usage"], dict.fromkeys(("input_tokens", "output_tokens", "total_tokens"), int))
        assert isinstance(found["usage"]["input_tokens_details"]["cached_tokens"], int)
        assert isinstance(found["usage"]["output_tokens_details"]["reasoning_tokens"], int)


def check_events(stream: str) -> list[dict[str, Any]]:
    """The events of a stream, each as the specification has it; `[DONE]` is the last."""
    told = []
    *blocks, last, rest = stream.split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    for block in blocks:
        event, data = block.split("\n")
        found = json.loads(data.removeprefix("data: "))
        assert event == f"event: {found['type']}"
        has(found, {**EVENTS[found["type"]], "sequence_number": int})
        if "response" in found:
            check_response(found["response"])
        if "item" in found:
            check_item(found["item"])
        if "part" in found:
            has(found["part"], PARTS[found["part"]["type"]])
        told.append(found)
    return told


ROUNDS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "previous-response-id": ("talk", {"input": "Remember this word: papaya."}, "Which word was it?"),
    "function-call-roundtrip": (
        "tools-once",
        {
            "input": "How warm is it in Oslo?",
            "tools": [WEATHER],
            "tool_choice": {"type": "function", "name": "get_weather"},
        },
        [{"type": "function_call_output", "call_id": "call_a", "output": "18 degrees"}],
    ),
}
"""What comes in two requests: the second names the first one's response."""


@pytest.mark.parametrize("case", ROUNDS)
async def test_case_in_two_rounds(stage: Stage, case: str) -> None:
    model, asked, then = ROUNDS[case]
    async with http_client(stage.served.url, headers={"Authorization": "Bearer none"}) as http:
        first = (await http.post("/v1/responses", json={"model": model, **asked})).json()
        check_response(first)
        again = {"model": model, "previous_response_id": first["id"], "input": then}
        answer = await http.post("/v1/responses", json=again)
    assert answer.status_code == 200, answer.text
    second = answer.json()
    check_response(second)
    assert (second["status"], second["previous_response_id"]) == ("completed", first["id"])
    assert second["output"]
    if model == "tools-once":
        assert [item["call_id"] for item in first["output"]] == ["call_a"]
        assert second["output"][0]["content"][0]["text"] == "18 degrees"


@pytest.mark.parametrize("case", CASES)
async def test_case(stage: Stage, case: str) -> None:
    model, asked = CASES[case]
    async with http_client(stage.served.url, headers={"Authorization": "Bearer none"}) as http:
        answer = await http.post("/v1/responses", json={"model": model, "stream": False, **asked})
    assert answer.status_code == 200, answer.text
    if asked.get("stream"):
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = check_events(answer.text)
        response = events[-1]["response"]
        kinds = [event["type"] for event in events]
        assert kinds[-1] == "response.completed"
        if model == "tools":
            assert {"response.function_call_arguments.delta", "response.function_call_arguments.done"} <= {
                *kinds
            }
            for step in ("added", "done"):
                items = [
                    one["item"]["type"] for one in events if one["type"] == f"response.output_item.{step}"
                ]
                assert "function_call" in items
    else:
        response = answer.json()
        check_response(response)
    assert response["status"] == "completed"
    assert response["output"]
    if model == "tools":
        assert "function_call" in [item["type"] for item in response["output"]]
