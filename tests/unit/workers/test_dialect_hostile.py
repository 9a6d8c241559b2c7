"""Whatever a caller or an upstream sends, a dialect answers in one of the ways that it promises."""

import copy
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.upstreams import anthropic_events, anthropic_message, gemini_chunks, gemini_content

from fairlane.workers.adapters.dialects.anthropic.request import AnthropicDialect
from fairlane.workers.adapters.dialects.base import Dialect
from fairlane.workers.adapters.dialects.gemini.request import GeminiDialect
from fairlane.workers.adapters.dialects.openai import OpenAIDialect
from fairlane.workers.adapters.failures import UpstreamSaid
from fairlane.workers.sdk import Task, TaskError

DIALECTS: list[Dialect] = [AnthropicDialect(), GeminiDialect(), OpenAIDialect()]
QUIRKS = {"max_completion_tokens": "max_tokens", "developer": "system", "system": "first", "strict": "omit"}
PNG = "data:image/png;base64,aGk="
REQUEST: Any = {
    "messages": [
        {
            "role": "developer",
            "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}],
        },
        {
            "role": "user",
            "content": [{"type": "text", "text": "b"}, {"type": "image_url", "image_url": {"url": PNG}}],
        },
        {
            "role": "assistant",
            "content": "c",
            "thinking_blocks": [{"type": "thinking", "thinking": "t", "signature": "s"}],
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "f", "arguments": '{"a":1}'},
                    "extra_content": {"google": {"thought_signature": "s"}},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
    ],
    "max_completion_tokens": 5,
    "temperature": 0.5,
    "stop": ["x"],
    "tools": [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
    ],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
    "reasoning_effort": "low",
    "user": "u",
}
CONTENT = [
    {"type": "thinking", "thinking": "t", "signature": "s"},
    {"type": "text", "text": "abc"},
    {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
]
PARTS = [{"text": "t", "thought": True}, {"text": "abc"}, {"functionCall": {"name": "f", "args": {"a": 1}}}]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Each member and item of a value, with what holds it."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, inner in pairs for found in [(value, key), *places(inner)]]


def with_another(data: st.DataObject, value: Any) -> Any:
    """The value with something else in one or two places."""
    changed = copy.deepcopy(value)
    for _ in range(data.draw(st.integers(1, 2))):
        holder, key = data.draw(st.sampled_from(places(changed)))
        if isinstance(holder, dict) and data.draw(st.booleans()):
            del holder[key]
        else:
            holder[key] = data.draw(values)
    return changed


def task(payload: Any, *, stream: bool = True) -> Task:
    raw = json.dumps(payload).encode()
    return Task(task_id="t", type="openaiLike", model="m", payload_bytes=raw, stream=stream)


@pytest.mark.parametrize("dialect", DIALECTS)
@given(st.data())
def test_a_request_is_one_of_the_provider_s_or_a_clear_refusal(dialect: Dialect, data: st.DataObject) -> None:
    payload = with_another(data, REQUEST)
    failure: TaskError | None = None
    body = b"{}"
    try:
        body = dialect.call(task(payload), "m", quirks=QUIRKS, now=5.0).body
    except TaskError as error:
        failure = error
    assert failure is None or (failure.code, failure.retryable) == ("BAD_REQUEST", False)
    assert isinstance(msgspec.json.decode(body), dict)


def heard(read: Callable[[], Any]) -> None:
    """What a reader may answer."""
    failure: TaskError | None = None
    try:
        read()
    except (UpstreamSaid, ValueError, RecursionError):
        return
    except TaskError as error:
        failure = error
    assert failure is None or failure.code in ("UPSTREAM_ERROR", "CONTENT_FILTERED")


CHUNKS: Any = [
    {"id": "x", "choices": [{"index": 0, "delta": {"content": "a", "tool_calls": [{"index": 0}]}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}},
]
MESSAGE: Any = {
    "content": "a",
    "tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}],
}
ANSWERS: Any = [
    (anthropic_events(CONTENT), anthropic_message(CONTENT)),
    (gemini_chunks(PARTS), gemini_content(PARTS)),
    (
        [
            *CHUNKS,
            {"choices": [{"message": MESSAGE, "delta": {"reasoning": [{"type": "text", "text": "r"}]}}]},
        ],
        {"choices": [{"message": MESSAGE, "finish_reason": "sensitive"}], "usage": {"prompt_tokens": 1}},
    ),
]


@pytest.mark.parametrize(("dialect", "answers"), [*zip(DIALECTS, ANSWERS, strict=True)])
@given(st.data())
def test_an_answer_is_read_or_fails_in_a_known_way(
    dialect: Dialect, answers: Any, data: st.DataObject
) -> None:
    stream, whole = answers
    request = task({"messages": [{"role": "user", "content": "hi"}]})
    reader = dialect.call(request, "m", quirks=QUIRKS, now=5.0).reader

    def read() -> None:
        for event in with_another(data, stream):
            for delta in reader.read(json.dumps(event).encode()):
                msgspec.json.encode(delta)

    heard(read)
    if reader.usage is not None:
        reader.usage.as_json()
    other = dialect.call(request, "m", quirks=QUIRKS, now=5.0).reader
    heard(lambda: other.whole(json.dumps(with_another(data, whole)).encode()))


@pytest.mark.parametrize("dialect", DIALECTS)
@given(st.binary() | values.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_read_or_fail_in_a_known_way(dialect: Dialect, raw: bytes) -> None:
    request = task({"messages": [{"role": "user", "content": "hi"}]})
    reader = dialect.call(request, "m", quirks=QUIRKS, now=5.0).reader
    heard(lambda: reader.read(raw))
    heard(lambda: reader.whole(raw))
