"""Whole answers of workers that are no adapters."""

import json
from typing import Any

import pytest

from fairlane.workers.adapters.dialects.chat import Head
from fairlane.workers.sdk import TaskError
from fairlane.workers.server.tasks.whole_answers import normal_answer

HEAD = Head("0191f0aa-1111-8222-8333-444455556666", "m", 1)
MADE = "call_0191f0aa111182228333444455556666"
GOOD = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def whole(finish: Any = "stop", **message: Any) -> bytes:
    return json.dumps(
        {"id": "up", "choices": [{"index": 0, "message": message, "finish_reason": finish}]}
    ).encode()


@pytest.mark.parametrize(
    "result",
    [
        whole(role="assistant", content="Hi", x=1),
        whole("tool_calls", role="assistant", content=None, tool_calls=[GOOD]),
        b'{"error":"of a handler"}',
        b'{"choices":[{"index":0,"content":"of a handler"}]}',
        b'{"choices":3,"error":"x"}',
        b'"choices"',
        b"null",
    ],
)
def test_a_result_in_the_normal_form_or_in_none_of_openais_stays_as_it_is(result: bytes) -> None:
    assert normal_answer(result, HEAD) is result


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (b'{"error":{"message":"boom"}}', "UPSTREAM_ERROR"),
        (b'{"error":{"message":"slow down","code":"rate_limit_exceeded"}}', "MODEL_TOO_BUSY"),
        (b'{"choices":[]}', "UPSTREAM_ERROR"),
        (whole(content="Hi")[:-1] + b',"error":{"message":"boom"}}', "UPSTREAM_ERROR"),
        (whole("error", content="Hi"), "UPSTREAM_ERROR"),
    ],
)
def test_an_error_in_the_place_of_an_answer_ends_the_task(result: bytes, code: str) -> None:
    with pytest.raises(TaskError) as error:
        normal_answer(result, HEAD)
    assert error.value.code == code


def test_calls_get_ids_of_their_own_and_strings_as_arguments() -> None:
    bare = {"function": {"name": "f", "arguments": {"a": 1}}}
    answer = json.loads(normal_answer(whole("tool_use", content="", tool_calls=[GOOD, GOOD, bare]), HEAD))
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    made = {"id": MADE + "2", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    assert choice["message"]["tool_calls"] == [GOOD, {**GOOD, "id": MADE + "1"}, made]


def test_parts_and_reasoning_become_texts() -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]},
        {"type": "text", "text": "Hi"},
    ]
    for message in ({"content": parts}, {"content": "Hi", "reasoning": "Hm"}):
        (choice,) = json.loads(normal_answer(whole(None, **message), HEAD))["choices"]
        assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("Hm", "Hi")
        assert choice["finish_reason"] == "stop"
