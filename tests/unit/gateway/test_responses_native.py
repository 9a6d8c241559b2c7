"""A Responses request as a worker gets it that takes it as it is: what is put in front, taken out, repeated and derived."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.calls.bodies import has_image
from fairlane.gateway.calls.intake import Options, make_task
from fairlane.gateway.calls.responses.native import native_steps
from fairlane.gateway.calls.responses.request import Asked, chat_of
from fairlane.gateway.errors import ApiError
from fairlane.gateway.routing.plans import Plan
from fairlane.gateway.routing.routes import Rule
from fairlane.gateway.settings import Settings
from fairlane.queues.tasks import TaskSpec
from fairlane.streaming.structured.repair import repair_request
from fairlane.streaming.structured.wanted import schema_of
from fairlane.streaming.views.responses.thoughts import sealed
from fairlane.workers.tasktypes import RESPONSES

HI = {"role": "user", "content": "hi"}
OURS = json.loads(sealed([b'{"type":"thinking","thinking":"Hm","signature":"s"}']))
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
STRICT = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}


def fields_of(request: dict[str, Any]) -> dict[str, Raw]:
    return {name: Raw(json.dumps(value, ensure_ascii=False).encode()) for name, value in request.items()}


def asked(*, stream: bool = False, **request: Any) -> Asked:
    options = {
        name: request.pop(name)
        for name in ("store_", "history", "known", "most", "kept_input")
        if name in request
    }
    options = {name.rstrip("_"): value for name, value in options.items()}
    fields = fields_of({"model": "m", "input": "hi"} | request)
    return next(one for one in native_steps(fields, stream=stream, **options) if one is not None)


def payload(**request: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(asked(**request).payload)
    return found


def refused(**request: Any) -> ApiError:
    with pytest.raises(ApiError) as error:
        asked(**request)
    assert error.value.status in (400, 413)
    return error.value


def echo(**request: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(asked(**request).echo)
    return found


def test_what_is_the_gateway_s_matter_is_taken_out_and_all_else_stays() -> None:
    request = {
        "truncation": "auto",
        "include": ["x.y"],
        "top_logprobs": 2,
        "made_up": {"a": [1]},
        "prompt": {"id": "p"},
        "reasoning": {"effort": "low", "context": "all", "summary": "auto"},
    }
    ours = {"background": True, "previous_response_id": "resp_1", "metadata": {"a": "b"}, "store": True}
    found = payload(**request, **ours, stream_options={"include_obfuscation": False}, stream=True)
    assert found == {
        "model": "m",
        "input": [{"role": "user", "content": "hi"}],
        **request,
        "store": False,
        "stream": True,
    }
    assert asked().task_type == RESPONSES


def test_what_was_kept_comes_first_without_ids() -> None:
    history = [
        b'{"id":"msg_1","type":"message","role":"user","content":"one"}',
        b'{"id":"rs_1","type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"x"}],"encrypted_content":"gA"}',
        b'{"id":"fc_1","type":"function_call","call_id":"c","name":"f","arguments":"{}"}',
    ]
    known = {"ws_t_0": b'{"id":"ws_t_0","type":"web_search_call","status":"completed"}'}
    items = [{"type": "item_reference", "id": "ws_t_0"}, {"id": "ws_t_0"}, HI]
    assert payload(input=items, history=history, known=known)["input"] == [
        {"type": "message", "role": "user", "content": "one"},
        {"type": "reasoning", "summary": [], "encrypted_content": "gA"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "web_search_call", "status": "completed"},
        {"type": "web_search_call", "status": "completed"},
        HI,
    ]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": OURS},
        {"type": "file_search_call", "id": "fs_1", "results": []},
        {"type": "mcp_call", "id": "mcp_1"},
    ],
)
def test_what_no_upstream_takes_back_is_left_out(item: dict[str, Any]) -> None:
    assert payload(input=[item, HI])["input"] == [HI]
    refused(input=[item])


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        ({"input": None}, "input"),
        ({"input": 7}, "input"),
        ({"input": []}, "input"),
        ({"input": [7]}, "input[0]"),
        ({"input": [{"type": 7}]}, "input[0].type"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "message", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": 7}]}, "input[0].content"),
        ({"input": [{"id": "msg_unknown"}]}, "input[0].id"),
        ({"input": [{"type": "mcp_approval_response"}]}, "input[0].type"),
        ({"messages": [HI]}, "messages"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"temperature": "hot"}, "temperature"),
        ({"metadata": {"a": 7}}, None),
        ({"include": "x"}, "include"),
        ({"tools": {}}, "tools"),
        ({"tools": [7]}, None),
        ({"text": "x"}, "text"),
        ({"tool_choice": 7}, "tool_choice"),
        ({"reasoning": "x"}, "reasoning"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"instructions": "x" * 600_000}, "instructions"),
    ],
)
def test_what_the_gateway_could_not_repeat_or_keep_is_refused(
    request_: dict[str, Any], param: str | None
) -> None:
    error = refused(**request_)
    assert param in (None, error.param)


def test_it_is_bounded_as_a_chat_is() -> None:
    assert refused(input=[HI] * 10_001).status == 400
    assert refused(input=[{"role": "user", "content": "x" * 2000}], most=1000).status == 413
    assert (
        refused(input=[HI], history=[b'{"role":"user","content":"%b"}' % (b"x" * 900)], most=900).status
        == 413
    )
    assert refused(tools=[{"type": "custom"}] * 10_001).status == 400
    assert refused(input=[{"role": "user", "content": [{}] * 10_000}]).param == "input[0].content"
    asked(input=[{"role": "user", "content": [{"type": "input_text", "text": "," * 20_000}]}] * 3)
    wide = {f"m{number}": 1 for number in range(101)}
    assert refused(input=[{"type": "odd", **wide}]).param == "input[0]"
    assert refused(tools=[{"type": "odd", **wide}]).param == "tools[0]"


def test_a_response_repeats_what_was_said_but_no_secrets() -> None:
    tools = [
        {"type": "mcp", "server_url": "https://x", "authorization": "s", "headers": {"a": "s"}},
        {"type": "custom"},
    ]
    told = echo(
        tools=tools,
        tool_choice={"type": "custom", "name": "n"},
        text=STRICT,
        reasoning={"generate_summary": "auto"},
        truncation="auto",
        store_=True,
    )
    assert told["tools"] == [{"type": "mcp", "server_url": "https://x"}, {"type": "custom"}]
    assert told["tool_choice"] == {"type": "custom", "name": "n"}
    assert (told["text"], told["truncation"], told["store"]) == (STRICT, "auto", True)
    assert told["reasoning"] == {"effort": None, "summary": "auto"}
    assert told.keys() == json.loads(chat_of(fields_of({"model": "m", "input": "hi"})).echo).keys()


def test_its_input_is_kept_as_it_was_asked() -> None:
    known = {"msg_t_0": b'{"id":"msg_t_0","type":"message","role":"assistant","content":[]}'}
    kept = asked(
        input=[{"id": "msg_t_0"}, HI, {"type": "custom_tool_call_output", "call_id": "c"}],
        known=known,
        store_=True,
    )
    assert [item["type"] for item in json.loads(kept.input_items)] == [
        *("message", "message"),
        "custom_tool_call_output",
    ]
    assert json.loads(asked().input_items) == []
    by_id = Raw(b'[{"role":"user","content":"by its id"}]')
    (item,) = json.loads(asked(input=[HI], kept_input=by_id, store_=True).input_items)
    assert item["content"][0]["text"] == "by its id"


@given(
    st.recursive(
        st.none() | st.booleans() | st.text() | st.integers(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_whatever_it_is_it_is_read_or_refused(value: Any) -> None:
    for request in (
        {"input": value},
        {"input": [value]},
        {"input": [{"role": "user", "content": value}]},
        {"tools": [value]},
    ):
        try:
            found = asked(**request, store_=True)
        except ApiError:
            continue
        json.loads(found.payload)
        json.loads(found.input_items)


# ---- what is derived of its task ----------


def task_of(found: Asked, rule: Rule | None = None, **options: Any) -> TaskSpec:
    plan = Plan("r" if rule else "m", "m", "free", rule=rule)
    return make_task(
        Settings(),
        Caller("acme", "acme", "free"),
        plan,
        task_id="t",
        task_type=found.task_type,
        payload=found.payload,
        fields=found.fields,
        options=Options(on_v1=True, **options),
        tell_model=True,
    )


def test_an_image_makes_it_vision() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
    found = asked(input=[{"role": "user", "content": [image]}])
    assert has_image(found.fields)
    assert task_of(found).queue == "free_vision"
    assert task_of(asked()).queue == "free_stream"
    output = asked(input=[HI, {"type": "function_call_output", "call_id": "c", "output": [image]}])
    assert task_of(output).queue == "free_vision"


def test_its_bound_is_known_and_a_route_s_is_set_by_the_name_that_responses_have() -> None:
    assert task_of(asked(max_output_tokens=50)).max_output == 50
    rule = Rule("r", "m", max_output_tokens=20)
    task = task_of(asked(model="r"), rule)
    said = json.loads(task.payload)
    assert said["max_output_tokens"] == 20
    assert "max_tokens" not in said
    assert "model" not in said
    assert task.named_later
    with pytest.raises(ApiError):
        task_of(asked(model="r", max_output_tokens=50), rule)


def test_structured_output_is_known_and_can_be_asked_for_again() -> None:
    task = task_of(asked(text=STRICT, input=[HI]), repair=True)
    assert json.loads(schema_of(task.answer, task.payload)) == SCHEMA
    assert task.repair
    again = repair_request(task.payload, b'"wrong"', "$.a: expected a number")
    assert again is not None
    told = json.loads(again)
    assert [item["role"] for item in told["input"]] == ["user", "assistant", "user"]
    assert "$.a" in told["input"][-1]["content"]
    assert told["text"] == STRICT
    for unstrict in (
        {"format": {"type": "text"}},
        {"verbosity": "low"},
        {"format": {**STRICT["format"], "strict": False}},
    ):
        assert task_of(asked(text=unstrict)).answer == ""
    with pytest.raises(ApiError):
        task_of(asked(text={"format": {**STRICT["format"], "schema": 7}}))
