import json
from typing import Any

import pytest
from openai.types import Completion
from streaming_logs import INFO, TASK, Log, fold, frames, read

from fairlane.streaming.views.completions import CompletionBodyView, CompletionStreamView


def chunks(log: Log, include_usage: bool = False) -> list[Any]:
    """The stream's chunks, checked with OpenAI's type, which wants a finish reason in each."""
    *shown, last = frames(read(CompletionStreamView(INFO, include_usage), log.events))
    assert last.data == "[DONE]"
    for frame in shown:
        choices = [
            {**choice, "finish_reason": choice["finish_reason"] or "stop"} for choice in frame.json["choices"]
        ]
        Completion.model_validate({**frame.json, "choices": choices})
    return [frame.json for frame in shown]


def body(log: Log) -> Any:
    shown = json.loads(fold(CompletionBodyView(INFO), log.events).body())
    Completion.model_validate(shown)
    return shown


def test_text_is_streamed_and_the_body_has_it_whole() -> None:
    log = (
        Log()
        .start()
        .text("Hel", "lo")
        .chunk("finish", "length")
        .done(usage={"inputTokens": 1, "outputTokens": 2})
    )
    shown = chunks(log, include_usage=True)
    assert [c["text"] for chunk in shown for c in chunk["choices"]] == ["Hel", "lo", ""]
    assert [c["finish_reason"] for chunk in shown for c in chunk["choices"]] == [None, None, "length"]
    assert shown[-1]["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    assert shown[0]["id"] == f"cmpl-{TASK}"
    whole = body(log)
    assert whole["choices"] == [{"index": 0, "text": "Hello", "finish_reason": "length", "logprobs": None}]
    assert (whole["object"], whole["usage"]["total_tokens"]) == ("text_completion", 3)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("Hello", "Hello"),
        ({"content": "Hello"}, "Hello"),
        ({"choices": [{"index": 0, "text": "Hello", "finish_reason": "stop"}]}, "Hello"),
        ({"choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}]}, "Hello"),
    ],
)
def test_a_result_alone_can_be_read_either_way(result: Any, text: str) -> None:
    shown = chunks(Log().start().done(result))
    whole = json.loads(fold(CompletionBodyView(INFO), Log().start().done(result).events).body())
    assert whole["choices"][0]["text"] == text
    assert "".join(chunk["choices"][0]["text"] for chunk in shown) == text
    assert shown[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_result_with_choices_passes_through_byte_for_byte() -> None:
    result = {"choices": [{"text": "Hello", "index": 0, "finish_reason": "stop"}], "x": 1}
    assert (
        fold(CompletionBodyView(INFO), Log().start().done(result).events).body()
        == json.dumps(result).encode()
    )
