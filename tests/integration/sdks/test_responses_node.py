"""openai-node and Vercel's AI SDK, unmodified, on the Responses API; the AI SDK speaks it by default."""

from pathlib import Path

import pytest

from .nodes import run_node
from .stage import Stage

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


# ---- openai-node ----------


async def test_a_response_its_stream_and_its_helper(stage: Stage, node_project: Path) -> None:
    told = await run_node(node_project, "responses", stage.base_url)
    assert (told["whole"]["status"], told["whole"]["object"]) == ("completed", "response")
    assert told["text"] == told["final"] == "".join(told["deltas"]) == "Hello wörld"
    events = told["events"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert (events[0]["type"], events[-1]["type"]) == ("response.created", "response.completed")


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
