"""Any worker, any reading: each way in which a worker may answer, read on each surface."""

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from streaming_logs import INFO, TASK, Log, fold, frames, read

from fairlane.streaming.events import Failure
from fairlane.streaming.views.chat import ChatBodyView, ChatStreamView
from fairlane.streaming.views.native import NativeStreamView
from fairlane.streaming.views.result import ResultView

CHAT_RESULT = {
    "id": "up-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "length",
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
}
NATIVE_CHUNKS = {"id": TASK, "content": "Hello"}


def chat_stream(log: Log, include_usage: bool = False) -> tuple[str, list[str], list[Any], bool]:
    """Text, finish reasons, error bodies, and whether the stream ended with `[DONE]`."""
    text = ""
    reasons: list[str] = []
    errors: list[Any] = []
    shown = frames(read(ChatStreamView(INFO, include_usage), log.events))
    done = bool(shown) and shown[-1].data == "[DONE]"
    for frame in shown[:-1] if done else shown:
        assert (frame.id, frame.event, frame.retry) == (None, None, None)
        if "error" in frame.json:
            errors.append(frame.json["error"])
            continue
        for choice in ChatCompletionChunk.model_validate(frame.json).choices:
            text += choice.delta.content or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
    return text, reasons, errors, done


@pytest.mark.parametrize(
    ("log", "stream_text", "content", "finish", "native"),
    [
        (Log().start().text("Hel", "lo").done(), "Hello", "Hello", "stop", NATIVE_CHUNKS),
        (Log().start().text("Hel", "lo").done("Hello"), "Hello", "Hello", "stop", "Hello"),
        (Log().start().text("Hello").done({"content": "Bye"}), "Hello", "Bye", "stop", {"content": "Bye"}),
        (Log().start().text("Hello").done(CHAT_RESULT), "Hello", "Hello", "length", CHAT_RESULT),
        (Log().start().done(CHAT_RESULT), "Hello", "Hello", "length", CHAT_RESULT),
        (Log().start().done("Hello"), "Hello", "Hello", "stop", "Hello"),
        (
            Log().start().done({"content": "Hello", "x": 1}),
            "Hello",
            "Hello",
            "stop",
            {"content": "Hello", "x": 1},
        ),
        (Log().start().done({"answer": 42}), '{"answer": 42}', '{"answer": 42}', "stop", {"answer": 42}),
        (Log().start().done([1, 2]), "[1, 2]", "[1, 2]", "stop", [1, 2]),
        (Log().start().done(0), "0", "0", "stop", 0),
        (Log().start().done(False), "false", "false", "stop", False),
        (Log().start().done(""), "", "", "stop", ""),
        (Log().start().done(), "", "", "stop", {"id": TASK, "content": ""}),
        (Log().start().start(2).text("Hello").done(finish="length"), "Hello", "Hello", "length", None),
        (Log().start().text("Hello").chunk("finish", "length").done(), "Hello", "Hello", "length", None),
    ],
    ids=[
        "chunks and null",
        "chunks and the same text",
        "chunks and another content",
        "chunks and a chat result",
        "chat result only",
        "text only",
        "content only",
        "other object only",
        "list only",
        "number only",
        "false only",
        "empty text only",
        "nothing at all",
        "second attempt and a finish reason at the end",
        "finish reason in a chunk",
    ],
)
def test_a_completed_task_reads_the_same_on_every_surface(
    log: Log, stream_text: str, content: str, finish: str, native: Any
) -> None:
    if native is None:
        native = {"id": TASK, "content": content, "finishReason": finish}
    assert chat_stream(log) == (stream_text, [finish], [], True)

    body = json.loads(fold(ChatBodyView(INFO), log.events).body())
    choice = ChatCompletion.model_validate(body).choices[0]
    assert (choice.message.content, choice.finish_reason) == (content, finish)
    assert {"id", "object", "created", "model", "choices"} <= body.keys()
    assert {"index", "message", "logprobs", "finish_reason"} <= body["choices"][0].keys()
    assert {"role", "content", "refusal"} <= body["choices"][0]["message"].keys()

    result = fold(ResultView(INFO), log.events)
    assert (result.status, result.error) == ("completed", None)
    assert json.loads(result.result_json()) == native

    shown = frames(read(NativeStreamView(INFO), log.events))
    assert [frame.event for frame in shown] == [event.type for event in log.events]
    assert [frame.id for frame in shown] == [event.id for event in log.events]
    assert shown[-1].json["result"] == native


@pytest.mark.parametrize("output", [[], ["Hel", "lo"]], ids=["before output", "after output"])
def test_an_error_ends_every_surface_with_its_code(output: list[str]) -> None:
    log = Log().start().text(*output).error("Too long", "CONTEXT_LENGTH")
    text, reasons, errors, done = chat_stream(log)
    assert (text, reasons, done) == ("".join(output), [], False)
    assert errors == [
        {
            "message": "Too long",
            "type": "invalid_request_error",
            "param": None,
            "code": "context_length_exceeded",
            "docs_url": "/docs#CONTEXT_LENGTH",
        }
    ]
    result = fold(ResultView(INFO), log.events)
    assert (result.status, result.error) == ("failed", Failure("Too long", "CONTEXT_LENGTH", False))
    assert (result.choices()[0].content or b'""') == json.dumps("".join(output)).encode()
    last = frames(read(NativeStreamView(INFO), log.events))[-1]
    assert (last.event, last.json["code"], "result" in last.json) == ("error", "CONTEXT_LENGTH", False)


def test_a_task_cancelled_in_the_queue_has_a_log_of_one_event() -> None:
    log = Log().cancelled("admin")
    assert chat_stream(log)[2][0]["message"] == "Task cancelled by admin"
    assert fold(ResultView(INFO), log.events).status == "cancelled"


def test_status_follows_the_log() -> None:
    result = ResultView(INFO)
    seen = [result.status]
    for event in Log().start().text("a").done().events:
        result.feed(event)
        seen.append(result.status)
    assert seen == ["queued", "executing", "executing", "completed"]


@pytest.mark.parametrize(
    "result",
    [
        {"choices": []},
        {"choices": [1, None, "x", {}]},
        {"choices": [{"message": 3}]},
        {"choices": "none"},
        {"choices": [{"message": {"content": [{"type": "text"}], "tool_calls": [None, 1]}, "index": -1}]},
    ],
)
def test_a_result_that_only_looks_like_a_chat_is_streamed_somehow(result: Any) -> None:
    _, reasons, errors, done = chat_stream(Log().start().done(result))
    assert (bool(reasons), errors, done) == (True, [], True)


def test_usage_is_the_workers_else_the_results_else_the_latest() -> None:
    told, other = {"inputTokens": 1, "outputTokens": 2}, {"prompt_tokens": 7, "completion_tokens": 8}
    logs = [
        (Log().start().usage(other).text("a").done(usage=told), told),
        (Log().start().done({"content": "a", "usage": other}), other),
        (Log().start().done({"content": "a", "usage": other}, usage=told), told),
        (Log().start().usage({"inputTokens": 0}).usage(other).text("a").done(), other),
        (Log().start().usage(other).text("a").error(), other),
    ]
    for log, expected in logs:
        assert json.loads(fold(ResultView(INFO), log.events).usage) == expected


def test_an_old_attempts_usage_is_forgotten_by_the_next() -> None:
    log = Log().start().usage({"inputTokens": 5}).start(2).text("a").done()
    assert fold(ResultView(INFO), log.events).usage is None
