"""openai-node and Vercel's AI SDK, unmodified, on the Responses API; the AI SDK speaks it by default."""

from pathlib import Path
from typing import Any

import pytest

from .cast import CALLS, TOO_LONG
from .nodes import run_node
from .stage import Stage

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
CALLED = [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in CALLS]


def called(items: list[Any]) -> list[Any]:
    return [(item["call_id"], item["name"], item["arguments"]) for item in items]


# ---- openai-node ----------


async def test_a_response_its_stream_and_its_helper(stage: Stage, node_project: Path) -> None:
    told = await run_node(node_project, "responses", stage.base_url)
    assert (told["whole"]["status"], told["whole"]["object"]) == ("completed", "response")
    assert told["text"] == told["final"] == "".join(told["deltas"]) == "Hello wörld"
    events = told["events"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert (events[0]["type"], events[-1]["type"]) == ("response.created", "response.completed")


async def test_calls_and_their_results(stage: Stage, node_project: Path) -> None:
    told = await run_node(node_project, "responses_tools", stage.base_url)
    assert called(told["called"]) == called(told["streamed"]) == CALLED
    assert told["answer"] == "Hello wörld"
    roles = [message["role"] for message in stage.cast.seen[-1]["messages"]]
    assert roles == ["user", "assistant", "tool", "tool"]


async def test_what_cannot_be_said_and_what_fails(stage: Stage, node_project: Path) -> None:
    refused = await run_node(node_project, "responses_bad_request", stage.base_url)
    assert (refused["name"], refused["status"]) == ("BadRequestError", 400)
    assert refused["body"]["param"] == "tools[0].type"
    last = await run_node(node_project, "responses_break", stage.base_url)
    assert (last["type"], last["response"]["error"]["message"]) == ("response.failed", "The model fell over")


# ---- the AI SDK ----------


async def test_the_ai_sdk_generates_and_streams_text(stage: Stage, node_project: Path) -> None:
    told = await run_node(node_project, "text", stage.base_url, client="ai.mjs")
    assert (told["text"], told["finishReason"]) == ("Hello wörld", "stop")
    assert (told["usage"]["inputTokens"], told["usage"]["outputTokens"]) == (5, 3)
    assert told["id"].startswith("resp_")
    streamed = told["streamed"]
    assert (streamed["text"], streamed["finish"], streamed["errors"]) == ("Hello wörld", "stop", [])
    assert stage.cast.seen[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    ]


async def test_the_ai_sdk_runs_tools_also_where_it_refers_to_what_is_kept(
    stage: Stage, node_project: Path
) -> None:
    told = await run_node(node_project, "tools", stage.base_url, client="ai.mjs")
    assert (told["text"], told["steps"]) == ("fair in Oslo", ["tool-calls", "stop"])
    assert [(one["text"], one["errors"]) for one in told["others"]] == [("fair in Oslo", [])] * 2
    roles = [message["role"] for message in stage.cast.seen[-1]["messages"]]
    assert roles == ["user", "assistant", "tool"]


async def test_the_ai_sdk_shows_thoughts(stage: Stage, node_project: Path) -> None:
    told = await run_node(node_project, "reasoning", stage.base_url, client="ai.mjs")
    assert (told["text"], told["reasoningText"]) == ("Yes", "Let me see")
    assert (told["streamed"]["text"], told["streamed"]["reasoning"]) == ("Yes", "Let me see")
    assert stage.cast.seen[0]["reasoning_effort"] == "low"


async def test_the_ai_sdk_notices_failures(stage: Stage, node_project: Path) -> None:
    broken = await run_node(node_project, "breaks", stage.base_url, client="ai.mjs")
    assert broken["text"] == "half of "
    assert broken["errors"] or broken["finish"] == "error"
    refused = await run_node(node_project, "refuses", stage.base_url, client="ai.mjs")
    assert (refused["ours"], refused["status"], TOO_LONG in refused["message"]) == (True, 400, True)
