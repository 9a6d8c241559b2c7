"""@anthropic-ai/sdk, unmodified: messages, streams, tools, thoughts, models, and how failures are raised, retried and left."""

import json
from functools import partial
from pathlib import Path

import pytest

from fairlane.gateway.accounts.callers import digest
from fairlane.gateway.settings import CallerKey

from .cast import CALLS
from .nodes import first_status, node, outcome, run_node
from .stage import MESSAGES, Stage, staged

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
run = partial(run_node, client="anthropic.mjs")


async def test_a_message_its_stream_and_the_helper(stage: Stage, node_project: Path) -> None:
    message = await run(node_project, "create", stage.served.url)
    assert message["content"] == [{"type": "text", "text": "Hello wörld"}]
    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("end_turn", 3)
    assert stage.cast.seen == [{"model": "talk", "messages": MESSAGES, "max_tokens": 64}]
    events = await run(node_project, "stream", stage.served.url)
    texts = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(texts) == "Hello wörld"
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    told = await run(node_project, "helper", stage.served.url)
    assert "".join(told["texts"]) == told["final"]["content"][0]["text"] == "Hello wörld"
    assert told["final"]["usage"]["input_tokens"] == 5


async def test_thoughts_and_tools(stage: Stage, node_project: Path) -> None:
    told = await run(node_project, "thinker", stage.served.url)
    for message in (told["whole"], told["final"]):
        assert message["content"] == [
            {"type": "thinking", "thinking": "Let me see", "signature": ""},
            {"type": "text", "text": "Yes"},
        ]
    told = await run(node_project, "tools", stage.served.url)
    for message in (told["whole"], told["final"]):
        assert [(block["id"], block["name"], block["input"]) for block in message["content"]] == [
            (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in CALLS
        ]
        assert message["stop_reason"] == "tool_use"


async def test_models_counts_betas_and_ids(stage: Stage, node_project: Path) -> None:
    told = await run(node_project, "models", stage.served.url)
    assert {"talk", "vectors"} <= set(told["names"])
    assert told["names"] == sorted(set(told["names"]))
    assert told["one"]["type"] == "model"
    counted = await run(node_project, "count", stage.served.url)
    assert counted["input_tokens"] >= 1
    assert (await run(node_project, "beta", stage.served.url))["stop_reason"] == "end_turn"
    ids = await run(node_project, "ids", stage.served.url)
    assert ids["request_id"] == ids["inBody"]
    assert ids["task"]


@pytest.mark.parametrize(
    ("scenario", "name", "status", "kind", "code"),
    [
        ("unknown_model", "NotFoundError", 404, "not_found_error", "MODEL_NOT_FOUND"),
        ("bad_request", "BadRequestError", 400, "invalid_request_error", "INVALID_REQUEST"),
    ],
)
async def test_refusals_are_the_right_exceptions(
    stage: Stage, node_project: Path, scenario: str, name: str, status: int, kind: str, code: str
) -> None:
    told = await run(node_project, scenario, stage.served.url, maxRetries=2)
    assert (told["name"], told["status"], told["type"]) == (name, status, kind)
    assert told["body"]["error"]["details"] == {"error_code": code}
    assert told["requestID"] == told["body"]["request_id"]
    assert told["statuses"] == [status]


async def test_a_wrong_key(redis_url: str, tmp_path: Path, node_project: Path) -> None:
    key = CallerKey(id="team", sha256=digest("right"))
    async with staged(redis_url, tmp_path, keys=[key], key="right") as stage:
        told = await run(node_project, "unauthorized", stage.served.url, apiKey="wrong")
        assert (told["name"], told["type"]) == ("AuthenticationError", "authentication_error")
        assert (await run(node_project, "create", stage.served.url, apiKey="right"))["stop_reason"]


async def test_a_full_queue_and_a_deadline(redis_url: str, tmp_path: Path, node_project: Path) -> None:
    async with staged(redis_url, tmp_path, slots=1, max_queue_length=1, min_task_timeout_ms=100) as stage:
        stage.beside(stage.fill())
        await stage.reached(stage.cast.begun, "the running task")
        headers = {"x-fairlane-timeout": "300"}
        told = await run(node_project, "timeout", stage.served.url, maxRetries=2, defaultHeaders=headers)
        assert (told["status"], told["type"], told["statuses"]) == (504, "timeout_error", [504])
        stage.beside(stage.fill())
        await stage.queued(1)
        told = await run(node_project, "queue_full", stage.served.url)
        assert (told["status"], told["type"]) == (529, "overloaded_error")


async def test_a_stream_that_breaks_raises_with_the_sentence(stage: Stage, node_project: Path) -> None:
    told = await run(node_project, "breaks", stage.served.url)
    assert "".join(told["before"]) == "half of "
    assert "The model fell over" in told["message"]
    assert told["type"] == "api_error"


@pytest.mark.parametrize("scenario", ["leave", "abort"])
async def test_who_leaves_cancels_the_task(stage: Stage, node_project: Path, scenario: str) -> None:
    assert (await run(node_project, scenario, stage.served.url))["text"] == "first "
    await stage.reached(stage.cast.cancelled, "the cancellation")


@pytest.mark.parametrize("scenario", ["waits", "waits_raw"])
async def test_pings_of_a_stream_that_waits_disturb_nothing(
    crowded: Stage, node_project: Path, scenario: str
) -> None:
    async with node(node_project, scenario, crowded.served.url, client="anthropic.mjs") as child:
        assert await first_status(child) == 200
        crowded.cast.release.set()
        told = await outcome(child)
    if scenario == "waits":
        assert told["final"]["content"][0]["text"] == "Hello wörld"
    else:
        assert told[0]["type"] == "message_start"
        assert told[-1]["type"] == "message_stop"
