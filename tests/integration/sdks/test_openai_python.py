"""openai-python, sync and async: what is asked, streamed, embedded and listed comes as the SDK's users know it."""

import struct
from base64 import b64decode
from typing import Any

import openai
import pytest

from .cast import CALLS, LOGPROBS, TOO_LONG, VECTOR
from .openais import Sdk
from .stage import MESSAGES, Stage

pytestmark = pytest.mark.anyio
CHAT = "chat.completions.create"
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("weather", "clock")]


def text_of(chunks: list[Any], index: int = 0) -> str:
    """What the chunks of one choice say together."""
    return "".join(
        choice.delta.content or "" for chunk in chunks for choice in chunk.choices if choice.index == index
    )


# ---- answers ----------


async def test_a_completion_is_made_of_the_workers_chunks(sdk: Sdk) -> None:
    completion = await sdk.call(CHAT, model="talk", messages=MESSAGES)
    assert completion.object == "chat.completion"
    assert completion.model == "talk"
    assert completion.id.startswith("chatcmpl-")
    (choice,) = completion.choices
    assert choice.message.content == "Hello wörld"
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert (choice.logprobs, choice.message.refusal) == (None, None)
    usage = completion.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (5, 3, 8)


async def test_a_workers_own_completion_passes_through_with_unknown_members(sdk: Sdk) -> None:
    completion = await sdk.call(CHAT, model="whole", messages=MESSAGES, logprobs=True)
    assert completion.id == "chatcmpl-whole"
    assert completion.model == "upstream-name"
    assert completion.system_fingerprint == "fp_1"
    assert completion.weather_on_the_moon == {"calm": True}
    assert completion.choices[0].logprobs.to_dict() == LOGPROBS
    assert completion.choices[0].message.reasoning_content == "Let me see"
    assert completion.usage.completion_tokens_details.reasoning_tokens == 2


async def test_every_member_of_a_request_reaches_the_worker(stage: Stage, sdk: Sdk) -> None:
    more = {
        "temperature": 0.25,
        "max_completion_tokens": 7,
        "seed": 2**53,
        "stop": ["\n", "ende"],
        "metadata": {"team": "blue"},
        "response_format": {"type": "json_object"},
        "user": "somebody",
        "tools": TOOLS,
    }
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "what?"}, image]}]
    extra = {
        "chat_template_kwargs": {"enable_thinking": False},
        "mode": "fast",
        "priority": -1,
        "timeout": "x",
    }
    await sdk.call(CHAT, model="talk", messages=messages, extra_body=extra, **more)
    assert stage.cast.seen == [{"model": "talk", "messages": messages, **more, **extra}]


async def test_a_stream_brings_role_text_and_finish_reason(sdk: Sdk) -> None:
    chunks = await sdk.chunks(CHAT, model="talk", messages=MESSAGES)
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert text_of(chunks) == "Hello wörld"
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


async def test_usage_comes_last_and_only_where_it_was_asked_for(sdk: Sdk) -> None:
    options = {"include_usage": True}
    chunks = await sdk.chunks(CHAT, model="talk", messages=MESSAGES, stream_options=options)
    assert text_of(chunks) == "Hello wörld"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == 8
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_the_stream_helper_puts_a_completion_together(sdk: Sdk) -> None:
    events, final = await sdk.helper(model="talk", messages=MESSAGES, stream_options={"include_usage": True})
    assert "".join(event.delta for event in events if event.type == "content.delta") == "Hello wörld"
    assert [event.content for event in events if event.type == "content.done"] == ["Hello wörld"]
    assert final.choices[0].message.content == "Hello wörld"
    assert final.choices[0].finish_reason == "stop"
    assert final.usage.completion_tokens == 3


@pytest.mark.parametrize("model", ["tools", "whole-tools"])
async def test_several_tool_calls_come_back(stage: Stage, sdk: Sdk, model: str) -> None:
    choice = "required"
    completion = await sdk.call(CHAT, model=model, messages=MESSAGES, tools=TOOLS, tool_choice=choice)
    assert [call.to_dict() for call in completion.choices[0].message.tool_calls] == CALLS
    assert completion.choices[0].message.content is None
    assert completion.choices[0].finish_reason == "tool_calls"
    assert stage.cast.seen[0]["tools"] == TOOLS
    assert stage.cast.seen[0]["tool_choice"] == "required"


async def test_the_stream_helper_puts_tool_calls_together(sdk: Sdk) -> None:
    _, final = await sdk.helper(model="tools", messages=MESSAGES, tools=TOOLS)
    calls = final.choices[0].message.tool_calls
    assert [(call.id, call.function.name, call.function.arguments) for call in calls] == [
        (call["id"], call["function"]["name"], call["function"]["arguments"]) for call in CALLS
    ]


async def test_several_choices(sdk: Sdk) -> None:
    completion = await sdk.call(CHAT, model="choices", messages=MESSAGES, n=2)
    assert [(choice.index, choice.message.content) for choice in completion.choices] == [
        (0, "one /0 two/0 "),
        (1, "one /1 two/1 "),
    ]
    assert [choice.finish_reason for choice in completion.choices] == ["stop", "length"]
    chunks = await sdk.chunks(CHAT, model="choices", messages=MESSAGES, n=2)
    assert [text_of(chunks, index) for index in (0, 1)] == ["one /0 two/0 ", "one /1 two/1 "]
    ends = {c.index: c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason}
    assert ends == {0: "stop", 1: "length"}


