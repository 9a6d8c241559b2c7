"""OpenAI's chat as Gemini's contents, and back."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.upstreams import gemini_chunks, gemini_content

from fairlane.workers.adapters.dialects.chat import Head
from fairlane.workers.adapters.dialects.gemini.answer import GeminiReader
from fairlane.workers.adapters.dialects.gemini.request import NO_SIGNATURE, GeminiDialect, content_request
from fairlane.workers.adapters.failures import UpstreamSaid
from fairlane.workers.sdk import Delta, Result, Task, TaskError

HI = [{"role": "user", "content": "hi"}]
PNG = "data:image/png;base64,aGk="
OLD, NEW = "gemini-2.5-flash", "gemini-3-pro"
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def said(payload: dict[str, Any], model: str = OLD, allowed: tuple[str, ...] = ()) -> Any:
    body, _ = content_request(msgspec.json.encode(payload), model, quirks=dict.fromkeys(allowed, "allow"))
    return msgspec.json.decode(msgspec.json.encode(body))


def test_a_plain_request_is_contents_alone() -> None:
    assert said({"messages": HI}) == {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}


@pytest.mark.parametrize(
    ("members", "config"),
    [
        (
            {"max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "stop": "x", "seed": 7},
            {
                "maxOutputTokens": 5,
                "temperature": 0.5,
                "topP": 0.9,
                "topK": 3,
                "stopSequences": ["x"],
                "seed": 7,
            },
        ),
        ({"max_tokens": 5, "max_completion_tokens": 6}, {"maxOutputTokens": 6}),
        (
            {"n": 3, "presence_penalty": 1, "frequency_penalty": 0.5},
            {"candidateCount": 3, "presencePenalty": 1.0, "frequencyPenalty": 0.5},
        ),
        ({"response_format": {"type": "json_object"}}, {"responseMimeType": "application/json"}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}},
            {"responseMimeType": "application/json", "responseJsonSchema": {"type": "object"}},
        ),
        ({"reasoning_effort": "low"}, {"thinkingConfig": {"thinkingBudget": 1024, "includeThoughts": True}}),
        ({"reasoning_effort": "none"}, {"thinkingConfig": {"thinkingBudget": 0, "includeThoughts": False}}),
        ({"n": 1, "user": "u", "logprobs": False, "store": True, "metadata": {"a": "b"}}, None),
    ],
)
def test_a_member_is_said_in_gemini_s_words(members: dict[str, Any], config: Any) -> None:
    assert said({"messages": HI, **members}).get("generationConfig") == config


def test_the_system_stands_apart_and_media_keep_their_data_or_address() -> None:
    content = [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": PNG}},
        {"type": "image_url", "image_url": "https://example.org/a.webp?x=1"},
        {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,aGk="}},
    ]
    messages = [{"role": "developer", "content": "be kind"}, {"role": "user", "content": content}]
    assert said({"messages": messages}) == {
        "systemInstruction": {"parts": [{"text": "be kind"}]},
        "contents": [
            {
                "role": "user",
                "parts": [
                    {"text": "see"},
                    {"inlineData": {"mimeType": "image/png", "data": "aGk="}},
                    {"fileData": {"fileUri": "https://example.org/a.webp?x=1", "mimeType": "image/webp"}},
                    {"inlineData": {"mimeType": "audio/wav", "data": "aGk="}},
                    {"inlineData": {"mimeType": "application/pdf", "data": "aGk="}},
                ],
            }
        ],
    }


def call(call_id: str, signature: str | None = None) -> dict[str, Any]:
    found = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    return {**found, "extra_content": {"google": {"thought_signature": signature}}} if signature else found


def test_results_stand_in_the_order_of_their_calls() -> None:
    messages = [
        *HI,
        {"role": "assistant", "content": "well", "tool_calls": [call("c1"), call("c2")]},
        {"role": "tool", "tool_call_id": "c2", "content": '{"two": 2}'},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "user", "content": "and?"},
    ]
    contents = said({"messages": messages})["contents"]
    function = {"name": "f", "args": {"a": 1}}
    assert contents[1] == {
        "role": "model",
        "parts": [
            {"text": "well"},
            {"functionCall": {**function, "id": "c1"}},
            {"functionCall": {**function, "id": "c2"}},
        ],
    }
    assert contents[2] == {
        "role": "user",
        "parts": [
            {"functionResponse": {"name": "f", "id": "c1", "response": {"result": "one"}}},
            {"functionResponse": {"name": "f", "id": "c2", "response": {"two": 2}}},
            {"text": "and?"},
        ],
    }


@pytest.mark.parametrize(
    ("model", "signatures", "expected"),
    [
        (OLD, (None, None), [None, None]),
        (NEW, (None, None), [NO_SIGNATURE, None]),
        (NEW, ("sig", None), ["sig", None]),
        (OLD, ("sig", None), ["sig", None]),
    ],
)
def test_signatures_of_calls_go_back_and_newer_models_get_one(
    model: str, signatures: Any, expected: Any
) -> None:
    calls = [call(f"c{number}", signature) for number, signature in enumerate(signatures)]
    parts = said({"messages": [*HI, {"role": "assistant", "tool_calls": calls}]}, model)["contents"][1][
        "parts"
    ]
    assert [part.get("thoughtSignature") for part in parts] == expected


@pytest.mark.parametrize(
    ("choice", "config"),
    [
        ({}, {"mode": "AUTO"}),
        ({"tool_choice": "none"}, {"mode": "NONE"}),
        ({"tool_choice": "required"}, {"mode": "ANY"}),
        (
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
            {"mode": "ANY", "allowedFunctionNames": ["f"]},
        ),
    ],
)
def test_tools_are_declared_and_chosen(choice: dict[str, Any], config: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#/x"}}, "additionalProperties": False}
    function = {"name": "f", "description": "d", "parameters": schema}
    body = said({"messages": HI, "tools": [{"type": "function", "function": function}], **choice})
    assert body["tools"] == [
        {"functionDeclarations": [{"name": "f", "description": "d", "parametersJsonSchema": schema}]}
    ]
    assert body["toolConfig"] == {"functionCallingConfig": config}


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ({"logprobs": True}, "log probabilities"),
        ({"safetySettings": [{}]}, "Gemini does not support 'safetySettings'"),
        ({"cachedContent": "cachedContents/other"}, "'cachedContent'"),
        ({"reasoning_effort": "max"}, "reasoning_effort"),
        ({"messages": []}, "at least one user message"),
        ({"messages": [*HI, {"role": "tool", "tool_call_id": "c9", "content": "x"}]}, "with the id 'c9'"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "'video'"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "image_url",
                                "image_url": "https://generativelanguage.googleapis.com/v1/files/x",
                            }
                        ],
                    }
                ]
            },
            "a file of the provider's account",
        ),
        ({"messages": [{"role": "narrator", "content": "x"}]}, "'narrator'"),
    ],
)
def test_what_cannot_be_said_is_refused(members: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TaskError, match=sentence) as caught:
        said({"messages": HI, **members})
    assert caught.value.code == "BAD_REQUEST"


@pytest.mark.parametrize(
    ("model", "path"),
    [
        (OLD, "/models/gemini-2.5-flash:generateContent"),
        (f"models/{OLD}", "/models/gemini-2.5-flash:generateContent"),
        ("../../files?x=#", "/models/..%2F..%2Ffiles%3Fx%3D%23:generateContent"),
    ],
)
def test_a_model_s_name_never_leaves_its_place_in_the_path(model: str, path: str) -> None:
    raw = msgspec.json.encode({"messages": HI})
    task = Task(task_id="t", type="openaiLike", model="m", payload_bytes=raw, stream=False)
    assert GeminiDialect().call(task, model, quirks={}, now=5.0).path == path


# ---- answers -------------------------------------------------------------------------------------


def reader(**options: Any) -> GeminiReader:
    return GeminiReader(Head("t1", OLD, 5), **options)


def read(*chunks: Any, **options: Any) -> tuple[list[Delta], GeminiReader]:
    one = reader(**options)
    return [delta for chunk in chunks for delta in one.read(msgspec.json.encode(chunk))], one


def body_of(deltas: list[Delta], one: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(one.folded([*deltas, *one.end()])))


def whole(answer: Any, **options: Any) -> Any:
    items = reader(**options).whole(msgspec.json.encode(answer))
    assert isinstance(items[-1], Result)
    return msgspec.json.decode(msgspec.json.encode(items[-1].value))


PARTS = [
    {"text": "hm, so", "thought": True},
    {"text": "Grüße 🙂"},
    {"functionCall": {"name": "f", "args": {"a": [1]}}, "thoughtSignature": "sig"},
    {"functionCall": {"name": "g", "id": "own"}},
]


def test_a_whole_answer_is_a_completion() -> None:
    body = whole(gemini_content(PARTS))
    assert (body["id"], body["model"], body["object"]) == ("resp-1", "gemini-real", "chat.completion")
    (choice,) = body["choices"]
    assert (choice["finish_reason"], choice["native_finish_reason"]) == ("tool_calls", "STOP")
    message = choice["message"]
    assert (message["content"], message["reasoning_content"]) == ("Grüße 🙂", "hm, so")
    assert message["tool_calls"] == [
        {
            "type": "function",
            "function": {"name": "f", "arguments": '{"a":[1]}'},
            "extra_content": {"google": {"thought_signature": "sig"}},
        },
        {"id": "own", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]
    assert body["usage"] == {
        "prompt_tokens": 32,
        "completion_tokens": 9,
        "total_tokens": 41,
        "prompt_tokens_details": {"cached_tokens": 20},
        "completion_tokens_details": {"reasoning_tokens": 5},
    }


@pytest.mark.parametrize("cut", [1, 4, 1000])
def test_a_stream_joins_to_the_whole_answer(cut: int) -> None:
    deltas, one = read(*gemini_chunks(PARTS, cut))
    assert one.complete
    assert body_of(deltas, one) == whole(gemini_content(PARTS))


def test_usage_that_cannot_be_read_is_none() -> None:
    answer = json.dumps(gemini_content(PARTS, usageMetadata={"promptTokenCount": 77}))
    for raw in ("9" * 5000, '"many"', "-1", "1e400"):
        one = reader()
        assert len(one.whole(answer.replace("77", raw).encode())) == 1
        assert one.usage is None


def test_who_wants_one_call_gets_one() -> None:
    assert len(whole(gemini_content(PARTS), one_call=True)["choices"][0]["message"]["tool_calls"]) == 1
    raw = msgspec.json.encode({"messages": HI, "tools": TOOLS, "parallel_tool_calls": False})
    assert content_request(raw, OLD, quirks={})[1]


def test_several_candidates_are_several_choices() -> None:
    answer = gemini_content([{"text": "a"}])
    answer["candidates"].append(
        {"index": 1, "content": {"parts": [{"text": "b"}]}, "finishReason": "MAX_TOKENS"}
    )
    choices = whole(answer)["choices"]
    assert [(c["message"]["content"], c["finish_reason"]) for c in choices] == [
        ("a", "stop"),
        ("b", "length"),
    ]


def test_images_and_signatures_of_texts_come_as_members_of_the_message() -> None:
    image = {"inlineData": {"mimeType": "image/png", "data": "aGk="}}
    message = whole(gemini_content([{"text": "a", "thoughtSignature": "s"}, image]))["choices"][0]["message"]
    assert message["images"][0]["image_url"]["url"] == PNG
    assert message["extra_content"] == {"google": {"thought_signature": "s"}}
    again = said(
        {"messages": [*HI, {"role": "assistant", "content": "a", "extra_content": message["extra_content"]}]}
    )
    assert again["contents"][1]["parts"] == [{"text": "a", "thoughtSignature": "s"}]


@pytest.mark.parametrize(
    "reason", ["SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY"]
)
def test_what_was_filtered_says_so(reason: str) -> None:
    assert whole(gemini_content([], reason))["choices"][0]["finish_reason"] == "content_filter"


@pytest.mark.parametrize(
    "reason", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "OTHER"]
)
def test_an_end_that_is_a_failure_is_one_that_another_try_may_mend(reason: str) -> None:
    with pytest.raises(TaskError, match=reason) as caught:
        read(gemini_content([], reason))
    assert (caught.value.code, caught.value.retryable) == ("UPSTREAM_ERROR", True)


def test_a_prompt_that_is_blocked_is_filtered() -> None:
    with pytest.raises(TaskError, match="PROHIBITED_CONTENT") as caught:
        read(
            {
                "promptFeedback": {"blockReason": "PROHIBITED_CONTENT"},
                "usageMetadata": {"promptTokenCount": 3},
            }
        )
    assert (caught.value.code, caught.value.retryable) == ("CONTENT_FILTERED", False)


def test_a_stream_without_its_finish_is_not_complete() -> None:
    assert not read(*gemini_chunks(PARTS)[:-1])[1].complete
    assert not reader().complete


@pytest.mark.parametrize(
    "event",
    [
        b"{",
        b"\xff",
        b'{"candidates":5}',
        b'{"candidates":[{"index":-1}]}',
        b'{"candidates":[{"index":1024}]}',
        b'{"candidates":[{"content":{"parts":[{"text":5}]}}]}',
    ],
)
def test_a_bad_event_is_unreadable(event: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (of many kinds)
        reader().read(event)


def test_an_error_in_the_stream_is_one() -> None:
    with pytest.raises(UpstreamSaid):
        read({"error": {"code": 503, "status": "UNAVAILABLE"}})


# ---- there and back ------------------------------------------------------------------------------

arguments = st.dictionaries(
    st.text(max_size=6), st.none() | st.integers(-99, 99) | st.lists(st.text(max_size=4)), max_size=3
)
calls = st.lists(st.tuples(st.sampled_from(["f", "g"]), arguments, st.none() | st.just("sig")), max_size=3)


def assistant(text: str, called: list[tuple[str, Any, str | None]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if called:
        message["tool_calls"] = []
    for number, (name, args, signature) in enumerate(called):
        one: dict[str, Any] = {
            "id": f"c{number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(args)},
        }
        if signature:
            one["extra_content"] = {"google": {"thought_signature": signature}}
        message["tool_calls"].append(one)
    return message


def plain(message: dict[str, Any]) -> dict[str, Any]:
    message["content"] = message["content"] or None
    for one in message.get("tool_calls", ()):
        one["function"]["arguments"] = json.loads(one["function"]["arguments"])
    return message


@given(st.text(), calls, st.integers(1, 9))
def test_an_assistant_s_message_comes_back_as_it_went(text: str, called: list[Any], cut: int) -> None:
    body = said({"messages": [*HI, assistant(text, called), {"role": "user", "content": "on"}]})
    parts = body["contents"][1]["parts"] if len(body["contents"]) > 1 else []
    at_once = whole(gemini_content(parts))
    deltas, one = read(*gemini_chunks(parts, cut))
    joined = body_of(deltas, one)
    assert joined == at_once
    assert plain(at_once["choices"][0]["message"]) == plain(assistant(text, called))
