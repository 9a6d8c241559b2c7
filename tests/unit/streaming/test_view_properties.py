"""Promises over any log: all surfaces agree, and a resumed stream is the exact rest of the uncut one."""

import contextlib
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from openai.types.chat import ChatCompletionChunk
from streaming_logs import INFO, TASK, TS, Log, fold, frames, read

from fairlane.streaming.coalesce import Coalescer
from fairlane.streaming.events import Event, chunk_data
from fairlane.streaming.tool_calls import CallDeltas
from fairlane.streaming.views.chat import ChatBodyView, ChatStreamView
from fairlane.streaming.views.completions import CompletionBodyView, CompletionStreamView
from fairlane.streaming.views.native import NativeStreamView
from fairlane.streaming.views.result import ResultShapeError, ResultView

TEXT = st.text(max_size=12)
CHUNK = st.tuples(st.sampled_from(["text", "text", "reasoning", "refusal"]), TEXT)
CALLS = st.lists(
    st.fixed_dictionaries(
        {"function": st.fixed_dictionaries({"arguments": TEXT}, optional={"name": st.sampled_from("fg")})}
    ),
    max_size=3,
)
TOOL = st.tuples(st.just("tool"), CALLS)
OTHER = st.sampled_from([("extra", {"logprobs": {"content": []}, "delta": {"x": "y"}}), ("finish", "length")])
CHUNKS = st.lists(st.tuples(CHUNK | TOOL | OTHER, st.integers(0, 2)), max_size=25)
RESULTS = st.none() | st.text() | st.dictionaries(st.text(max_size=3), st.integers() | TEXT, max_size=3)
USAGE = st.none() | st.fixed_dictionaries(
    {"inputTokens": st.integers(0, 99), "outputTokens": st.integers(0, 99)}
)


def log_of(chunks: list[tuple[tuple[str, Any], int]]) -> Log:
    log = Log().start()
    for place, ((kind, delta), index) in enumerate(chunks):
        log.chunk(kind, delta, index)
        if place % 7 == 3:
            log.stage()
    return log


def joined(stream: bytes, member: str) -> dict[int, str]:
    """What the stream's deltas add up to, by choice."""
    found: dict[int, str] = {}
    for frame in frames(stream)[:-1]:
        for choice in ChatCompletionChunk.model_validate(frame.json).choices:
            text = getattr(choice.delta, member, None) or ""
            found[choice.index] = found.get(choice.index, "") + text
    return found


def streamed_calls(stream: bytes) -> dict[int, list[str]]:
    """The tool calls that a stream's deltas add up to, by choice."""
    found: dict[int, list[Any]] = {}
    for choice in (choice for frame in frames(stream)[:-1] for choice in frame.json["choices"]):
        for call in choice["delta"].get("tool_calls", ()):
            calls = found.setdefault(choice["index"], [])
            if call.pop("index") == len(calls):
                calls.append(call)
            else:
                calls[-1]["function"]["arguments"] += call["function"]["arguments"]
    for calls in found.values():
        for call in calls:
            call["function"]["arguments"] = call["function"]["arguments"] or "{}"
    return {index: [json.dumps(call) for call in calls] for index, calls in found.items()}


@given(CHUNKS, USAGE)
def test_joined_chunks_are_the_sync_body_are_the_native_result(chunks: list[Any], usage: Any) -> None:
    log = log_of(chunks).done(usage=usage)
    stream = read(ChatStreamView(INFO, include_usage=True), log.events)
    body = json.loads(fold(ChatBodyView(INFO), log.events).body())
    native = fold(ResultView(INFO), log.events)
    result = json.loads(native.result_json())

    messages = {choice["index"]: choice["message"] for choice in body["choices"]}
    for member in ("content", "reasoning_content", "refusal"):
        assert joined(stream, member) == {index: m.get(member) or "" for index, m in messages.items()}
    assert result["content"] == (messages.get(0, {}).get("content") or "")
    by_choice = result.get("choices") or [{"index": 0, **result}]
    assert {choice["index"]: choice["content"] for choice in by_choice} == joined(stream, "content")
    completion = json.loads(fold(CompletionBodyView(INFO), log.events).body())
    assert {choice["index"]: choice["text"] for choice in completion["choices"]} == joined(stream, "content")

    told = {index: [json.dumps(call) for call in m.get("tool_calls", [])] for index, m in messages.items()}
    assert streamed_calls(stream) == {index: calls for index, calls in told.items() if calls}
    reasons = [
        c["finish_reason"] for f in frames(stream)[:-1] for c in f.json["choices"] if c["finish_reason"]
    ]
    assert len(reasons) >= len(body["choices"])


