"""A Responses request as a chat request: what goes where, what is refused, what is repeated, and the way back."""

import json
from typing import Any

import msgspec
import pytest
from msgspec import Raw
from refused import refused

from fairlane.gateway.errors import ApiError
from fairlane.gateway.responses.request.echo import DEFAULTS, MAX_ECHO
from fairlane.gateway.responses.request.request import (
    MAX_REFERENCES,
    StorageOptions,
    chat_of,
    read_storage_options,
)
from fairlane.gateway.responses.request.stored_input import with_id
from fairlane.streaming.views.thoughts import Thought, sealed
from fairlane.workers.adapters.dialects.anthropic.request import messages_request
from fairlane.workers.adapters.dialects.openai import OpenAIDialect
from fairlane.workers.sdk import Task

HI: list[Any] = [{"role": "user", "content": "hi"}]
PNG = "data:image/png;base64,aGk="
PDF = "data:application/pdf;base64,aGk="
SCHEMA = {"type": "object", "properties": {}}
TOOL = {"type": "function", "name": "weather", "description": "The weather.", "parameters": SCHEMA}
FUNCTION = {"name": "weather", "description": "The weather.", "parameters": SCHEMA}
CLOCK = {"type": "function", "name": "clock"}
CALL = {"type": "function_call", "call_id": "t1", "name": "weather", "arguments": '{"city": "Köln"}'}
CHAT_CALL = {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
SIGNED = {"type": "thinking", "thinking": "Hm", "signature": "sig"}
HIDDEN = {"type": "redacted_thinking", "data": "xyz"}
PART = "input[0].content[0]"
"""Where the first part of a request is."""


def seal(*thoughts: Any) -> str:
    return str(json.loads(sealed(msgspec.convert(thoughts, list[Thought]))))


def fields_of(request: dict[str, Any]) -> dict[str, Raw]:
    return {name: Raw(json.dumps(value, ensure_ascii=False).encode()) for name, value in request.items()}


def chat(*, stream: bool = False, **request: Any) -> dict[str, Any]:
    asked = chat_of(fields_of({"model": "m", "input": "hi"} | request), stream=stream)
    found: dict[str, Any] = json.loads(asked.payload)
    assert {name: json.loads(bytes(raw)) for name, raw in asked.fields.items()} == found
    return found


def messages(*items: Any, **request: Any) -> list[Any]:
    found: list[Any] = chat(input=list(items), **request)["messages"]
    return found


def echo(**request: Any) -> dict[str, Any]:
    asked = chat_of(fields_of({"model": "m", "input": "hi"} | request))
    assert b"\n" not in asked.echo
    found: dict[str, Any] = json.loads(asked.echo)
    return found


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def said(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": list(parts), **more}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "input_text", "text": words, **more}


def output(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "output_text", "text": words, "annotations": [], "logprobs": [], **more}


def plain(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def first(part: Any, role: str = "user") -> dict[str, Any]:
    """A request whose first message holds this part."""
    return {"input": [{"role": role, "content": [part]}]}


def group(name: str, *tools: Any) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "description": "d", "tools": list(tools)}


def thought(words: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": words}],
        **more,
    }


def test_a_plain_request_is_a_plain_chat_request() -> None:
    assert chat(instructions="Be brief.", input="hi") == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, *HI],
    }
    streamed = chat(stream=True)
    assert (streamed["stream"], streamed["stream_options"]) == (True, {"include_usage": True})


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5, "top_p": 0.9}),
        ({"presence_penalty": 1, "frequency_penalty": -1}, {"presence_penalty": 1, "frequency_penalty": -1}),
        ({"max_output_tokens": 9}, {"max_completion_tokens": 9}),
        ({"max_tool_calls": 3}, {}),
        ({"user": "u", "safety_identifier": "s"}, {"user": "u", "safety_identifier": "s"}),
        ({"prompt_cache_key": "k", "prompt_cache_retention": "24h"}, {"prompt_cache_key": "k", "prompt_cache_retention": "24h"}),
        ({"service_tier": "flex"}, {"service_tier": "flex"}),
        ({"metadata": {"a": "b"}}, {}),
        ({"truncation": "disabled", "store": False, "background": False}, {}),
        ({"stream_options": {"include_obfuscation": False}}, {}),
        ({"include": ["reasoning.encrypted_content", "message.input_image.image_url"]}, {}),
        ({"include": ["message.output_text.logprobs"]}, {"logprobs": True}),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
        ({"top_logprobs": 0}, {}),
        ({"tools": []}, {}),
        ({"tools": [], "tool_choice": "none", "parallel_tool_calls": True}, {}),
        ({"tools": [TOOL]}, {"tools": [{"type": "function", "function": FUNCTION}]}),
        (
            {"tools": [{**TOOL, "strict": True}, CLOCK], "parallel_tool_calls": False},
            {
                "tools": [
                    {"type": "function", "function": {**FUNCTION, "strict": True}},
                    {"type": "function", "function": {"name": "clock"}},
                ],
                "parallel_tool_calls": False,
            },
        ),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, {"verbosity": "low"}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "strict": True, "schema": SCHEMA}}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}},
        ),
        ({"reasoning": {}}, {}),
        ({"reasoning": {"effort": "high", "summary": "auto"}}, {"reasoning_effort": "high"}),
        ({"conversation": None, "prompt": {}, "unheard_of": []}, {}),
    ],
)  # fmt: skip
def test_where_members_go(members: dict[str, Any], expected: dict[str, Any]) -> None:
    assert chat(**members) == {"model": "m", "messages": HI, **expected}


