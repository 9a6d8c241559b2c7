"""openai-node: answers, streams and tool calls, and how failures are raised, retried and cancelled."""

from pathlib import Path
from typing import Any

import pytest

from .cast import CALLS, LOGPROBS, TOO_LONG, VECTOR
from .nodes import first_status, node, outcome, run_node
from .stage import MESSAGES, Stage, staged

pytestmark = pytest.mark.anyio


def text_of(chunks: list[Any], index: int = 0) -> str:
    """What the chunks of one choice say together."""
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def test_a_completion_and_unknown_members_both_ways(stage: Stage, node_project: Path) -> None:
    completion = await run_node(node_project, "create", stage.base_url)
    assert completion["choices"][0]["message"]["content"] == "Hello wörld"
    assert completion["usage"]["total_tokens"] == 8
    fields = {"model": "talk", "messages": MESSAGES, "user": "somebody", "fun_level": {"high": 11}}
    assert stage.cast.seen == [fields]
    whole = await run_node(node_project, "whole", stage.base_url)
    assert whole["weather_on_the_moon"] == {"calm": True}
    assert whole["choices"][0]["logprobs"] == LOGPROBS
    assert whole["choices"][0]["message"]["reasoning_content"] == "Let me see"


async def test_a_stream_with_and_without_usage(stage: Stage, node_project: Path) -> None:
    told = await run_node(node_project, "stream", stage.base_url)
    assert text_of(told["chunks"]) == text_of(told["withUsage"]) == "Hello wörld"
    assert all(chunk["choices"] for chunk in told["chunks"])
    assert told["withUsage"][-1]["choices"] == []
    assert told["withUsage"][-1]["usage"]["total_tokens"] == 8


@pytest.mark.slow
async def test_the_stream_helper(stage: Stage, node_project: Path) -> None:
    told = await run_node(node_project, "helper", stage.base_url)
    assert "".join(told["contents"]) == "Hello wörld"
    assert told["final"]["choices"][0]["message"]["content"] == "Hello wörld"
    assert told["final"]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.slow
async def test_tool_calls_in_one_piece_in_deltas_and_put_together(stage: Stage, node_project: Path) -> None:
    told = await run_node(node_project, "tools", stage.base_url)
    for body in (told["whole"], told["joined"]):
        assert body["choices"][0]["message"]["tool_calls"] == CALLS
        assert body["choices"][0]["finish_reason"] == "tool_calls"
    calls = told["final"]["choices"][0]["message"]["tool_calls"]
    assert [(call["id"], call["function"]["arguments"]) for call in calls] == [
        (call["id"], call["function"]["arguments"]) for call in CALLS
    ]
    deltas = [
        call for chunk in told["deltas"] for call in chunk["choices"][0]["delta"].get("tool_calls") or ()
    ]
    assert [delta["id"] for delta in deltas if "id" in delta] == ["call_a", "call_b"]


@pytest.mark.slow
async def test_embeddings(stage: Stage, node_project: Path) -> None:
    told = await run_node(node_project, "embeddings", stage.base_url)
    for body in (told["plain"], told["float"]):
        assert [item["embedding"] for item in body["data"]] == [VECTOR, VECTOR]
    assert [payload["encoding_format"] for payload in stage.cast.seen] == ["base64", "float"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "name", "status", "code"),
    [
        ("unknown_model", "NotFoundError", 404, "model_not_found"),
        ("bad_request", "BadRequestError", 400, "INVALID_REQUEST"),
        ("too_long", "BadRequestError", 400, "context_length_exceeded"),
        ("too_long_stream", "BadRequestError", 400, "context_length_exceeded"),
    ],
)
async def test_a_refusal_is_raised_as_its_class(
    stage: Stage, node_project: Path, scenario: str, name: str, status: int, code: str
) -> None:
    error = await run_node(node_project, scenario, stage.base_url, maxRetries=2)
    assert (error["name"], error["status"], error["code"]) == (name, status, code)
    assert error["type"] == "invalid_request_error"
    assert error["requestID"].startswith("req_")
    assert error["statuses"] == [status]
    if code == "context_length_exceeded":
        assert TOO_LONG in error["message"]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["breaks", "breaks_helper"])
async def test_a_failure_in_the_middle_of_a_stream_raises_with_its_message(
    stage: Stage, node_project: Path, scenario: str
) -> None:
    error = await run_node(node_project, scenario, stage.base_url)
    assert "".join(error["before"]) == "half of "
    assert "The model fell over" in error["message"]
    assert (error["name"], error["code"]) == ("APIError", "UPSTREAM_ERROR")


@pytest.mark.slow
async def test_a_full_queue_is_raised_and_a_retry_gets_in_once_there_is_room(
    redis_url: str, tmp_path: Path, node_project: Path
) -> None:
    async with staged(redis_url, tmp_path, slots=1, max_queue_length=1) as stage:
        stage.beside(stage.fill())
        await stage.reached(stage.cast.begun, "the running task")
        stage.beside(stage.fill())
        await stage.queued(1)
        error = await run_node(node_project, "queue_full", stage.base_url)
        assert (error["name"], error["status"], error["code"]) == ("InternalServerError", 503, "QUEUE_FULL")
        async with node(node_project, "retried", stage.base_url, maxRetries=5) as child:
            assert await first_status(child) == 503
            stage.cast.release.set()
            told = await outcome(child)
    assert told["content"] == "Hello wörld"
    assert set(told["statuses"][:-1]) == {503}
    assert told["statuses"][-1] == 200


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["leave", "abort"])
async def test_a_caller_who_leaves_a_stream_stops_the_worker(
    stage: Stage, node_project: Path, scenario: str
) -> None:
    assert await run_node(node_project, scenario, stage.base_url) == {"content": "first "}
    await stage.reached(stage.cast.cancelled, "the cancel at the worker")