async def test_reasoning_and_log_probabilities_come_back(sdk: Sdk) -> None:
    completion = await sdk.call(CHAT, model="thinker", messages=MESSAGES)
    assert completion.choices[0].message.reasoning_content == "Let me see"
    assert completion.choices[0].message.content == "Yes"
    assert completion.choices[0].logprobs.to_dict() == LOGPROBS
    chunks = await sdk.chunks(CHAT, model="thinker", messages=MESSAGES)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(getattr(delta, "reasoning_content", "") for delta in deltas) == "Let me see"
    assert text_of(chunks) == "Yes"
    told = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]
    assert [logprobs.to_dict() for logprobs in told] == [LOGPROBS]


async def test_completions(stage: Stage, sdk: Sdk) -> None:
    completion = await sdk.call("completions.create", model="talk", prompt="Once", suffix="!", echo=False)
    assert completion.object == "text_completion"
    assert completion.choices[0].text == " upon a time"
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage.total_tokens == 4
    assert stage.cast.seen == [{"model": "talk", "prompt": "Once", "suffix": "!", "echo": False}]
    options = {"include_usage": True}
    chunks = await sdk.chunks("completions.create", model="talk", prompt="Once", stream_options=options)
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == " upon a time"
    assert chunks[-1].usage.total_tokens == 4


async def test_embeddings_in_the_sdks_own_encoding_and_as_floats(stage: Stage, sdk: Sdk) -> None:
    create = "embeddings.create"
    embeddings = await sdk.call(create, model="vectors", input=["a", "b"])
    assert [(item.index, item.embedding) for item in embeddings.data] == [(0, VECTOR), (1, VECTOR)]
    assert embeddings.usage.total_tokens == 2
    assert stage.cast.seen[0]["encoding_format"] == "base64"  # the SDK asks so when its user says nothing
    floats = await sdk.call(create, model="vectors", input="a", encoding_format="float", dimensions=3)
    assert floats.data[0].embedding == VECTOR
    assert stage.cast.seen[1]["dimensions"] == 3
    packed = await sdk.call(create, model="vectors", input="a", encoding_format="base64")
    assert list(struct.unpack("<3f", b64decode(packed.data[0].embedding))) == VECTOR


async def test_models_are_listed_and_looked_up(sdk: Sdk) -> None:
    page = await sdk.call("models.list")
    names = [model.id for model in page.data]
    assert names == sorted(names)
    assert {"talk", "whole-tools", "vectors"} <= set(names)
    model = await sdk.call("models.retrieve", model="talk")
    assert (model.id, model.object) == ("talk", "model")
    with pytest.raises(openai.NotFoundError):
        await sdk.call("models.retrieve", model="org/nobody has:this")


async def test_every_answer_has_a_request_id_and_a_task_id(sdk: Sdk) -> None:
    completion = await sdk.call(CHAT, model="talk", messages=MESSAGES)
    assert completion._request_id.startswith("req_")
    raw = await sdk.call("chat.completions.with_raw_response.create", model="talk", messages=MESSAGES)
    assert raw.request_id == raw.headers["x-request-id"] != completion._request_id
    assert raw.parse().id == f"chatcmpl-{raw.headers['x-task-id']}"
    streamed = "chat.completions.with_raw_response.create"
    raw = await sdk.call(streamed, model="talk", messages=MESSAGES, stream=True)
    assert raw.request_id.startswith("req_")
    assert raw.headers["x-task-id"]
    with pytest.raises(openai.NotFoundError) as caught:
        await sdk.call(CHAT, model="nobody-has-this", messages=MESSAGES)
    assert caught.value.request_id
    assert caught.value.request_id.startswith("req_")


# ---- failures in a stream ----------


async def test_a_failure_in_the_middle_of_a_stream_raises_with_its_message(sdk: Sdk) -> None:
    with pytest.raises(openai.APIError, match="The model fell over") as caught:
        await sdk.chunks(CHAT, model="breaks", messages=MESSAGES)
    assert caught.value.code == "UPSTREAM_ERROR"
    assert caught.value.type == "server_error"
    with pytest.raises(openai.APIError, match="The model fell over"):
        await sdk.helper(model="breaks", messages=MESSAGES)


async def test_a_stream_that_fails_before_its_first_word_raises_as_a_call_does(sdk: Sdk) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length") as caught:
        await sdk.chunks(CHAT, model="refuses", messages=MESSAGES)
    assert caught.value.code == "context_length_exceeded"
    assert TOO_LONG in caught.value.message
    with pytest.raises(openai.InternalServerError) as failed:
        await sdk.chunks(CHAT, model="busy", messages=MESSAGES)
    assert failed.value.status_code == 503


async def test_a_caller_who_closes_a_stream_stops_the_worker(stage: Stage, sdk: Sdk) -> None:
    assert await sdk.leave(model="endless", messages=MESSAGES) == "first "
    await stage.reached(stage.cast.cancelled, "the cancel at the worker")