@given(RESULTS, USAGE)
def test_a_result_alone_is_the_same_on_stream_and_body(result: Any, usage: Any) -> None:
    log = Log().start().done(result, usage=usage)
    content = json.loads(fold(ChatBodyView(INFO), log.events).body())["choices"][0]["message"]["content"]
    assert joined(read(ChatStreamView(INFO), log.events), "content") == {0: content}


@given(CHUNKS, RESULTS, st.sampled_from(["done", "error", "cancelled", None]), st.booleans())
def test_resuming_at_any_cursor_gives_the_exact_rest_of_the_stream(
    chunks: list[Any], result: Any, end: str | None, with_metadata: bool
) -> None:
    log = log_of(chunks)
    if end == "done":
        log.done(result)
    elif end:
        getattr(log, end)()
    info = replace(INFO, metadata=b'{"a":1}') if with_metadata else INFO
    uncut = read(NativeStreamView(info), log.events)
    for place in range(1, len(log.events) + 1):
        seen, rest = log.events[:place], log.events[place:]
        shown = read(NativeStreamView(info), rest, seen)
        assert uncut.endswith(shown)
        assert len(frames(shown)) == len(rest)


@given(CHUNKS)
def test_coalescing_changes_no_answer(chunks: list[Any]) -> None:
    plain = log_of(chunks).done()
    coalescer, calls = Coalescer(), [CallDeltas(TASK, 0) for _ in range(3)]
    for (kind, delta), index in chunks:
        raw = delta if kind not in ("tool", "extra") else json.dumps(delta).encode()
        if kind != "tool" or (raw := calls[index].normal(raw)) is not None:
            coalescer.add(index, kind, raw, 0.0)
    joined_events = [
        Event(1, place + 1, "chunk", chunk_data(TASK, TS, piece.index, piece.kind, piece.delta_json, piece.n))
        for place, piece in enumerate(coalescer.take(0.0))
    ]
    events = [plain.events[0], *joined_events, plain.events[-1]]
    for made in (ResultView, ChatBodyView, CompletionBodyView):
        one, other = fold(made(INFO), plain.events), fold(made(INFO), events)
        assert json.loads(one.result_json()) == json.loads(other.result_json())
    bodies = [json.loads(fold(ChatBodyView(INFO), some).body()) for some in (plain.events, events)]
    assert bodies[0] == bodies[1]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "message", "content", "index", "tool_calls", "function", "id", "delta", "usage"]
            )
            | TEXT,
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@given(st.lists(st.tuples(st.sampled_from(["tool", "extra"]), JSON), max_size=4), JSON, JSON)
def test_no_json_of_a_worker_breaks_a_view(deltas: list[tuple[str, Any]], result: Any, usage: Any) -> None:
    log = Log().start()
    for kind, delta in deltas:
        log.chunk(kind, delta)
    log.usage(usage).done(result, usage=usage)
    assert frames(read(ChatStreamView(INFO, True), log.events))[-1].data == "[DONE]"
    assert frames(read(NativeStreamView(INFO), log.events))[-1].json.keys() >= {"result", "taskId"}
    json.loads(fold(ChatBodyView(INFO), log.events).body())
    with contextlib.suppress(ResultShapeError):
        json.loads(fold(CompletionBodyView(INFO), log.events).body())
    assert frames(read(CompletionStreamView(INFO, True), log.events))[-1].data