@pytest.mark.parametrize(
    ("choice", "expected", "tools"),
    [
        ("auto", "auto", 2),
        ("required", "required", 2),
        ("none", "none", 2),
        ({"type": "function", "name": "weather"}, {"type": "function", "function": {"name": "weather"}}, 2),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "clock"}]},
            "required",
            1,
        ),
    ],
)
def test_which_tool_is_to_be_called(choice: Any, expected: Any, tools: int) -> None:
    found = chat(tools=[TOOL, CLOCK], tool_choice=choice)
    assert (found["tool_choice"], len(found["tools"])) == (expected, tools)
    assert echo(tools=[TOOL, CLOCK], tool_choice=choice)["tool_choice"] == choice


@pytest.mark.parametrize(
    ("parts", "content", "extended"),
    [
        ([text("a")], "a", False),
        ([], "", False),
        ([text("a"), text("b")], [plain("a"), plain("b")], True),
        (
            [text("a"), {"type": "input_image", "image_url": PNG, "detail": "auto"}],
            [plain("a"), {"type": "image_url", "image_url": {"url": PNG}}],
            False,
        ),
        (
            [{"type": "input_image", "image_url": "https://a/b", "detail": "low", "file_id": None}],
            [{"type": "image_url", "image_url": {"url": "https://a/b", "detail": "low"}}],
            False,
        ),
        (
            [{"type": "input_file", "file_data": PDF, "filename": "T"}],
            [{"type": "file", "file": {"file_data": PDF, "filename": "T"}}],
            False,
        ),
        (
            [{"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}],
            [{"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}],
            False,
        ),
    ],
)
def test_what_a_user_says(parts: list[Any], content: Any, extended: bool) -> None:
    found = chat(input=[user(*parts)])
    assert found["messages"] == [{"role": "user", "content": content}]
    assert ("anthropic" in found) is extended


PATCH = {
    "type": "custom",
    "name": "patch",
    "description": "Edit.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'},
}
TEXT_SCHEMA = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


def test_tools_that_a_client_runs_are_functions_of_chat() -> None:
    search = {"type": "tool_search", "execution": "client", "description": "Find.", "parameters": SCHEMA}
    clocks = group(
        "clocks__", {**CLOCK, "defer_loading": True, "output_schema": {}}, {**PATCH, "format": None}
    )
    long = group("n" * 40, {**CLOCK, "name": "f" * 40})
    tools = [TOOL, PATCH, search, clocks, long, {"type": "tool_search"}]
    functions = {one["function"]["name"]: one["function"] for one in chat(tools=tools)["tools"]}
    last = list(functions)[-1]
    assert list(functions) == ["weather", "patch", "tool_search", "clocks__clock", "clocks__patch", last]
    assert len(last) == 64
    assert last.startswith("n" * 40 + "__fff")
    assert functions["tool_search"] == {"name": "tool_search", "description": "Find.", "parameters": SCHEMA}
    assert functions["patch"]["parameters"] == functions["clocks__patch"]["parameters"] == TEXT_SCHEMA
    assert functions["patch"]["description"].startswith("Edit.\n\n")
    assert functions["patch"]["description"].endswith('(lark):\nstart: "x"')
    assert echo(tools=tools)["tools"][1:] == tools[1:5]
    chosen = chat(tools=tools, tool_choice={"type": "custom", "name": "patch"})
    assert chosen["tool_choice"] == {"type": "function", "function": {"name": "patch"}}


def test_tools_come_within_the_input_and_their_calls_go_back_as_functions() -> None:
    found = chat(
        input=[
            {"type": "additional_tools", "role": "developer", "tools": [group("a", TOOL), PATCH]},
            *HI,
            {**CALL, "namespace": "a"},
            {"type": "custom_tool_call", "call_id": "t2", "name": "patch", "input": 'a "b"'},
            {"type": "tool_search_call", "call_id": "t3", "execution": "client", "arguments": {"query": "x"}},
            {"type": "function_call_output", "call_id": "t1", "output": "sunny"},
            {"type": "custom_tool_call_output", "call_id": "t2", "output": [text("done")]},
            {"type": "tool_search_output", "call_id": "t3", "tools": [CLOCK, PATCH]},
        ]
    )
    assert [one["function"]["name"] for one in found["tools"]] == ["a__weather", "patch", "clock"]
    calls = found["messages"][1]["tool_calls"]
    assert [
        (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls
    ] == [
        ("t1", "a__weather", {"city": "Köln"}),
        ("t2", "patch", {"input": 'a "b"'}),
        ("t3", "tool_search", {"query": "x"}),
    ]
    assert [(message["tool_call_id"], message["content"]) for message in found["messages"][2:]] == [
        ("t1", "sunny"),
        ("t2", "done"),
        ("t3", '["clock","patch"]'),
    ]


@pytest.mark.parametrize(
    ("tool", "hosted", "dropped"),
    [
        ({"type": "web_search"}, "reject", False),
        ({"type": "web_search"}, "drop", True),
        ({"type": "web_search", "external_web_access": False}, "reject", True),
        ({"type": "image_generation", "size": "auto"}, "drop", True),
        ({"type": "mcp", "server_label": "x"}, "reject", False),
    ],
)  # fmt: skip
def test_a_tool_that_only_its_provider_runs_is_rejected_or_dropped(
    tool: Any, hosted: Any, dropped: bool
) -> None:
    def asked(**more: Any) -> Any:
        return chat_of(fields_of({"model": "m", "input": "hi", "tools": [tool], **more}), hosted_tools=hosted)

    if dropped:
        assert "tools" not in asked().fields
        assert json.loads(asked().echo)["tools"] == []
        assert refused(lambda: asked(tool_choice="required")).param == "tool_choice"
    else:
        assert refused(asked).param == "tools[0].type"


@pytest.mark.parametrize("nothing", [None, "", []])
def test_members_that_say_nothing_are_as_if_absent(nothing: Any) -> None:
    names = (*DEFAULTS.keys() - {"store"}, "include", "stream_options", "unheard_of")
    assert chat(**dict.fromkeys(names, nothing)) == chat()
    assert echo(**dict.fromkeys(names, nothing)) == echo()
    result = {"type": "function_call_output", "call_id": "t1"}
    assert messages({"role": "user", "content": nothing}, CALL, {**result, "output": nothing}) == messages(
        {"role": "user"}, CALL, result
    )


def test_bookkeeping_is_ignored() -> None:
    more = {
        "client_metadata": {"a": 1},
        "access_programs": ["x"],
        "prompt_cache_options": {"mode": "explicit"},
    }
    assert chat(**more, truncation="auto", reasoning={"context": "all_turns"}) == chat()
    assert echo(truncation="auto")["truncation"] == "auto"
    item = text("x", prompt_cache_breakpoint={"mode": "explicit"})
    kept = {"metadata": {"a": 1}, "internal_chat_message_metadata_passthrough": {"turn_id": "a"}}
    assert messages({**user(item), "id": "m", **kept}) == [{"role": "user", "content": "x"}]


def test_instructions_and_leading_messages_of_the_developer_are_one_system_message() -> None:
    told = messages(
        {"role": "developer", "content": "b"},
        {"role": "system", "content": [text("c")]},
        *HI,
        {"role": "developer", "content": "d"},
        instructions="a",
    )
    assert told == [{"role": "system", "content": "a\n\nb\n\nc"}, *HI, {"role": "system", "content": "d"}]
    assert messages({"role": "developer", "content": ""}, *HI, instructions="") == HI


def test_a_call_without_arguments_is_said_with_an_empty_object() -> None:
    (called,) = messages({**CALL, "arguments": ""})
    assert called["tool_calls"][0]["function"]["arguments"] == "{}"


def test_items_of_one_turn_are_one_message() -> None:
    told = messages(
        {"role": "developer", "content": "Be brief."},
        {"type": "message", **HI[0]},
        thought("Hm", id="rs_1", status=None),
        said(output("Let me look."), id="msg_1", status="completed", phase=None),
        {**CALL, "id": "fc_1", "status": "completed", "namespace": None, "caller": None, "async": None},
        {**CALL, "call_id": "t2"},
        {"type": "function_call_output", "call_id": "t1", "output": "sunny"},
        {"type": "function_call_output", "call_id": "t2", "output": [text("a")], "name": "weather"},
        said(output("Sunny.")),
        said(output("Anything else?")),
        {**CALL, "call_id": "t3"},
        thought("Wait"),
        said({"type": "refusal", "refusal": "No."}),
    )
    assert told == [
        {"role": "system", "content": "Be brief."},
        *HI,
        {
            "role": "assistant",
            "content": "Let me look.",
            "reasoning_content": "Hm",
            "tool_calls": [CHAT_CALL, {**CHAT_CALL, "id": "t2"}],
        },
        {"role": "tool", "content": "sunny", "tool_call_id": "t1"},
        {"role": "tool", "content": "a", "tool_call_id": "t2"},
        {"role": "assistant", "content": "Sunny."},
        {"role": "assistant", "content": "Anything else?", "tool_calls": [{**CHAT_CALL, "id": "t3"}]},
        {
            "role": "assistant",
            "content": [{"type": "refusal", "refusal": "No."}],
            "reasoning_content": "Wait",
        },
    ]


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (thought("Hm"), {"reasoning_content": "Hm"}),
        (
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}], "content": None},
            {"reasoning_content": "Hm"},
        ),
        (thought("Hm", encrypted_content=seal(SIGNED, HIDDEN)), {"thinking_blocks": [SIGNED, HIDDEN]}),
        ({"type": "reasoning", "summary": []}, {}),
    ],
)
def test_thoughts_come_back_as_they_were_told(item: Any, expected: dict[str, Any]) -> None:
    (told,) = messages(item, said(output("Hi")))
    assert told == {"role": "assistant", "content": "Hi", **expected}


