"""openai-python, sync and async, unmodified: responses, their streams and helpers, tools, thoughts, schemas, errors."""

from typing import Any

import openai
import pytest
from pydantic import BaseModel

from .cast import CALLS, LOGPROBS, TOO_LONG
from .openais import Sdk, python_sdk
from .stage import Stage

pytestmark = pytest.mark.anyio
CREATE = "responses.create"
TOOLS: list[Any] = [
    {"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("weather", "clock")
]
CHAT_TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("weather", "clock")
]
CALLED = [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in CALLS]


def called(response: Any) -> list[Any]:
    return [
        (item.call_id, item.name, item.arguments) for item in response.output if item.type == "function_call"
    ]


async def test_a_response(stage: Stage, sdk: Sdk) -> None:
    response = await sdk.call(CREATE, model="talk", input="hi", instructions="Be brief.", metadata={"a": "b"})
    assert (response.object, response.status, response.model) == ("response", "completed", "talk")
    assert response.output_text == "Hello wörld"
    (message,) = response.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert response.id.startswith("resp_")
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (
        5,
        3,
        8,
    )
    assert (response.instructions, response.metadata, response.error) == ("Be brief.", {"a": "b"}, None)
    assert response.completed_at >= response.created_at
    assert response._request_id.startswith("req_")
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert stage.cast.seen == [{"model": "talk", "messages": chat}]


async def test_a_stream_and_its_helper(sdk: Sdk) -> None:
    events = await sdk.chunks(CREATE, model="talk", input="hi")
    kinds = [event.type for event in events]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(texts) == events[-1].response.output_text == "Hello wörld"
    helped, final = await sdk.response(model="talk", input="hi")
    assert final.output_text == "Hello wörld"
    assert [event.snapshot for event in helped if event.type == "response.output_text.delta"][
        -1
    ] == "Hello wörld"


@pytest.mark.parametrize("model", ["tools", "whole-tools"])
async def test_calls_and_their_results_go_round(stage: Stage, sdk: Sdk, model: str) -> None:
    asked = {"model": model, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    items: list[Any] = [{"role": "user", "content": "hi"}]
    response = await sdk.call(CREATE, input=items, **asked)
    _, streamed = await sdk.response(input=items, **asked)
    assert called(response) == called(streamed) == CALLED
    assert response.status == "completed"
    items += response.output
    items += [{"type": "function_call_output", "call_id": name, "output": "fair"} for name, _, _ in CALLED]
    again = await sdk.call(CREATE, model="talk", input=items, tools=TOOLS)
    assert again.output_text == "Hello wörld"
    assert stage.cast.seen[-1]["messages"] == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": CALLS},
        {"role": "tool", "content": "fair", "tool_call_id": "call_a"},
        {"role": "tool", "content": "fair", "tool_call_id": "call_b"},
    ]
    assert stage.cast.seen[0]["tools"] == CHAT_TOOLS
    assert (stage.cast.seen[0]["tool_choice"], stage.cast.seen[0]["parallel_tool_calls"]) == (
        "required",
        False,
    )


async def test_thoughts_and_log_probabilities(stage: Stage, sdk: Sdk) -> None:
    wanted = ["message.output_text.logprobs", "reasoning.encrypted_content"]
    events = await sdk.chunks(CREATE, model="thinker", input="hi", include=wanted)
    streamed = events[-1].response
    whole = await sdk.call(CREATE, model="whole", input="hi", include=wanted)
    for response in (streamed, whole):
        thought, message = response.output
        assert (thought.type, thought.content[0].text, thought.summary) == ("reasoning", "Let me see", [])
        assert [one.to_dict() for one in message.content[0].logprobs] == LOGPROBS["content"]
    assert whole.usage.output_tokens_details.reasoning_tokens == 2
    assert stage.cast.seen[0]["logprobs"] is True
    kinds = [event.type for event in events]
    assert kinds.index("response.reasoning_text.delta") < kinds.index("response.output_text.delta")

    again = await sdk.call(
        CREATE, model="talk", input=[*streamed.output, {"role": "user", "content": "go on"}]
    )
    assert again.output_text == "Hello wörld"
    assert stage.cast.seen[-1]["messages"][0] == {
        "role": "assistant",
        "content": "Yes",
        "reasoning_content": "Let me see",
    }


class Answer(BaseModel):
    word: str


async def test_a_schema_is_a_strict_response_format(stage: Stage, sdk: Sdk) -> None:
    with pytest.raises(
        openai.InternalServerError, match="does not match its schema"
    ):  # the cast speaks no JSON
        await sdk.call("responses.parse", model="talk", input="hi", text_format=Answer)
    form = stage.cast.seen[0]["response_format"]
    assert (form["type"], form["json_schema"]["strict"]) == ("json_schema", True)
    assert form["json_schema"]["schema"]["required"] == ["word"]


# ---- what does not work ----------


async def test_what_cannot_be_said_is_named(stage: Stage, sdk: Sdk) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.call(CREATE, model="talk", input="hi", tools=[{"type": "web_search"}])
    assert (caught.value.param, caught.value.type) == ("tools[0].type", "invalid_request_error")
    assert stage.cast.seen == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_any_output_is_a_status(sdk: Sdk, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.call(CREATE, model="refuses", input="hi", stream=stream)
    assert caught.value.code == "context_length_exceeded"
    assert TOO_LONG in str(caught.value)
    with pytest.raises(openai.NotFoundError):
        await sdk.call(CREATE, model="nobody-has-this", input="hi", stream=stream)


async def test_a_failure_within_a_stream_is_a_failed_response(sdk: Sdk) -> None:
    events = await sdk.chunks(CREATE, model="breaks", input="hi")
    last = events[-1]
    assert last.type == "response.failed"
    assert (last.response.status, last.response.error.code) == ("failed", "server_error")
    assert last.response.error.message == "The model fell over"
    assert last.response.output_text == "half of "
    assert last.response.output[0].status == "incomplete"
    with pytest.raises(RuntimeError):
        await sdk.response(model="breaks", input="hi")


async def test_a_stream_that_waits_tells_that_it_is_queued(crowded: Stage, kind: str) -> None:
    async with python_sdk(kind, crowded.base_url) as sdk:
        reading = crowded.beside(sdk.chunks(CREATE, model="talk", input="hi"))
        await crowded.queued(1)
        there, raw = crowded.listen("responses", {"model": "talk", "input": "hi"}, b'"queuePosition"')
        await crowded.reached(there, "two notices")
        crowded.cast.release.set()
        events = await reading
        assert events[1].type == "response.queued"
        assert events[-1].response.output_text == "Hello wörld"
        numbers = [event.sequence_number for event in events]
        assert sorted(set(numbers)) == list(range(numbers[-1] + 1))
        assert {one for one in numbers if numbers.count(one) > 1} <= {1}
        shown = (await raw).decode()
        assert shown.startswith("event: response.created\n")
        assert shown.endswith("data: [DONE]\n\n")
