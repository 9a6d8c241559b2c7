"""@anthropic-ai/sdk, unmodified: messages, streams, thoughts, tools, and how failures are raised."""

import json
from functools import partial
from pathlib import Path

import pytest

from .cast import CALLS
from .nodes import first_status, node, outcome, run_node
from .stage import MESSAGES, Stage

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
run = partial(run_node, client="anthropic.mjs")


async def test_a_message_its_stream_and_the_helper(stage: Stage, node_project: Path) -> None:
    message = await run(node_project, "create", stage.served.url)
    assert message["content"] == [{"type": "text", "text": "Hello wörld"}]
    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("end_turn", 3)
    assert stage.cast.seen == [{"model": "talk", "messages": MESSAGES, "max_completion_tokens": 64}]
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


async def test_a_stream_that_breaks_raises_with_the_sentence(stage: Stage, node_project: Path) -> None:
    told = await run(node_project, "breaks", stage.served.url)
    assert "".join(told["before"]) == "half of "
    assert "The model fell over" in told["message"]
    assert told["type"] == "api_error"


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