def test_results_follow_their_calls_once_wherever_they_stand() -> None:
    def result(call_id: str, output: str) -> dict[str, Any]:
        return {"type": "function_call_output", "call_id": call_id, "output": output}

    def tool(call_id: str, content: str) -> dict[str, Any]:
        return {"role": "tool", "content": content, "tool_call_id": call_id}

    second = {**CHAT_CALL, "id": "t2"}
    told = messages(
        *(CALL, {**CALL, "call_id": "t2"}, *HI, result("t2", "b"), said(output("c")), result("t1", "a")),
        *(result("t1", "a"), CALL, result("t1", "d"), result("t9", "e")),
    )
    assert told == [
        {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL, second]},
        *(tool("t2", "b"), tool("t1", "a"), *HI),
        {"role": "assistant", "content": "c", "tool_calls": [CHAT_CALL]},
        *(tool("t1", "d"), tool("t9", "e")),
    ]


def test_a_result_with_an_image_is_said_as_chat_can_say_it() -> None:
    result = {
        "type": "function_call_output",
        "call_id": "t1",
        "output": [text("see"), {"type": "input_image", "image_url": PNG}],
    }
    found = chat(input=[*HI, CALL, result])
    assert found["anthropic"] == {}
    assert found["messages"][2]["content"] == [plain("see"), {"type": "image_url", "image_url": {"url": PNG}}]
    payload = json.dumps(found).encode()
    task = Task(task_id="t", type="openaiLike", model="m", payload_bytes=payload, stream=False)
    strict = json.loads(OpenAIDialect().call(task, "m", quirks={}, now=0.0).body)
    assert [message["role"] for message in strict["messages"]] == ["user", "assistant", "tool", "user"]
    assert "anthropic" not in strict
    anthropic = messages_request(payload, "m", stream=False, quirks={})
    (result_block,) = anthropic["messages"][2]["content"]
    assert [block["type"] for block in result_block["content"]] == ["text", "image"]


