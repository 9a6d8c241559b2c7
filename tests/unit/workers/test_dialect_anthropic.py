"""OpenAI's chat as Anthropic's messages, and back."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.upstreams import anthropic_events, anthropic_message

from fairlane.workers.adapters.dialects.anthropic.answer import AnthropicReader
from fairlane.workers.adapters.dialects.anthropic.request import (
    DEFAULT_MAX_TOKENS,
    JSON_ONLY,
    messages_request,
)
from fairlane.workers.adapters.dialects.chat import Head
from fairlane.workers.adapters.failures import UpstreamSaid
from fairlane.workers.sdk import Delta, Result, TaskError, Usage

HI = [{"role": "user", "content": "hi"}]
PNG = "data:image/png;base64,aGk="
NEW, OLD = "claude-sonnet-5", "claude-haiku-4-5-20251001"


def said(payload: dict[str, Any], model: str = NEW, allowed: tuple[str, ...] = ()) -> Any:
    body = messages_request(
        msgspec.json.encode(payload), model, stream=True, quirks=dict.fromkeys(allowed, "allow")
    )
    return msgspec.json.decode(msgspec.json.encode(body))


def blocks(content: Any) -> Any:
    return said({"messages": [{"role": "user", "content": content}]})["messages"][0]["content"]


def test_a_plain_request_has_what_anthropic_wants() -> None:
    assert said({"messages": HI}) == {
        "model": NEW,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "max_tokens": DEFAULT_MAX_TOKENS,
        "stream": True,
    }


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_tokens": 5, "max_completion_tokens": 6}, {"max_tokens": 6}),
        ({"stop": "x"}, {"stop_sequences": ["x"]}),
        ({"stop": ["x", "y"]}, {"stop_sequences": ["x", "y"]}),
        ({"temperature": 0.5, "top_p": 0.9, "top_k": 3}, {"temperature": 0.5, "top_p": 0.9, "top_k": 3}),
        ({"user": "u-1"}, {"metadata": {"user_id": "u-1"}}),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"system": [{"type": "text", "text": JSON_ONLY}]}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {"type": "object"}},
                }
            },
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
        ),
        ({"thinking": {"type": "adaptive"}}, {"thinking": {"type": "adaptive"}}),
        (
            {
                "n": 1,
                "logprobs": False,
                "modalities": ["text"],
                "seed": None,
                "logit_bias": {},
                "store": True,
            },
            {},
        ),
        (
            {"reasoning_effort": "high"},
            {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "high"}},
        ),
        ({"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}}),
        (
            {
                "reasoning_effort": "low",
                "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
                "output_config": {"task_budget": 1},
            },
            {
                "thinking": {"type": "adaptive", "display": "summarized"},
                "output_config": {
                    "format": {"type": "json_schema", "schema": {"type": "object"}},
                    "effort": "low",
                    "task_budget": 1,
                },
            },
        ),
    ],
)
def test_a_member_is_said_in_anthropic_s_words(members: dict[str, Any], expected: dict[str, Any]) -> None:
    assert said({"messages": HI, **members}) == {**said({"messages": HI}), **expected}


@pytest.mark.parametrize(
    ("model", "old"),
    [
        *(
            (name, True)
            for name in ("claude-3-7-sonnet-latest", "claude-opus-4-20250514", "claude-sonnet-4-5", OLD)
        ),
        *((name, False) for name in ("claude-opus-4-6", "claude-opus-4-7", "claude-opus-5", NEW)),
    ],
)
def test_which_models_are_told_a_budget(model: str, old: bool) -> None:
    body = said({"messages": HI, "reasoning_effort": "low"}, model=model)
    assert (body["thinking"]["type"] == "enabled") is old


def test_messages_of_the_system_stand_apart_and_turns_alternate() -> None:
    messages = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": ""},
        {
            "role": "developer",
            "content": [{"type": "text", "text": "be brief"}, {"type": "text", "text": ""}],
        },
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    ]
    body = said({"messages": messages})
    assert [block["text"] for block in body["system"]] == ["be kind", "be brief"]
    assert body["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "no"}]},
    ]


def test_images_and_files_keep_their_data_or_their_address() -> None:
    assert blocks(
        [
            {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}},
            {"type": "image_url", "image_url": "https://example.org/a.png"},
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,aGk=", "filename": "a.pdf"}},
        ]
    ) == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="},
            "title": "a.pdf",
        },
    ]


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "sig"}
LOOP: list[dict[str, Any]] = [
    *HI,
    {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "c2"}]},
    {"role": "tool", "tool_call_id": "c1", "content": "one"},
    {"role": "tool", "tool_call_id": "c2", "content": [{"type": "image_url", "image_url": {"url": PNG}}]},
]


def test_calls_and_their_results_become_blocks() -> None:
    body = said({"messages": [*LOOP, {"role": "user", "content": "and?"}]})
    use = {"type": "tool_use", "name": "f", "input": {"a": 1}}
    assert body["messages"][1]["content"] == [{**use, "id": "c1"}, {**use, "id": "c2"}]
    results = body["messages"][2]["content"]
    assert results[0] == {
        "type": "tool_result",
        "tool_use_id": "c1",
        "content": [{"type": "text", "text": "one"}],
    }
    assert results[1]["content"][0]["type"] == "image"
    assert results[2] == {"type": "text", "text": "and?"}


def test_in_a_loop_of_tools_it_thinks_on_only_if_its_thoughts_came_back() -> None:
    assert "thinking" not in said({"messages": LOOP, "reasoning_effort": "high"})
    thought = [LOOP[0], {**LOOP[1], "thinking_blocks": [THOUGHT]}, *LOOP[2:]]
    body = said({"messages": thought, "reasoning_effort": "high"})
    assert body["thinking"]["type"] == "adaptive"
    assert body["messages"][1]["content"][0] == THOUGHT
    after = [*LOOP, {"role": "assistant", "content": "done"}, *HI]
    assert said({"messages": after, "reasoning_effort": "high"})["thinking"]["type"] == "adaptive"


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({}, {"type": "auto"}),
        ({"tool_choice": "auto"}, {"type": "auto"}),
        ({"tool_choice": "none", "parallel_tool_calls": False}, {"type": "none"}),
        ({"tool_choice": "required"}, {"type": "any"}),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, {"type": "tool", "name": "f"}),
        ({"parallel_tool_calls": False}, {"type": "auto", "disable_parallel_tool_use": True}),
        ({"tool_choice": "required", "reasoning_effort": "high"}, {"type": "any"}),
    ],
)
def test_tools_are_declared_and_chosen(choice: dict[str, Any], expected: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    function = {"name": "f", "description": "d", "parameters": schema, "strict": True}
    tools = [{"type": "function", "function": function}, {"type": "function", "function": {"name": "g"}}]
    body = said({"messages": HI, "tools": tools, **choice})
    assert body["tools"] == [
        {"name": "f", "description": "d", "input_schema": schema, "strict": True},
        {"name": "g", "input_schema": {"type": "object", "properties": {}}},
    ]
    assert body["tool_choice"] == expected
    assert "thinking" not in body  # which a forced call does not go with


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ({"n": 2}, "one choice"),
        ({"logprobs": True}, "log probabilities"),
        ({"modalities": ["text", "audio"]}, "only text"),
        ({"functions": [{}]}, "Anthropic does not support 'functions'"),
        ({"mcp_servers": [{"url": "http://evil.example"}]}, "does not support 'mcp_servers'"),
        ({"Model": "other"}, "does not support 'Model'"),
        ({"reasoning_effort": "much"}, "reasoning_effort"),
        ({"response_format": {"type": "grammar"}}, "response_format"),
        (
            {"tool_choice": "sometimes", "tools": [{"type": "function", "function": {"name": "f"}}]},
            "tool_choice",
        ),
        ({"tools": [{"type": "custom", "custom": {}}]}, r"tools\[0\]"),
        (
            {"messages": [{"role": "assistant", "thinking_blocks": [{"type": "document"}]}]},
            r"thinking_blocks\[0\].type",
        ),
        (
            {"messages": [{"role": "assistant", "function_call": {"name": "f"}}]},
            r"messages\[0\]: Anthropic does not support 'function_call'",
        ),
        ({"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, r"messages\[0\]: .* 'audio'"),
        ({"messages": []}, "at least one user message"),
        ({"messages": [{"role": "user", "content": ""}]}, "at least one user message"),
        ({"messages": [{"role": "function", "content": "x"}]}, "role 'function'"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "tool_call_id"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "'input_audio'"),
        ({"messages": [{"role": "user", "content": 5}]}, r"messages\[0\].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url is missing"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": "file:///etc/passwd"}]}
                ]
            },
            "URL",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "data:,x"}]}]},
            "data URL",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "[1"}}],
                    }
                ]
            },
            r"messages\[0\]: the arguments of 'f'",
        ),
    ],
)
def test_what_cannot_be_said_is_refused_with_its_place(members: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TaskError, match=sentence) as caught:
        said({"messages": HI, **members})
    assert (caught.value.code, caught.value.retryable) == ("BAD_REQUEST", False)


@pytest.mark.parametrize(
    "payload", [b"[]", b"{", b'"x"', b"\xff", b"[" * 100_000, b'{"messages":' + b"[" * 100_000]
)
def test_a_payload_that_is_no_request_is_refused(payload: bytes) -> None:
    with pytest.raises(TaskError, match="not a chat request"):
        messages_request(payload, NEW, stream=True, quirks={})


# ---- answers -------------------------------------------------------------------------------------


def reader() -> AnthropicReader:
    return AnthropicReader(Head("t1", NEW, 5))


def read(*events: Any) -> tuple[list[Delta], AnthropicReader]:
    one = reader()
    return [delta for event in events for delta in one.read(msgspec.json.encode(event))], one


def body_of(deltas: list[Delta], one: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(one.folded([*deltas, *one.end()])))


def whole(message: Any) -> Any:
    items = reader().whole(msgspec.json.encode(message))
    assert isinstance(items[-1], Result)
    return msgspec.json.decode(msgspec.json.encode(items[-1].value))


CONTENT = [
    THOUGHT,
    {"type": "redacted_thinking", "data": "xx"},
    {"type": "text", "text": "Let me see. Grüße 🙂"},
    {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"q": "x"}},
    {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": [1, {"b": "ü"}]}},
    {"type": "tool_use", "id": "c2", "name": "g", "input": {}},
]


def test_a_whole_message_is_a_completion() -> None:
    body = whole(anthropic_message(CONTENT, "tool_use"))
    assert body["id"] == "msg_1"
    assert (body["object"], body["model"], body["created"]) == ("chat.completion", "claude-real", 5)
    (choice,) = body["choices"]
    assert (choice["finish_reason"], choice["native_finish_reason"]) == ("tool_calls", "tool_use")
    message = choice["message"]
    assert (message["content"], message["reasoning_content"]) == ("Let me see. Grüße 🙂", "hm")
    assert message["thinking_blocks"] == [THOUGHT, {"type": "redacted_thinking", "data": "xx"}]
    calls = [
        (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message["tool_calls"]
    ]
    assert calls == [("c1", "f", {"a": [1, {"b": "ü"}]}), ("c2", "g", {})]
    assert body["usage"] == {
        "prompt_tokens": 33,
        "completion_tokens": 7,
        "total_tokens": 40,
        "prompt_tokens_details": {"cached_tokens": 20, "cache_creation_tokens": 3},
    }


@pytest.mark.parametrize("cut", [1, 3, 1000])
def test_a_stream_joins_to_the_whole_message(cut: int) -> None:
    deltas, one = read(*anthropic_events(CONTENT, "tool_use", cut))
    assert one.complete
    assert one.done
    joined, at_once = body_of(deltas, one), whole(anthropic_message(CONTENT, "tool_use"))
    for body in (joined, at_once):
        for call in body["choices"][0]["message"]["tool_calls"]:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    assert joined == at_once


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("pause_turn", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
    ],
)
def test_stop_reasons_have_openai_s_names(reason: str, finish: str) -> None:
    message = anthropic_message([{"type": "text", "text": "a"}], reason, stop_sequence="x")
    choice = whole(message)["choices"][0]
    assert (choice["finish_reason"], choice["native_finish_reason"], choice["stop_reason"]) == (
        finish,
        reason,
        "x",
    )


def test_usage_that_cannot_be_read_is_none() -> None:
    message = json.dumps(anthropic_message([{"type": "text", "text": "a"}], usage={"input_tokens": 77}))
    for raw in ("9" * 5000, '"many"', "-1", "1e400"):
        one = reader()
        assert len(one.whole(message.replace("77", raw).encode())) == 1
        assert one.usage is None


def test_usage_is_replaced_by_later_counts_and_known_from_the_start() -> None:
    events = anthropic_events([{"type": "text", "text": "abc"}])
    _, one = read(events[0])
    assert one.usage == Usage(33, 1, {**one.usage.details}) if one.usage else False
    later = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 50.0, "input_tokens": "11"}}
    one.read(msgspec.json.encode(later))
    assert one.usage is not None
    assert (one.usage.input_tokens, one.usage.output_tokens) == (34, 50)


@pytest.mark.parametrize(
    "event",
    [
        b"{",
        b'{"type":5}',
        b"\xff",
        b'{"type":"content_block_delta","index":3,"delta":{"type":"text_delta","text":"x"}}',
        b'{"type":"content_block_start","index":0,"content_block":{"type":"text","text":5}}',
    ],
)
def test_a_bad_event_is_unreadable(event: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (of many kinds)
        reader().read(event)


def test_blocks_that_are_opened_for_ever_are_an_end() -> None:
    one = reader()
    start = {"type": "content_block_start", "content_block": {"type": "tool_use", "id": "c", "name": "f"}}
    for index in range(1024):
        one.read(msgspec.json.encode({**start, "index": index}))
        one.read(msgspec.json.encode({"type": "content_block_stop", "index": index}))
    with pytest.raises(ValueError, match="more than 1024 blocks"):
        one.read(msgspec.json.encode({**start, "index": 1024}))


@pytest.mark.parametrize(
    "event", [b'{"type":"error","error":{"type":"overloaded_error"}}', b'{"error":{"type":"x"}}']
)
def test_an_error_in_the_stream_is_one(event: bytes) -> None:
    with pytest.raises(UpstreamSaid):
        reader().read(event)


# ---- there and back ------------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(st.text(max_size=6), values, max_size=3)
calls = st.lists(st.tuples(st.sampled_from(["f", "g"]), arguments), max_size=3)


def assistant(text: str, called: list[tuple[str, Any]], thought: str | None = None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if thought is not None:
        message["thinking_blocks"] = [{"type": "thinking", "thinking": thought, "signature": "sig"}]
    if called:
        message["tool_calls"] = [
            {
                "id": f"c{number}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(given)},
            }
            for number, (name, given) in enumerate(called)
        ]
    return message


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """A message without what was added on the way; an empty text is none."""
    message["content"] = message["content"] or None
    for call in message.get("tool_calls", ()):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return {name: value for name, value in message.items() if name != "reasoning_content"}


@given(st.text(), calls, st.none() | st.text(min_size=1), st.integers(1, 9))
def test_an_assistant_s_message_comes_back_as_it_went(
    text: str, called: list[tuple[str, Any]], thought: str | None, cut: int
) -> None:
    message = assistant(text, called, thought)
    body = said({"messages": [*HI, message, {"role": "user", "content": "on"}]})
    content = body["messages"][1]["content"] if body["messages"][-1] != body["messages"][0] else []
    at_once = whole(anthropic_message(content))
    deltas, one = read(*anthropic_events(content, "end_turn", cut))
    joined = body_of(deltas, one)
    assert at_once["usage"] == joined["usage"]
    for answer in (at_once, joined):
        assert plain(answer["choices"][0]["message"]) == plain(assistant(text, called, thought))
