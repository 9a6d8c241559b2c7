"""openai-node: responses in the background, polled, streamed, resumed, cancelled, deleted, and gone on from."""

from pathlib import Path

import pytest

from .nodes import run_node
from .stage import Stage

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
CLIENT = "kept.mjs"


async def test_it_is_polled_until_it_has_ended(stage: Stage, node_project: Path) -> None:
    told = await run_node(node_project, "background", stage.base_url, client=CLIENT)
    assert (told["asked"]["status"], told["asked"]["background"]) == ("queued", True)
    assert (told["done"]["status"], told["text"]) == ("completed", "Hello wörld")


async def test_resumed_behind_each_event_the_rest_comes(stage: Stage, node_project: Path) -> None:
    told = await run_node(node_project, "resumed", stage.base_url, client=CLIENT)
    whole = told["whole"]
    assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
    assert whole[-1]["type"] == "response.completed"
    assert told["again"] == whole
    assert told["rests"] == [whole[at + 1 :] for at in range(len(whole))]


async def test_the_stream_helper_by_id(stage: Stage, node_project: Path) -> None:
    told = await run_node(node_project, "helper", stage.base_url, client=CLIENT)
    assert [event["sequence_number"] for event in told["seen"]] == list(range(5, 5 + len(told["seen"])))
    assert told["final"]["output"][0]["content"][0]["text"] == "Hello wörld"


async def test_it_is_cancelled_and_deleted(stage: Stage, node_project: Path) -> None:
    told = await run_node(node_project, "cancelled", stage.base_url, client=CLIENT)
    assert [told[name]["status"] for name in ("told", "again", "then")] == ["cancelled"] * 3
    gone = await run_node(node_project, "deleted", stage.base_url, client=CLIENT)
    assert (gone["name"], gone["status"]) == ("NotFoundError", 404)


async def test_a_conversation_goes_on_by_its_last_id(stage: Stage, node_project: Path) -> None:
    told = await run_node(node_project, "conversation", stage.base_url, client=CLIENT)
    assert told["second"]["previous_response_id"] == told["first"]["id"]
    roles = [message["role"] for message in stage.cast.seen[-1]["messages"]]
    assert roles == ["user", "assistant", "user"]
    assert [item["content"][0]["text"] for item in told["items"]] == ["and?"]
    unknown = await run_node(node_project, "unknown", stage.base_url, client=CLIENT)
    assert (unknown["name"], unknown["code"]) == ("BadRequestError", "previous_response_not_found")