@pytest.mark.parametrize(
    ("request_", "place"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 7}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": 7}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": "x", "name": "n"}]}, "input[0].name"),
        ({"input": [{"type": "web_search_call", "id": "ws", "status": "completed"}]}, "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "msg_x_0"}]}, "input[0].id"),
        ({"input": [{"id": "msg_x_0"}]}, "input[0].id"),
        ({"input": [{}]}, "input[0].id"),
        ({"input": [{**CALL, "caller": {"type": "program", "caller_id": "c"}}]}, "input[0].caller"),
        ({"input": [{**CALL, "async": True}]}, "input[0].async"),
        ({"input": [{**CALL, "arguments": {}}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": [output("x")]}]}, "input[0].output[0].type"),
        ({"input": [thought("x", encrypted_content="gAAAA")]}, "input[0].encrypted_content"),
        ({"input": [thought("x", encrypted_content="fairlane1.%%")]}, "input[0].encrypted_content"),
        ({"input": [{"type": "reasoning", "summary": [{"type": "summary_text"}]}]}, "input[0].summary[0].text"),
        (first(text("x", flavour=1)), f"{PART}.flavour"),
        (first(output("x")), f"{PART}.type"),
        (first(text("x"), "assistant"), f"{PART}.type"),
        (first({"type": "input_image", "image_url": PNG}, "system"), f"{PART}.type"),
        (first(output("x", annotations=[{"type": "url_citation"}]), "assistant"), f"{PART}.annotations"),
        (first({"type": "input_image", "file_id": "file-1", "detail": "auto"}), f"{PART}.file_id"),
        (first({"type": "input_image", "detail": "auto"}), f"{PART}.image_url"),
        (first({"type": "input_image", "image_url": PNG, "detail": "original"}), f"{PART}.detail"),
        (first({"type": "input_file", "file_id": "file-1"}), f"{PART}.file_id"),
        (first({"type": "input_file", "file_url": "https://a"}), f"{PART}.file_url"),
        (first({"type": "input_file", "filename": "x"}), f"{PART}.file_data"),
        (first({"type": "input_file", "file_data": PDF, "detail": "high"}), f"{PART}.detail"),
        (first({"type": "computer_screenshot", "image_url": PNG}), f"{PART}.type"),
        ({"instructions": [text("x")]}, "instructions"),
        ({"temperature": "hot"}, "temperature"),
        ({"user": 7}, "user"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": "9"}, "max_output_tokens"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"truncation": "always"}, "truncation"),
        ({"metadata": {"a": 1}}, "metadata[...]"),
        ({"metadata": {"a": "x" * 513}}, "metadata.a"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"include": ["file_search_call.results"]}, "include[0]"),
        ({"include": "x"}, "include"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"stream_options": {"include_usage": True}}, "stream_options.include_usage"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "custom", "name": "x", "parameters": {}}]}, "tools[0].parameters"),
        ({"tools": [{"type": "custom", "name": "x", "format": {"type": "grammar"}}]}, "tools[0].format.definition"),
        ({"tools": [group("a", {"type": "web_search"})]}, "tools[0].tools[0].type"),
        ({"tools": [group("a", TOOL), {**TOOL, "name": "a__weather"}]}, "tools[1].name"),
        ({"input": [{"type": "additional_tools", "tools": [{"type": "mcp"}]}]}, "input[0].tools[0].type"),
        ({"tools": [TOOL, {"type": "function"}]}, "tools[1].name"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tools": [{**TOOL, "parameters": "x"}]}, "tools[0].parameters"),
        ({"tools": [{**TOOL, "allowed_callers": ["programmatic"]}]}, "tools[0].allowed_callers"),
        ({"tools": [{**TOOL, "async": True}]}, "tools[0].async"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "clock"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice.tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "none", "tools": []}}, "tool_choice.mode"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"verbosity": "huge"}}, "text.verbosity"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "some"}}, "reasoning.summary"),
        ({"reasoning": {"context": "current_turn"}}, "reasoning.context"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"moderation": {"model": "x"}}, "moderation"),
        ({"messages": HI}, "messages"),
        ({"stop": "x"}, "stop"),
        ({"n": 2}, "n"),
    ],
)  # fmt: skip
def test_what_cannot_be_said_is_refused_by_its_name(request_: dict[str, Any], place: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**request_)
    assert (caught.value.status, caught.value.param) == (400, place)
    assert caught.value.message.startswith(f"{place}: ")


