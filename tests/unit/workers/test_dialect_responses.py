"""OpenAI's Responses through the adapter: what goes out, what is refused, and what its events become."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from test_dialect_hostile import heard, with_another
from tests.support.responses_upstream import (
    SEAL,
    USAGE,
    call,
    message,
    refusal,
    response,
    thought,
    transcript,
)

from fairlane.workers.adapters import PROVIDERS
from fairlane.workers.adapters.chunks import StreamError
from fairlane.workers.adapters.dialects.openai import OpenAIDialect
from fairlane.workers.adapters.dialects.responses.answer import MOST_ITEM, MOST_SEALED, ResponsesReader
from fairlane.workers.adapters.failures import Asked, from_status, from_stream
from fairlane.workers.adapters.openai import OpenAIAdapter
from fairlane.workers.sdk import Delta, Task, TaskError, Usage
from fairlane.workers.tasktypes import RESPONSES

HI = [{"role": "user", "content": "hi"}]
SEARCHED = {"id": "ws_1", "type": "web_search_call", "status": "completed"}


def sent(payload: Any, *, model: str = "gpt-4o", allowed: Any = (), stream: bool = True) -> dict[str, Any]:
    raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    task = Task(task_id="t", type=RESPONSES, model="m", payload_bytes=raw, stream=stream)
    made = OpenAIDialect().call(task, model, allowed=allowed, now=0)
    assert (made.path, made.stream) == ("/responses", stream)
    body: dict[str, Any] = json.loads(made.body)
    return body


def refused(payload: Any, **options: Any) -> str:
    with pytest.raises(TaskError) as failed:
        sent(payload, **options)
    assert failed.value.code == "BAD_REQUEST"
    assert not failed.value.retryable
    return failed.value.message


def read(events: list[Any]) -> list[Any]:
    """What a reader tells of a whole stream: the marker of the order first."""
    reader = ResponsesReader()
    told: list[Any] = [delta for event in events for delta in reader.read(json.dumps(event).encode())]
    assert reader.complete
    return [*told, *([reader.usage] if reader.usage else [])]


def whole(body: Any) -> list[Any]:
    return ResponsesReader().whole(json.dumps(body).encode())


def summed(told: list[Any]) -> dict[str, Any]:
    """What deltas come to, whatever the pieces of their texts."""
    found: dict[str, Any] = {"content": "", "reasoning": "", "refusal": "", "calls": {}, "pieces": []}
    for delta in told:
        if isinstance(delta, Usage):
            found["usage"] = delta
            continue
        for name in ("content", "reasoning", "refusal"):
            found[name] += getattr(delta, name) or ""
        if delta.tool_calls is not UNSET:
            for one in msgspec.json.decode(delta.tool_calls):
                known = found["calls"].setdefault(one["index"], {"arguments": ""})
                known["arguments"] += one["function"]["arguments"]
                known |= {name: one[name] for name in ("id",) if name in one}
        if delta.extra is not UNSET:
            found["pieces"] += msgspec.json.decode(delta.extra).get("delta", {}).get("response_items", [])
        found["finish"] = delta.finish_reason or found.get("finish")
    return found


# ---- what goes out ----------


def test_it_goes_out_as_it_came_but_keeps_nothing() -> None:
    body = {"input": HI, "truncation": "auto", "max_output_tokens": 5, "store": True, "metadata": {"a": "b"}}
    assert sent({**body, "model": "m", "stream": False, "stream_options": {}, "background": False}) == {
        "input": HI,
        "truncation": "auto",
        "max_output_tokens": 5,
        "model": "gpt-4o",
        "store": False,
        "stream": True,
    }


@pytest.mark.parametrize(
    ("model", "more", "asks"),
    [
        ("gpt-4o", {}, False),
        ("gpt-4.1-mini", {"reasoning": {}}, False),
        ("gpt-5-chat-latest", {}, False),
        ("gpt-5-mini", {}, True),
        ("o4-mini", {}, True),
        ("openai/o3", {}, True),
        ("codex-mini-latest", {}, True),
        ("qwen3", {"reasoning": {"effort": "low"}}, True),
    ],
)
def test_models_that_think_are_asked_for_their_thoughts_sealed(model: str, more: Any, asks: bool) -> None:
    body = sent({"input": "hi", "include": ["message.output_text.logprobs"], **more}, model=model)
    assert ("reasoning.encrypted_content" in body["include"]) is asks
    assert body["include"][0] == "message.output_text.logprobs"


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"conversation": {"id": "conv_1"}}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"context_management": [{}]}, "context_management"),
        ({"Tools": [{"type": "mcp"}]}, "Tools"),
        ({"models": ["other"]}, "models"),
        ({"api_base": "https://evil.example"}, "api_base"),
        ({"tools": [{"type": "code_interpreter", "container": "cntr_1"}]}, "tools[0].type"),
        ({"tools": [{"type": "mcp", "connector_id": "connector_gmail"}]}, "tools[0].type"),
        ({"tools": [{"type": "image_generation"}]}, "tools[0].type"),
        ({"tools": [{"type": "shell"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "Type": "mcp"}]}, "Type"),
        ({"tools": [{}]}, "tools[0].type"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": [{"id": "msg_1"}]}, "input[0].type"),
        ({"input": [{"type": "tool_search_output", "tools": [{"type": "mcp"}]}]}, "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
            "input[0].content",
        ),
        ({"input": [{"type": "function_call_output", "output": [{"file_id": "f"}]}]}, "input[0].output"),
        ({"input": [{"type": "computer_call_output", "output": {"file_id": "f"}}]}, "input[0].output"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "File_Id": "f"}]}]}, "File_Id"),
    ],
)
def test_what_costs_more_than_tokens_or_reaches_the_account_is_refused(more: Any, names: str) -> None:
    assert names in refused({"input": "hi", **more})


def test_a_name_that_comes_twice_goes_out_once() -> None:
    twice = b'{"input":"hi","tools":[{"type":"mcp","server_url":"x","type":"function","name":"n"}]}'
    assert sent(twice)["tools"] == [{"type": "function", "server_url": "x", "name": "n"}]
    item = b'{"input":[{"role":"user","content":[{"\\u0066ile_id":"f","file_id":null,"type":"input_file"}]}]}'
    made = OpenAIDialect().call(
        Task(task_id="t", type=RESPONSES, model="m", payload_bytes=item), "m", allowed=(), now=0
    )
    assert made.body.count(b"ile_id") == 1


def test_an_operator_allows_each_by_its_name() -> None:
    body = {"prompt": {"id": "p"}, "tools": [{"type": "web_search"}], "input": [{"type": "shell_call"}]}
    image = {"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}
    body["input"].append(image)  # type: ignore[attr-defined]
    allowed = ("prompt", "tools.web_search", "input.shell_call", "file_id")
    made = sent(body, allowed=allowed)
    assert {name: made[name] for name in body} == body
    for one in allowed:
        refused(body, allowed=[name for name in allowed if name != one])


@pytest.mark.parametrize(
    "payload",
    [
        b"[]",
        b"{",
        b'{"input":[1]}',
        b'{"tools":{}}',
        b'{"input":[{"type":7}]}',
        b'{"include":7,"reasoning":{"a":1}}',
    ],
)
def test_what_cannot_be_read_is_the_caller_s_error(payload: bytes) -> None:
    with pytest.raises((TaskError, ValueError)):
        sent(payload)


def test_very_many_objects_are_refused_before_they_are_built() -> None:
    assert "objects" in refused(b'{"input":[%b{}]}' % (b"{}," * 300_000))
    assert "items and parts" in refused({"input": [{"role": "user", "content": ""}] * 10_001})


def test_it_is_offered_only_where_it_is_named() -> None:
    assert RESPONSES not in OpenAIAdapter(base_url="http://x/v1", models=["m"]).task_types
    named = OpenAIAdapter(base_url="http://x/v1", models=["m"], task_types=[RESPONSES])
    assert named.task_types == (RESPONSES,)
    for provider in PROVIDERS.values():
        assert (RESPONSES in provider.task_types) is (provider.dialect == "openai")
        assert RESPONSES not in provider.adapter(models=["m"], api_key="k").task_types


# ---- what comes back ----------

ANSWERS: list[list[Any]] = [
    [message("Hello there")],
    [],
    [thought("One|Two", "a"), message("Hello", "World")],
    [
        thought("", "a"),
        SEARCHED,
        thought("b", "b", number=1),
        message("Hi", annotations=[{"type": "url_citation"}]),
    ],
    [message("Before", phase="commentary"), call("f", '{"a": 1}'), call("g", "", "call_2", 1)],
    [refusal("No")],
    [{"id": "ct_1", "type": "custom_tool_call", "call_id": "c", "name": "n", "input": "*** patch"}],
]


@pytest.mark.parametrize("items", ANSWERS)
@pytest.mark.parametrize("cut", [1, 3, 1000])
def test_a_stream_and_the_whole_come_to_the_same(items: list[Any], cut: int) -> None:
    streamed = summed(read(transcript(items, cut=cut)))
    assert streamed == summed(whole(response(items)))
    assert streamed["content"] == "".join(
        part.get("text", "") for item in items if item["type"] == "message" for part in item["content"]
    )
    calls = [item for item in items if item["type"] == "function_call"]
    assert [one["arguments"] for one in streamed["calls"].values()] == [
        one["arguments"] or "{}" for one in calls
    ]
    assert streamed["finish"] == ("tool_calls" if calls else "stop")
    assert (streamed["usage"].input_tokens, streamed["usage"].output_tokens) == (11, 7)


def test_the_first_delta_says_that_the_order_is_to_be_kept() -> None:
    first, *rest = read(transcript([message("Hi")]))
    assert msgspec.json.decode(first.extra) == {"delta": {"response_items": []}}
    assert [delta.content for delta in rest[:-2]] == ["Hi"]


def test_thoughts_are_sealed_at_their_end_and_parts_of_a_summary_stay_apart() -> None:
    told = summed(read(transcript([thought("One|Two", "x"), message("Hi")])))
    assert told["reasoning"] == "One\n\nTwo"
    assert told["pieces"] == [{"type": "reasoning", "encrypted_content": SEAL + "x"}]


def test_thoughts_are_told_as_summary_or_as_they_are_and_not_twice() -> None:
    def delta(kind: str, text: str) -> dict[str, Any]:
        return {"type": f"response.{kind}.delta", "output_index": 0, "delta": text}

    reader = ResponsesReader()
    events = [delta("reasoning_text", "a"), delta("reasoning_summary_text", "b"), delta("reasoning", "c")]
    told = [
        one.reasoning for event in events for one in reader.read(json.dumps(event).encode()) if one.reasoning
    ]
    assert told == ["a", "c"]


def test_log_probabilities_stand_with_their_text() -> None:
    token = {"token": "Hi", "logprob": -0.5, "top_logprobs": []}
    event = {"type": "response.output_text.delta", "delta": "Hi", "logprobs": [token]}
    _, delta = ResponsesReader().read(json.dumps(event).encode())
    assert delta.content == "Hi"
    assert msgspec.json.decode(delta.extra) == {"logprobs": {"content": [token]}}


@pytest.mark.parametrize(
    ("status", "why", "finish"),
    [
        ("completed", None, "stop"),
        ("incomplete", {"reason": "max_output_tokens"}, "length"),
        ("incomplete", {"reason": "content_filter"}, "content_filter"),
        ("incomplete", None, "length"),
    ],
)
def test_why_it_ended(status: str, why: Any, finish: str) -> None:
    told = summed(read(transcript([message("Hi")], status, incomplete_details=why)))
    assert told["finish"] == finish


def test_usage_is_in_the_words_of_a_chat() -> None:
    *_, usage = read(transcript([]))
    assert usage.details == {
        "prompt_tokens": 11,
        "completion_tokens": 7,
        "total_tokens": 18,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    for odd in (None, {}, {"input_tokens": -1}, {"input_tokens": 5, "input_tokens_details": 7}):
        read(transcript([], usage=odd))


@pytest.mark.parametrize(
    ("event", "code"),
    [
        ({"type": "error", "code": "rate_limit_exceeded", "message": "slow"}, "MODEL_TOO_BUSY"),
        ({"type": "error", "error": {"code": "server_error", "message": "x"}}, "UPSTREAM_ERROR"),
        ({"error": {"message": "x", "code": 429}}, "MODEL_TOO_BUSY"),
        (
            {
                "type": "response.failed",
                "response": response([], "failed", error={"code": "invalid_prompt", "message": "no"}),
            },
            "BAD_REQUEST",
        ),
        ({"type": "response.failed", "response": response([], "failed")}, "UPSTREAM_ERROR"),
    ],
)
def test_failures_of_a_stream(event: Any, code: str) -> None:
    with pytest.raises(StreamError) as failed:
        ResponsesReader().read(json.dumps(event).encode())
    assert from_stream(failed.value.error, Asked("http://x/v1/responses", "m")).code == code


def test_a_response_that_ends_otherwise_may_be_tried_again() -> None:
    for status in ("cancelled", "queued"):
        with pytest.raises(TaskError) as failed:
            whole(response([], status))
        assert (failed.value.code, failed.value.retryable) == ("UPSTREAM_ERROR", True)


def test_an_upstream_without_responses_is_told_so() -> None:
    failed = from_status(404, b'{"detail":"Not Found"}', None, Asked("http://x/v1/responses", "m"))
    assert failed.code == "TYPE_NOT_OFFERED"
    assert "openaiResponses" in failed.message


def test_a_stream_without_its_end_is_not_complete() -> None:
    reader = ResponsesReader()
    for event in transcript([message("Hi")])[:-1]:
        reader.read(json.dumps(event).encode())
    assert reader.read(b"[DONE]") == []
    assert not reader.complete


def test_what_a_server_told_only_at_the_end_is_told_then() -> None:
    items = [thought("Hm"), message("Hi"), call("f", "{}")]
    events = transcript(items)
    done = [event for event in events if event["type"].endswith(("item.done", "completed"))]
    assert summed(read(done)) == summed(read(events)) == summed(read(events[-1:]))


# ---- what is sent to harm ----------


def test_an_answer_is_bounded() -> None:
    with pytest.raises(ValueError, match="items"):
        whole(response([message("x", number=n) for n in range(1025)]))
    with pytest.raises(ValueError, match="bytes"):
        whole(response([{**SEARCHED, "result": "x" * MOST_ITEM}]))
    reader, said = ResponsesReader(), {"type": "response.output_text.delta", "delta": ""}
    for part in range(-1, 1023):  # (some servers count from there)
        assert reader.read(json.dumps({**said, "content_index": part}).encode()) == []
    with pytest.raises(ValueError, match="parts"):
        reader.read(json.dumps({**said, "content_index": 1023}).encode())
    told = summed(whole(response([thought("Hm", "x" * MOST_SEALED)])))
    assert told["pieces"] == [{"type": "reasoning"}]
    assert told["reasoning"] == "Hm"


@pytest.mark.parametrize(
    "event",
    [
        b"",
        b"[]",
        b'"x"',
        b'{"type":7}',
        b'{"type":"response.output_item.done","item":7}',
        b'{"type":"response.output_item.done","item":{"type":"message","content":[7]}}',
        b'{"type":"response.output_item.added","output_index":0,"item":{"type":"function_call","name":7}}',
        b'{"type":"response.completed","response":{"status":"completed","output":7}}',
        b"\xff",
        b'{"type":"response.output_item.done","item":' + b"[" * 3000 + b"]" * 3000 + b"}",
    ],
)
def test_what_is_no_event_is_unreadable(event: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        ResponsesReader().read(event)


@pytest.mark.parametrize(
    "event",
    [
        {"type": "response.output_text.delta", "delta": {"no": "text"}},
        {"type": "response.function_call_arguments.delta", "delta": "x", "output_index": 3},
        {"type": "response.output_item.done", "item": {"no": "type"}},
        {"type": "response.completed"},
        {"type": "response.never_heard_of", "delta": 7, "item": []},
    ],
)
def test_odd_events_say_nothing(event: Any) -> None:
    assert ResponsesReader().read(json.dumps(event).encode()) == []


@given(st.data())
def test_whatever_an_upstream_answers_is_read_or_fails_in_a_known_way(data: st.DataObject) -> None:
    items = data.draw(st.sampled_from(ANSWERS))
    reader = ResponsesReader()

    def events() -> None:
        for event in with_another(data, transcript(items)):
            for delta in reader.read(json.dumps(event).encode()):
                msgspec.json.encode(delta)

    heard(events)
    if reader.usage is not None:
        reader.usage.as_json()
    heard(lambda: whole(with_another(data, response(items))))


@given(st.data())
def test_whatever_a_caller_asks_is_a_request_or_a_clear_refusal(data: st.DataObject) -> None:
    body = {
        "input": [*HI, call("f", "{}"), {"type": "function_call_output", "output": [{"type": "input_text"}]}],
        "tools": [{"type": "function", "name": "f"}],
        "include": ["x"],
        "reasoning": {"effort": "low"},
    }
    failure: Exception | None = None
    try:
        made = sent(with_another(data, body))
    except (TaskError, ValueError, RecursionError) as error:
        failure = error
    else:
        assert (made["store"], made["stream"], made["model"]) == (False, True, "gpt-4o")
    if isinstance(failure, TaskError):
        assert (failure.code, failure.retryable) == ("BAD_REQUEST", False)


def test_every_delta_is_one() -> None:
    for items in ANSWERS:
        assert all(isinstance(one, Delta | Usage) for one in whole(response(items, usage=USAGE)))
