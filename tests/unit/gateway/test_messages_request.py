"""A Messages request as a chat request: what goes where, what is refused, and the way back to Anthropic."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from refused import refused

from fairlane.gateway.errors import ApiError, anthropic_answer
from fairlane.gateway.messages.request import EFFORTS, INLINE_TOKENS, chat_of
from fairlane.workers.adapters.dialects.anthropic.request import messages_request

HI: list[Any] = [{"role": "user", "content": "hi"}]
CACHE = {"type": "ephemeral"}
PNG = {"type": "base64", "media_type": "image/png", "data": "aGk="}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "aGk="}
PLAIN = {"type": "text", "media_type": "text/plain", "data": "D"}
IMAGE = {"type": "image", "source": PNG}
CHAT_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
TOOL = {
    "name": "weather",
    "description": "The weather.",
    "input_schema": {"type": "object", "properties": {}},
}
FUNCTION = {"name": "weather", "description": "The weather.", "parameters": TOOL["input_schema"]}
USE = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Köln"}}
CALL = {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
SIGNED = {"type": "thinking", "thinking": "Hm", "signature": "sig"}
BLOCK = "messages[0].content[0]"
"""Where the first block of a request is."""
HIDDEN = {"type": "redacted_thinking", "data": "xyz"}


def fields_of(request: dict[str, Any]) -> dict[str, Raw]:
    return {name: Raw(json.dumps(value, ensure_ascii=False).encode()) for name, value in request.items()}


def chat(*, stream: bool = False, **request: Any) -> dict[str, Any]:
    request = {"model": "m", "max_tokens": 9, "messages": HI} | request
    asked = chat_of(fields_of(request), stream=stream)
    found: dict[str, Any] = json.loads(asked.payload)
    assert {name: json.loads(bytes(raw)) for name, raw in asked.fields.items()} == found
    return found


def messages(*said: Any, **request: Any) -> list[Any]:
    found: list[Any] = chat(messages=list(said), **request)["messages"]
    return found


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


def form(schema: Any) -> dict[str, Any]:
    wanted = {"name": "answer", "strict": True, "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": wanted}}


def first(role: str, block: Any) -> dict[str, Any]:
    """A request whose first message holds this block."""
    return {"messages": [{"role": role, "content": [block]}]}


def test_a_plain_request_is_a_plain_chat_request() -> None:
    assert chat(system="Be brief.") == {
        "model": "m",
        "max_completion_tokens": 9,
        "messages": [{"role": "system", "content": "Be brief."}, *HI],
    }
    streamed = chat(stream=True)
    assert (streamed["stream"], streamed["stream_options"]) == (True, {"include_usage": True})


@pytest.mark.parametrize(
    ("system", "leading", "content"),
    [
        ("a", ["b", "c"], "a\n\nb\n\nc"),
        ("a", [[text("b"), text("c")]], [text("a"), text("b"), text("c")]),
        ([text("a", cache_control=CACHE)], ["b"], [text("a", cache_control=CACHE), text("b")]),
        (None, ["", "b"], "b"),
        ("", [[], [text("")]], None),
    ],
)
def test_leading_system_messages_are_one_and_later_ones_stay(
    system: Any, leading: list[Any], content: Any
) -> None:
    later = [*HI, {"role": "system", "content": "d"}, *HI]
    told = messages(*({"role": "system", "content": one} for one in leading), *later, system=system)
    assert told == [*([{"role": "system", "content": content}] if content else []), *later]


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"temperature": 0.5, "top_p": 0.9, "top_k": 3}, {"temperature": 0.5, "top_p": 0.9, "top_k": 3}),
        ({"stop_sequences": ["a", "b"]}, {"stop": ["a", "b"]}),
        ({"stop_sequences": []}, {}),
        ({"metadata": {"user_id": "u"}}, {"user": "u"}),
        ({"metadata": {}}, {}),
        ({"metadata": {"user_id": None}}, {}),
        ({"service_tier": "auto"}, {"anthropic": {"service_tier": "auto"}}),
        ({"diagnostics": {"previous_message_id": None}}, {}),
        ({"speed": "standard"}, {}),
        ({"container": None, "mcp_servers": [], "unheard_of": {}}, {}),
        ({"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}, {}),
        ({"tools": []}, {}),
        ({"tools": [TOOL]}, {"tools": [{"type": "function", "function": FUNCTION}]}),
        (
            {"tools": [{**TOOL, "type": "custom", "strict": True}]},
            {"tools": [{"type": "function", "function": {**FUNCTION, "strict": True}}]},
        ),
        (
            {"tools": [{**TOOL, "cache_control": CACHE}]},
            {"tools": [{"type": "function", "function": FUNCTION, "cache_control": CACHE}], "anthropic": {}},
        ),
        ({"tool_choice": {"type": "none"}}, {}),
        ({"tool_choice": {"type": "auto"}, "tools": []}, {}),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}, form({"type": "object"})),
        ({"output_format": {"type": "json_schema", "schema": {}}}, form({})),
        ({"thinking": {"type": "disabled"}}, {"anthropic": {"thinking": {"type": "disabled"}}}),
        ({"thinking": {"type": "adaptive"}}, {"anthropic": {"thinking": {"type": "adaptive"}}}),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1024}},
            {"reasoning_effort": "low", "anthropic": {"thinking": {"type": "enabled", "budget_tokens": 1024}}},
        ),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 31999}},
            {"reasoning_effort": "high", "anthropic": {"thinking": {"type": "enabled", "budget_tokens": 31999}}},
        ),
        (
            {"output_config": {"effort": "max"}},
            {"reasoning_effort": "xhigh", "anthropic": {"output_config": {"effort": "max"}}},
        ),
    ],
)  # fmt: skip
def test_where_members_go(members: dict[str, Any], expected: dict[str, Any]) -> None:
    assert chat(**members) == {"model": "m", "max_completion_tokens": 9, "messages": HI, **expected}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        (
            {"type": "any", "disable_parallel_tool_use": True},
            {"tool_choice": "required", "parallel_tool_calls": False},
        ),
        (
            {"type": "tool", "name": "weather"},
            {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
        ),
        ({"type": "none"}, {"tool_choice": "none"}),
    ],
)
def test_which_tool_is_to_be_called(choice: Any, expected: dict[str, Any]) -> None:
    found = chat(tools=[TOOL], tool_choice=choice)
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("blocks", "content", "extended"),
    [
        ([text("a")], "a", False),
        ([], "", False),
        ([text("a", citations=None), text("b", citations=[])], [text("a"), text("b")], True),
        ([text("a", cache_control=CACHE)], [text("a", cache_control=CACHE)], True),
        ([text("a"), IMAGE], [text("a"), CHAT_IMAGE], False),
        (
            [{"type": "image", "source": {"type": "url", "url": "https://a/b"}}],
            [{"type": "image_url", "image_url": {"url": "https://a/b"}}],
            False,
        ),
        (
            [{"type": "document", "source": PDF, "title": "T", "context": "C"}],
            [text("C"), {"type": "file", "file": {"file_data": "data:application/pdf;base64,aGk=", "filename": "T"}}],
            False,
        ),
        (
            [{"type": "document", "source": PLAIN, "title": "T", "citations": {"enabled": False}}],
            [text("T\n\nD")],
            False,
        ),
        (
            [{"type": "document", "title": "T", "source": {"type": "content", "content": [text("D"), IMAGE]}}],
            [text("T"), text("D"), CHAT_IMAGE],
            False,
        ),
        ([{"type": "document", "source": {"type": "content", "content": "D"}}], [text("D")], False),
        (
            [{"type": "search_result", "title": "T", "source": "https://a", "content": [text("D"), text("E")]}],
            [text("T\n\nhttps://a\n\nD\n\nE")],
            False,
        ),
    ],
)  # fmt: skip
def test_what_a_user_says(blocks: list[Any], content: Any, extended: bool) -> None:
    found = chat(messages=[user(*blocks)])
    assert found["messages"] == [{"role": "user", "content": content}]
    assert ("anthropic" in found) is extended


def test_results_of_tools_come_behind_their_calls_and_before_what_else_is_said() -> None:
    told = messages(
        {"role": "assistant", "content": [SIGNED, HIDDEN, text("Let me look."), USE]},
        user(
            text("and hurry"),
            {"type": "tool_result", "tool_use_id": "t1", "content": [text("sunny"), IMAGE]},
            {"type": "tool_result", "tool_use_id": "t2", "content": "no such city", "is_error": True},
            {"type": "tool_result", "tool_use_id": "t3", "cache_control": CACHE},
        ),
    )
    assert told == [
        {
            "role": "assistant",
            "content": "Let me look.",
            "thinking_blocks": [SIGNED, HIDDEN],
            "tool_calls": [CALL],
        },
        {"role": "tool", "content": [text("sunny"), CHAT_IMAGE], "tool_call_id": "t1"},
        {"role": "tool", "content": "no such city", "tool_call_id": "t2", "is_error": True},
        {"role": "tool", "content": "", "tool_call_id": "t3", "cache_control": CACHE},
        {"role": "user", "content": "and hurry"},
    ]


def test_thoughts_that_nobody_signed_are_told_as_chat_told_them() -> None:
    thought = {"type": "thinking", "thinking": "Hm", "signature": ""}
    told = messages(*HI, {"role": "assistant", "content": [thought, USE]})
    assert told[1] == {"role": "assistant", "content": None, "reasoning_content": "Hm", "tool_calls": [CALL]}


def test_a_message_of_the_system_stays_where_it_is() -> None:
    assert messages(*HI, {"role": "system", "content": [text("Now in French.")]}, *HI)[1] == {
        "role": "system",
        "content": "Now in French.",
    }


@pytest.mark.parametrize(
    ("request_", "place"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "name": "n"}]}, "messages[0].name"),
        (first("user", text("x", flavour=1)), f"{BLOCK}.flavour"),
        (first("user", text("x", citations=[{}])), f"{BLOCK}.citations"),
        (first("user", {"type": "server_tool_use"}), f"{BLOCK}.type"),
        (first("user", USE), f"{BLOCK}.type"),
        (first("user", {"type": "image", "source": {"type": "file", "file_id": "f"}}), f"{BLOCK}.source.type"),
        (first("user", {"type": "image", "source": {**PNG, "media_type": 'x",'}}), f"{BLOCK}.source.media_type"),
        (first("user", {"type": "document", "source": PDF, "citations": {"enabled": True}}), f"{BLOCK}.citations"),
        (first("user", {"type": "document", "source": {"type": "url", "url": "https://a"}}), f"{BLOCK}.source.type"),
        (first("user", {"type": "tool_result"}), f"{BLOCK}.tool_use_id"),
        (first("user", {"type": "tool_result", "tool_use_id": "t", "content": [USE]}), f"{BLOCK}.content[0].type"),
        (first("assistant", {**USE, "input": []}), f"{BLOCK}.input"),
        (first("assistant", {**USE, "caller": {"type": "code_execution_20250825"}}), f"{BLOCK}.caller"),
        (first("assistant", IMAGE), f"{BLOCK}.type"),
        ({"system": 7}, "system"),
        ({"system": [IMAGE]}, "system[0].type"),
        ({"system": [text("x"), text(7)]}, "system[1].text"),  # type: ignore[arg-type]
        ({"temperature": "hot"}, "temperature"),
        ({"top_k": 1.5}, "top_k"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stop_sequences": [1]}, "stop_sequences[0]"),
        ({"metadata": {"team": "blue"}}, "metadata.team"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tools": [TOOL, {"name": "x"}]}, "tools[1].input_schema"),
        ({"tools": [{**TOOL, "input_schema": "x"}]}, "tools[0].input_schema"),
        ({"tools": [{**TOOL, "input_examples": [{}]}]}, "tools[0].input_examples"),
        ({"tools": [{**TOOL, "allowed_callers": ["code_execution_20250825"]}]}, "tools[0].allowed_callers"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "maybe"}}, "tool_choice.type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"task_budget": {}}}, "output_config.task_budget"),
        ({"output_config": {"format": {"type": "grammar"}}}, "output_config.format.type"),
        ({"context_management": {"edits": [{"type": "compact_20260112"}]}}, "context_management.edits[0].type"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{"name": "x"}]}, "mcp_servers"),
        ({"inference_geo": "us"}, "inference_geo"),
        ({"speed": "fast"}, "speed"),
        ({"seed": 7}, "seed"),
        ({"n": 2}, "n"),
    ],
)  # fmt: skip
def test_what_cannot_be_said_is_refused_by_its_name(request_: dict[str, Any], place: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**request_)
    assert (caught.value.status, caught.value.param) == (400, place)
    assert caught.value.message.startswith(f"{place}: ")


NOTHING: list[Any] = [None, "", []]


@pytest.mark.parametrize("nothing", NOTHING)
def test_members_that_say_nothing_are_as_if_absent(nothing: Any) -> None:
    names = ("system", "stop_sequences", "tools", "tool_choice", "metadata", "thinking", "output_config", "x")
    assert chat(**dict.fromkeys(names, nothing)) == chat()
    call = {"role": "assistant", "content": [USE]}
    assert messages({"role": "user", "content": nothing}, call, {"role": "assistant"}) == messages(
        {"role": "user", "content": ""}, call, {"role": "assistant", "content": []}
    )


def test_a_thread_is_rejected_so_that_anthropics_sdks_continue_without_one() -> None:
    error = refused(lambda: chat(thread={"type": "create"}))
    answer = json.loads(anthropic_answer(error, "req_1").body)
    assert answer["error"]["details"] == {
        "error_code": "thread_unsupported_request",
        "unsupported": ["thread"],
    }


def test_a_tool_of_anthropics_own_is_dropped_if_the_operator_says_so() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    asked = chat_of(
        fields_of({"model": "m", "max_tokens": 9, "messages": HI, "tools": [search, TOOL]}),
        stream=False,
        hosted_tools="drop",
    )
    assert json.loads(asked.payload) == chat(tools=[TOOL])


def test_all_tools_are_offered_and_a_tool_that_was_found_is_named() -> None:
    assert chat(tools=[{**TOOL, "defer_loading": True}]) == chat(tools=[TOOL])
    found = {
        "type": "tool_result",
        "tool_use_id": "t",
        "content": [{"type": "tool_reference", "tool_name": "f"}],
    }
    (said,) = messages(user(found))
    assert said["content"] == [{"type": "text", "text": "f"}]


def test_an_estimate_does_not_count_images_by_their_bytes() -> None:
    def counted(*blocks: Any) -> int:
        return chat_of(fields_of({"messages": [user(*blocks)]}), stream=False, bounded=False).estimated_input

    large = {**PNG, "data": "A" * 400_000}
    plain = counted(text("x" * 4000))
    assert 1000 <= plain <= 1040
    with_image = counted(text("x" * 4000), {"type": "image", "source": large})
    assert plain + INLINE_TOKENS <= with_image <= plain + INLINE_TOKENS + 50


# ---- at a worker ----------


# ---- there and back ----------

WORD = st.text(min_size=1, max_size=6)
MAYBE_CACHED = st.just({}) | st.just({"cache_control": CACHE})
SCHEMAS = st.builds(
    lambda properties: {"type": "object", "properties": properties},
    st.dictionaries(WORD, st.just({}), max_size=2),
)
OBJECTS = st.dictionaries(WORD, WORD | st.integers(), max_size=3)


def block(kind: str, **members: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda made, more: {"type": kind, **made, **more}, st.fixed_dictionaries(members), MAYBE_CACHED
    )


TEXTS = block("text", text=WORD)
IMAGES = block("image", source=st.just(PNG) | st.just({"type": "url", "url": "https://a/b.png"}))
PDFS = block("document", source=st.just(PDF), title=WORD)
THOUGHTS = st.fixed_dictionaries(
    {"type": st.just("thinking"), "thinking": WORD, "signature": WORD}
) | st.just(HIDDEN)
USES = block("tool_use", id=WORD, name=WORD, input=OBJECTS)
RESULTS = st.builds(
    lambda made, content, failed: {**made, **content, **failed},
    block("tool_result", tool_use_id=WORD),
    st.just({}) | st.fixed_dictionaries({"content": st.lists(TEXTS | IMAGES, min_size=1, max_size=2)}),
    st.just({}) | st.just({"is_error": True}),
)  # fmt: skip
USERS = st.tuples(st.lists(RESULTS, max_size=2), st.lists(TEXTS | IMAGES | PDFS, max_size=3))
ASSISTANTS = st.tuples(
    st.lists(THOUGHTS, max_size=2), st.lists(TEXTS, max_size=2), st.lists(USES, max_size=2)
)
TOOLS = st.builds(
    lambda made, more: {**made, **more},
    st.fixed_dictionaries({"name": WORD, "description": WORD, "input_schema": SCHEMAS}),
    MAYBE_CACHED,
)
FORM = {"type": "json_schema", "schema": {"type": "object"}}
REQUESTS = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 10**6)},
    optional={
        "system": st.lists(TEXTS, min_size=1, max_size=3),
        "temperature": st.floats(0, 1),
        "top_k": st.integers(1, 99),
        "stop_sequences": st.lists(WORD, min_size=1, max_size=2),
        "metadata": st.fixed_dictionaries({"user_id": WORD}),
        "thinking": st.sampled_from([{"type": "enabled", "budget_tokens": 5000}, {"type": "disabled"}, {"type": "adaptive"}]),
        "output_config": st.fixed_dictionaries({}, optional={"effort": st.sampled_from(EFFORTS), "format": st.just(FORM)}),
        "service_tier": st.just("standard_only"),
        "cache_control": st.just(CACHE),
    },
)  # fmt: skip


@given(
    REQUESTS,
    st.lists(st.tuples(USERS, ASSISTANTS), max_size=3),
    USERS,
    st.lists(TOOLS, max_size=2),
    st.booleans(),
)
def test_an_upstream_of_anthropics_is_sent_what_its_client_said(
    request: dict[str, Any], turns: list[Any], last: Any, tools: list[Any], stream: bool
) -> None:
    conversation = []
    for user_parts, assistant_parts in [*turns, (last, None)]:
        asked = [one for part in user_parts for one in part] or [text("hi")]
        conversation.append(user(*asked))
        if assistant_parts is not None:
            told = [one for part in assistant_parts for one in part] or [text("ho")]
            conversation.append({"role": "assistant", "content": told})
    if tools:
        request = {**request, "tools": tools, "tool_choice": {"type": "auto"}}
    request = {"model": "m", **request, "messages": conversation}
    payload = chat_of(fields_of(request), stream=stream).payload
    body = messages_request(payload, "m", stream=stream, quirks={})
    back = json.loads(msgspec.json.encode(body))
    if request.get("output_config") == {}:
        del request["output_config"]
    assert back == {**request, "stream": stream}