def test_what_a_response_repeats_is_bounded() -> None:
    with pytest.raises(ApiError, match="may take") as caught:
        chat(instructions="x" * MAX_ECHO)
    assert caught.value.param == "instructions"
    chat(instructions="x" * (MAX_ECHO - 2000))
    assert len(chat(input="x" * (MAX_ECHO * 2))["messages"][0]["content"]) == MAX_ECHO * 2


def test_a_chat_request_that_is_larger_than_a_body_may_be_is_refused() -> None:
    request = fields_of({"model": "m", "input": "x" * 1000})
    with pytest.raises(ApiError) as caught:
        chat_of(request, most=1000)
    assert caught.value.status == 413


def test_a_response_repeats_its_request_and_what_holds_where_it_says_nothing() -> None:
    plain_echo = echo()
    assert (plain_echo["tools"], plain_echo["tool_choice"], plain_echo["store"]) == ([], "auto", False)
    assert plain_echo["text"] == {"format": {"type": "text"}}
    wanted = {
        "instructions": "Be\nbrief.",
        "metadata": {"a": "b"},
        "temperature": 0.5,
        "max_output_tokens": 9,
        "parallel_tool_calls": False,
        "background": True,
        "previous_response_id": "resp_1",
        "prompt_cache_key": "k",
        "reasoning": {"effort": "low", "summary": "auto"},
    }
    assert wanted.items() <= echo(**wanted).items()
    told = echo(tools=[TOOL, CLOCK], text={"format": {"type": "json_schema", "name": "n", "schema": {}}})
    assert told["tools"] == [
        {**TOOL, "strict": None},
        {**CLOCK, "description": None, "parameters": None, "strict": None},
    ]
    form = {"type": "json_schema", "name": "n", "schema": {}, "strict": False, "description": None}
    assert told["text"] == {"format": form}


# ---- what is kept ----------


def test_what_a_request_wishes_of_keeping() -> None:
    assert read_storage_options(fields_of({"input": "item_reference"})) == StorageOptions(
        None, False, None, ()
    )
    references = [{"type": "item_reference", "id": name} for name in ("a", "b", "a")]
    said_ = {"store": True, "background": True, "previous_response_id": "resp_1", "input": references}
    assert read_storage_options(fields_of(said_)) == StorageOptions(True, True, "resp_1", ("a", "b"))
    for name, wrong in (("store", 1), ("background", "yes"), ("previous_response_id", 1)):
        with pytest.raises(ApiError) as caught:
            read_storage_options(fields_of({"input": "x", name: wrong}))
        assert caught.value.param == name
    many = [{"type": "item_reference", "id": str(number)} for number in range(MAX_REFERENCES + 1)]
    with pytest.raises(ApiError, match="refers to more"):
        read_storage_options(fields_of({"input": many}))
    assert read_storage_options(fields_of({"input": [{"id": "a"}, {"id": "b", **HI[0]}]})).references == (
        "a",
    )


def test_what_was_kept_comes_before_the_input_and_references_are_what_they_mean() -> None:
    kept = [json.dumps(item).encode() for item in (*HI, said(output("Hello")))]
    reference = {"type": "item_reference", "id": "fc_1"}
    asked = chat_of(
        fields_of({"model": "m", "instructions": "Be brief.", "input": [reference, *HI]}),
        store=True,
        history=kept,
        known={"fc_1": json.dumps({**CALL, "id": "fc_1"}).encode()},
    )
    assert json.loads(asked.payload)["messages"] == [
        {"role": "system", "content": "Be brief."},
        *HI,
        {"role": "assistant", "content": "Hello", "tool_calls": [CHAT_CALL]},
        *HI,
    ]
    assert json.loads(asked.input_items) == [
        {**CALL, "id": "fc_1"},
        {"type": "message", "status": "completed", "role": "user", "content": [text("hi")]},
    ]
    assert json.loads(asked.echo)["store"] is True


def test_kept_items_are_whole_and_have_ids() -> None:
    items = [*HI, {"role": "assistant", "content": "Hello", "id": "msg_own"}, CALL]
    asked = chat_of(fields_of({"model": "m", "input": items}), store=True)
    listed = [json.dumps(item).encode() for item in json.loads(asked.input_items)]
    told = [json.loads(with_id(raw, f"item_task_{number}")) for number, raw in enumerate(listed)]
    assert [item["id"] for item in told] == ["item_task_0", "msg_own", "item_task_2"]
    assert told[1]["content"] == [{"type": "output_text", "text": "Hello", "annotations": []}]
    again = chat_of(fields_of({"model": "m", "input": told}), store=True)
    assert again.payload == chat_of(fields_of({"model": "m", "input": items})).payload
    assert json.loads(again.input_items) == told
    assert chat_of(fields_of({"model": "m", "input": items})).input_items == b"[]"


# ---- there and back ----------
