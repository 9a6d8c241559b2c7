"""What the OpenAI-compatible adapter makes of answers: one normal form, or a failure in the upstream's words."""

import json
from typing import Any

import httpx2
import msgspec
import pytest
import respx
from tests.support.upstreams import sse

from fairlane.workers.adapters import PROVIDERS
from fairlane.workers.adapters.dialects.chat import Head
from fairlane.workers.adapters.dialects.chunks import OpenAIReader
from fairlane.workers.protocol import encoder
from fairlane.workers.sdk import Context, Delta, Result, Task, TaskError, Usage

pytestmark = pytest.mark.anyio
BASE = "http://upstream.test/v1"
DONE = "[DONE]"
PATHS = {"openaiLike": "chat/completions", "openaiCompletion": "completions", "openaiEmbedding": "embeddings"}


async def answer(
    body: bytes,
    kind: str = "text/event-stream",
    *,
    stream: bool = True,
    type: str = "openaiLike",
    headers: Any = (),
    payload: bytes = b"{}",
    status: int = 200,
) -> list[Any]:
    """What the adapter yields for a body."""
    adapter = PROVIDERS["openai"].adapter(base_url=BASE, models=["m"], api_key="sk-secret")
    task = Task(task_id="t", type=type, model="m", payload_bytes=payload, stream=stream)
    response = httpx2.Response(status, headers={"Content-Type": kind, **dict(headers)}, content=body)
    with respx.mock() as mocked:
        mocked.post(f"{BASE}/{PATHS[type]}").mock(return_value=response)
        try:
            return [item async for item in adapter(task, Context(task))]
        finally:
            await adapter.aclose()


async def failure(*args: Any, **options: Any) -> TaskError:
    with pytest.raises(TaskError) as caught:
        await answer(*args, **options)
    return caught.value


def said(items: list[Any]) -> dict[str, Any]:
    """What choice 0 says, of deltas or of a result: only what there is."""
    found: dict[str, Any] = {}
    for item in items:
        if isinstance(item, Usage):
            found["usage"] = (item.input_tokens, item.output_tokens)
        elif isinstance(item, Result):
            (choice,) = msgspec.json.decode(bytes(item.value))["choices"]
            message = choice.pop("message")
            calls = [call["function"] for call in message.pop("tool_calls", None) or ()]
            names = {"content": "text", "reasoning_content": "reasoning"}
            found |= {
                names.get(name, name): value for name, value in message.items() if value and name != "role"
            }
            found |= {"calls": calls} if calls else {}
            found |= {name: value for name, value in choice.items() if name != "index"}
        elif isinstance(item, Delta):
            delta = msgspec.json.decode(encoder.encode(item))
            for name, shown in (("content", "text"), ("reasoning", "reasoning"), ("refusal", "refusal")):
                if name in delta:
                    found[shown] = found.get(shown, "") + delta[name]
            for call in delta.get("toolCalls", ()):
                found.setdefault("calls", []).append(call["function"])
            found |= {"finish_reason": delta["finishReason"]} if "finishReason" in delta else {}
            extra = delta.get("extra", {})
            extra.pop("response", None)
            found |= extra.pop("delta", {}) | extra
    return found


STOP = {"finish_reason": "stop"}
CALL = {"name": "f", "arguments": '{"a":1}'}
CALLED = {"calls": [CALL], "finish_reason": "tool_calls"}
THOUGHT = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}], "signature": "s"}]
DETAILS = [{"type": "reasoning.text", "text": "hm"}, {"type": "reasoning.encrypted", "data": "x"}]
MESSAGES: list[tuple[Any, Any, Any]] = [
    # what a delta or a message says, its choice's finish reason, what is read
    ({"content": "a"}, "stop", {"text": "a"} | STOP),
    ({"content": [*THOUGHT, {"type": "text", "text": "a"}]}, "stop", {"reasoning": "hm", "text": "a"} | STOP),
    ({"content": [{"text": "a"}, "b", {"type": "reference", "ids": [1]}]}, "stop", {"text": "ab"} | STOP),
    ({"content": {"type": "text", "text": "a"}}, "stop", {"text": "a"} | STOP),
    ({"content": {"a": 1}}, "stop", {"text": '{"a":1}'} | STOP),
    ({"content": 5}, "stop", {"text": "5"} | STOP),
    ({"content": [{"type": "refusal", "refusal": "no"}]}, "stop", {"refusal": "no"} | STOP),
    ({"content": [[[[[[[[[["deep"]]]]]]]]]]}, "stop", STOP),
    *(
        ({name: text, "content": "a"}, "stop", {"reasoning": "hm", "text": "a"} | STOP)
        for name in ("reasoning", "reasoning_content", "thinking", "reasoning_text")
        for text in ("hm", [{"type": "text", "text": "hm"}], {"content": "hm"}, {"summary": "hm"})
    ),
    ({"reasoning": "hm", "reasoning_content": "hm"}, "stop", {"reasoning": "hm"} | STOP),
    ({"reasoning_details": DETAILS}, "stop", {"reasoning": "hm", "reasoning_details": DETAILS} | STOP),
    (
        {"reasoning_details": DETAILS, "reasoning": "h"},
        "stop",
        {"reasoning": "h", "reasoning_details": DETAILS} | STOP,
    ),
    ({"refusal": "no", "content": None}, "stop", {"refusal": "no"} | STOP),
    ({"content": "", "refusal": "", "tool_calls": [], "reasoning": None}, "stop", STOP),
    ({"tool_calls": [{"id": "c", "type": "function", "function": CALL}]}, "tool_calls", CALLED),
    ({"tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {"a": 1}}}]}, "stop", CALLED),
    ({"tool_calls": [{"id": "c", **CALL}]}, "tool_use", CALLED | {"native_finish_reason": "tool_use"}),
    ({"tool_calls": {"id": "c", "function": CALL}}, "stop", CALLED),
    ({"function_call": CALL}, "function_call", CALLED),
    ({"content": "a", "tool_calls": []}, "tool_calls", {"text": "a"} | STOP),
    (
        {"content": "a", "logprobs": {"content": []}},
        "stop",
        {"text": "a", "logprobs": {"content": []}} | STOP,
    ),
    (
        {"content": "a", "annotations": [{"url": "x"}]},
        "stop",
        {"text": "a", "annotations": [{"url": "x"}]} | STOP,
    ),
    ({"audio": {"id": "1"}, "content": None}, "stop", {"audio": {"id": "1"}} | STOP),
    *(
        ({"content": "a"}, native, {"text": "a", "finish_reason": reason, "native_finish_reason": native})
        for reason, natives in {
            "stop": "eos eos_token end_turn STOP stop_sequence unheard_of",
            "length": "max_tokens MAX_TOKENS max_output_tokens model_length",
            "content_filter": "SAFETY sensitive refusal",
        }.items()
        for native in natives.split()
    ),
    *(({"content": "a"}, nothing, {"text": "a"} | STOP) for nothing in ("", None, False)),
]


@pytest.mark.parametrize("whole", [False, True], ids=["stream", "whole"])
@pytest.mark.parametrize(("message", "reason", "expected"), MESSAGES)
async def test_a_delta_and_a_message_are_read_alike(
    message: Any, reason: Any, expected: Any, whole: bool
) -> None:
    if whole:
        body = {"choices": [{"message": message, "finish_reason": reason}]}
        items = await answer(json.dumps(body).encode(), "application/json", stream=False)
    else:
        end = {"choices": [{"delta": {"content": ""}, "finish_reason": reason}]}
        items = await answer(sse({"choices": [{"delta": {"role": "assistant", **message}}]}, end, DONE))
    assert said(items) == expected


def delta(reason: Any = None, **members: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": members, "finish_reason": reason}]}


def whole(reason: Any = "stop", **members: Any) -> dict[str, Any]:
    message = {"role": "assistant", **members}
    return {"choices": [{"index": 0, "message": message, "finish_reason": reason}]}


def usage(**counts: Any) -> dict[str, Any]:
    return {"usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8, **counts}}


HELLO = {"text": "hello"} | STOP
COUNTED = HELLO | {"usage": (3, 5)}
PLAIN = json.dumps(whole(content="hello")).encode()
LINES = b"\n".join(
    json.dumps(event).encode() for event in (delta(content="hel"), delta("stop", content="lo"))
)
MESSAGE = {"index": 0, "message": {"content": "hello"}}
BODIES: dict[str, tuple[bytes, str, Any]] = {
    # what comes, under which label, what is read, whatever was asked
    "events labelled JSON": (sse(delta(content="hello"), delta("stop"), DONE), "application/json", HELLO),
    "JSON labelled events": (PLAIN, "text/event-stream", HELLO),
    "JSON behind a byte order mark": (b"\xef\xbb\xbf\n" + PLAIN, "application/json", HELLO),
    "lines of JSON": (LINES, "application/x-ndjson", HELLO),
    "events without blank lines": (
        sse(delta(content="hello"), delta("stop")).replace(b"\n\n", b"\n"),
        "text/plain",
        HELLO,
    ),
    "JSON lines between events": (
        sse(delta(content="hel")) + LINES[LINES.index(b"\n") :],
        "text/event-stream",
        HELLO,
    ),
    "comments and nothing in data": (
        sse(": note", "", "null", delta(content="hello"), delta("stop")) + b"data: [DONE] \n",
        "text/event-stream",
        HELLO,
    ),
    "no blank line at the end": (sse(delta(content="hello"), DONE).rstrip(), "text/event-stream", HELLO),
    "a whole message in place of a delta": (sse(whole(content="hello"), DONE), "text/event-stream", HELLO),
    "a whole message at the end": (
        sse(delta(content="hel"), delta(content="lo"), whole(content="hello"), DONE),
        "text/event-stream",
        HELLO,
    ),
    "messages next to deltas": (
        sse(*({"choices": [MESSAGE | {"delta": {"content": text}}]} for text in ("hel", "lo", "")), DONE),
        "text/event-stream",
        HELLO,
    ),
    "messages that grow": (
        sse(
            *({"choices": [{"message": {"content": text}}]} for text in ("he", "hell", "hello", "hello")),
            DONE,
        ),
        "text/event-stream",
        HELLO,
    ),
    "output after a reason": (
        sse(delta("stop", content="hel"), delta("stop", content="lo"), DONE),
        "text/event-stream",
        HELLO,
    ),
    "a second reason": (
        sse(delta("stop", content="hello"), delta("length"), DONE),
        "text/event-stream",
        HELLO,
    ),
    "an empty answer": (sse(delta(content=""), delta("stop"), DONE), "text/event-stream", STOP),
    "halves of characters": (
        rb'data: {"choices":[{"delta":{"content":"\ud83c"}}]}'
        + b"\n\n"
        + rb'data: {"choices":[{"delta":{"content":"\udf89"}}]}'
        b"\n\ndata: [DONE]\n\n",
        "text/event-stream",
        {"text": "🎉"} | STOP,
    ),
    "a half that another text follows": (
        rb'data: {"choices":[{"delta":{"reasoning":"a\ud83c"}}]}' + b"\n\n" + sse(delta("stop", content="b")),
        "text/event-stream",
        {"reasoning": "a\ufffd", "text": "b"} | STOP,
    ),
    "half a character": (
        rb'{"choices":[{"index":0,"message":{"content":"a\ud83c"},"finish_reason":"stop"}]}',
        "application/json",
        {"text": "a\ufffd"} | STOP,
    ),
    "bytes that are not UTF-8": (
        PLAIN.replace(b"hello", b"h\xff"),
        "application/json",
        {"text": "h\ufffd"} | STOP,
    ),
    "a control character": (PLAIN.replace(b"hello", b"a\nb"), "application/json", {"text": "a\nb"} | STOP),
    "an infinite number": (
        PLAIN.replace(b'"message"', b'"logprobs": [-Infinity, NaN], "message"'),
        "application/json",
        HELLO | {"logprobs": [None, None]},
    ),
    "usage in the chunk": (sse(delta("stop", content="hello") | usage(), DONE), "text/event-stream", COUNTED),
    "usage at the end": (
        sse(delta("stop", content="hello"), {"choices": [], **usage()}, {"usage": None}, DONE),
        "text/event-stream",
        COUNTED,
    ),
    "usage in the choice": (
        json.dumps({"choices": [whole(content="hello")["choices"][0] | usage()]}).encode(),
        "application/json",
        COUNTED,
    ),
    "usage in x_groq": (
        sse(delta("stop", content="hello") | {"x_groq": usage()}, DONE),
        "text/event-stream",
        COUNTED,
    ),
    "a delta that is no object and says nothing": (
        sse(delta(content="hello"), {"choices": [{"delta": "", "finish_reason": "stop"}]}, DONE),
        "text/event-stream",
        HELLO,
    ),
    "an index that counts tokens": (
        sse(
            *({"choices": [{"index": at, "delta": {"content": text}}]} for at, text in enumerate("hello")),
            {"choices": [{"index": 5, "delta": {}, "finish_reason": "stop"}]},
        ),
        "text/event-stream",
        HELLO,
    ),
    "an index of the only choice": (PLAIN.replace(b'"index": 0', b'"index": 7'), "application/json", HELLO),
    "usage that is too large": (
        json.dumps(whole(content="hello") | usage(x="y" * 17_000)).encode(),
        "application/json",
        HELLO,
    ),
    "a count of too many digits": (
        PLAIN[:-1]
        + b', "usage": {"prompt_tokens": '
        + b"9" * 5000
        + b', "completion_tokens": "'
        + b"9" * 5000
        + b'"}}',
        "application/json",
        HELLO | {"usage": (None, None)},
    ),
    "counts that are not whole": (
        json.dumps(whole(content="hello") | usage(prompt_tokens=3.0, completion_tokens="5")).encode(),
        "application/json",
        COUNTED,
    ),
}


@pytest.mark.parametrize("asked", [True, False], ids=["asked for a stream", "asked for a whole one"])
@pytest.mark.parametrize(("body", "kind", "expected"), BODIES.values(), ids=BODIES)
async def test_what_comes_decides_how_it_is_read(body: bytes, kind: str, expected: Any, asked: bool) -> None:
    for status in (200, 201):
        assert said(await answer(body, kind, stream=asked, status=status)) == expected


HTML = b"<html><title>502 Bad Gateway</title></html>"
FASTCHAT = {"text": "NETWORK ERROR", "error_code": 50001}
MINIMAX = {"choices": None, "base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}
BUSY = {"error": {"message": "Rate limited", "code": "rate_limit_exceeded"}, "retry_after": 4}
BEHIND = {
    "error": {"message": "no", "code": 400, "metadata": {"raw": '{"error":{"message":"prompt is too long"}}'}}
}
FAILURES: list[tuple[Any, str, bool, int | None, str]] = [
    # JSON that is no answer, and the failure: its code, whether it is tried again, its pause (ms), its words
    ({"object": "error", "message": "Too many requests", "code": 50001}, "MODEL_TOO_BUSY", True, 1000, "Too many requests"),
    ({"object": "error", "message": "context too long", "code": 400}, "CONTEXT_LENGTH", False, None, "context too long"),
    ({"status": "439", "msg": "Your token has expired", "body": None}, "UPSTREAM_AUTH", False, None, "token has expired"),
    (FASTCHAT, "UPSTREAM_ERROR", True, None, "NETWORK ERROR"),
    (MINIMAX, "UPSTREAM_QUOTA", False, None, "insufficient balance"),
    (BUSY, "MODEL_TOO_BUSY", True, 4000, "Rate limited"),
    (BEHIND, "CONTEXT_LENGTH", False, None, "prompt is too long"),
    ({"error": "boom"}, "UPSTREAM_ERROR", True, None, "boom"),
    ({"error": {}, "detail": {"error": {"message": "boom"}}}, "UPSTREAM_ERROR", True, None, "boom"),
    ({"errors": [{"code": 7009, "message": "boom"}], "success": False}, "UPSTREAM_ERROR", True, None, "boom"),
    ([{"error": {"code": 503, "message": "boom"}}], "MODEL_TOO_BUSY", True, None, "boom"),
    ({"error": "invalid_token", "error_description": "boom"}, "UPSTREAM_ERROR", True, None, "boom"),
    ({"message": "overloaded, try again in 2.5s", "code": 529}, "MODEL_TOO_BUSY", True, 2500, "overloaded"),
    ({"choices": [{"error": {"code": 502, "message": "boom"}, "finish_reason": "error"}]}, "UPSTREAM_ERROR", True, None, "boom"),
    ({"choices": [{"message": {"content": "a"}, "finish_reason": "abort"}]}, "UPSTREAM_ERROR", True, None, "abort"),
    ("text", "UPSTREAM_ERROR", True, None, "text"),
]  # fmt: skip
EMPTY: list[Any] = [
    {"choices": []},
    {"choices": None},
    {"id": "x"},
    {"choices": [{"message": {"content": ""}, "finish_reason": None}]},
]
"""JSON that says neither an answer nor an error."""


@pytest.mark.parametrize("form", ["JSON", "JSON as events", "event", "event that is named an error", "lines"])
@pytest.mark.parametrize(("found", "code", "retryable", "pause_ms", "words"), FAILURES)
async def test_an_error_in_any_form_is_a_failure_with_its_words(
    found: Any, code: str, retryable: bool, pause_ms: int | None, words: str, form: str
) -> None:
    raw = json.dumps(found).encode()
    body = {"JSON": raw, "JSON as events": raw, "event": sse(found, DONE), "lines": b"\n" + raw + b"\n"}.get(
        form
    )
    body = body or b"event: error\n" + sse(found, DONE)
    kind = "application/json" if form in ("JSON", "lines") else "text/event-stream"
    error = await failure(body, kind, stream=form != "JSON")
    assert (error.code, error.retryable, error.retry_after_ms) == (code, retryable, pause_ms)
    assert words in error.message


@pytest.mark.parametrize(
    ("body", "kind", "code", "words"),
    [
        *(
            (sse(found, DONE), "text/event-stream", "UPSTREAM_TRUNCATED", "without its end")
            for found in EMPTY
        ),
        *((json.dumps(found).encode(), "application/json", "UPSTREAM_ERROR", "{") for found in EMPTY),
        (sse(DONE), "text/event-stream", "UPSTREAM_TRUNCATED", "without its end"),
        (b"", "application/json", "UPSTREAM_TRUNCATED", "without its end"),
        (HTML, "text/html", "UPSTREAM_ERROR", "(text/html): <html><title>502 Bad Gateway"),
        (HTML, "text/event-stream", "UPSTREAM_ERROR", "(text/event-stream): <html><title>502 Bad Gateway"),
        (
            b"no healthy upstream sk-secret",
            "text/plain",
            "UPSTREAM_ERROR",
            "(text/plain): no healthy upstream ***",
        ),
        (sse("Internal Server Error"), "text/event-stream", "UPSTREAM_ERROR", "Internal Server Error"),
        (
            b'{"choices":[{"mess',
            "application/json",
            "UPSTREAM_ERROR",
            '(application/json): {"choices":[{"mess',
        ),
        (b'{"a":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}", "application/json", "JSON_PARSE_FAILED", ""),
    ],
)
@pytest.mark.parametrize("asked", [True, False])
async def test_what_is_no_answer_is_a_failure_that_shows_what_came(
    body: bytes, kind: str, code: str, words: str, asked: bool
) -> None:
    error = await failure(body, kind, stream=asked, headers={"Retry-After": "7"})
    assert (error.code, words in error.message) == (code, True), error.message
    assert error.retry_after_ms == (7000 if code == "UPSTREAM_ERROR" else None)
    assert "sk-secret" not in error.message


HALF = sse(delta("", content="Hel"))
ENDS: list[tuple[bytes, str, str]] = [
    (b"", "UPSTREAM_TRUNCATED", "without its end"),
    (b'data: {"choi', "UPSTREAM_TRUNCATED", "without its end"),
    (sse(delta("stop", content="lo"), delta(content="!")), "UPSTREAM_TRUNCATED", "without its end"),
    (sse({"message": "boom"}, DONE), "UPSTREAM_ERROR", "boom"),
    (b'event: error\ndata: {"message":"boom","code":529}\n\n' + sse(DONE), "MODEL_TOO_BUSY", "boom"),
    (b"event: error\n\n", "UPSTREAM_ERROR", "(text/event-stream)"),
    (b'{"error":{"message":"boom"}}\n', "UPSTREAM_ERROR", "boom"),
    (b"Bad Gateway\n", "UPSTREAM_ERROR", "Bad Gateway"),
    (sse(delta("network_error")), "UPSTREAM_ERROR", "network_error"),
    (sse({"x_groq": {"error": "boom"}}, DONE), "UPSTREAM_ERROR", "boom"),
]


@pytest.mark.parametrize(("end", "code", "words"), ENDS)
async def test_half_an_answer_is_a_failure(end: bytes, code: str, words: str) -> None:
    error = await failure(HALF + end)
    assert (error.code, words in error.message) == (code, True), error.message


@pytest.mark.parametrize(
    ("type", "asked"), [("openaiLike", {"n": 2}), ("openaiCompletion", {"prompt": ["a", "b"]})]
)
async def test_an_answer_without_its_end_has_as_many_choices_as_were_asked_for(type: str, asked: Any) -> None:
    payload, events = json.dumps(asked).encode(), []
    for index in range(2):
        events.append({"choices": [{"index": index, "text": "a", "finish_reason": "stop"}]})
        if index == 0:
            assert (await failure(sse(*events), type=type, payload=payload)).code == "UPSTREAM_TRUNCATED"
            assert said(await answer(sse(*events, DONE), type=type, payload=payload)) == {"text": "a"} | STOP
    deltas = await answer(sse(*events), type=type, payload=payload)
    assert [item.index for item in deltas if item.finish_reason] == [0, 1]


NORMAL = {
    "openaiLike": b'{"id":"1","choices":[{"index":0,"message":{"role":"assistant","content":"\\ud83c\\udf89","tool_calls":[{'
    b'"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},"finish_reason":"tool_calls","matched_stop":1.50}],"usage":'
    b'{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8,"x":{"y":1.50}}, "citations":["u"]}',
    "openaiCompletion": b'{"choices": [{"text":"a","index":0,"logprobs":null,"finish_reason":"stop"}], "x": 1.50}',
    "openaiEmbedding": b'{"data": [{"embedding": [1.50]}], "usage": {"prompt_tokens": 3, "total_tokens": 3}}',
}


@pytest.mark.parametrize("type", NORMAL)
async def test_a_whole_answer_in_the_normal_form_is_the_result_as_it_came(type: str) -> None:
    items = await answer(NORMAL[type], "application/json", stream=type == "openaiEmbedding", type=type)
    assert bytes(items[-1].value) == NORMAL[type]
    assert [item.input_tokens for item in items[:-1]] == ([] if type == "openaiCompletion" else [3])


async def test_another_whole_answer_keeps_its_further_members_and_has_a_reason_and_whole_calls() -> None:
    calls = [{"id": "c", "function": {"name": "f"}}, {"id": "c", "function": {"name": "g", "arguments": ""}}]
    body = whole(None, content=None, tool_calls=calls) | {
        "id": "x",
        "model": "up",
        "created": 5,
        "provider": "p",
        "citations": ["u"],
    }
    (result,) = (
        await answer(
            json.dumps(body | usage(completion_tokens=None)).encode(), "application/json", stream=False
        ),
    )
    made = msgspec.json.decode(bytes(result[-1].value))
    assert made.pop("choices")[0]["message"]["tool_calls"] == [
        {"id": "c", "function": {"name": name, "arguments": "{}"}} for name in ("f", "g")
    ]
    head = {
        "id": "x",
        "object": "chat.completion",
        "created": 5,
        "model": "up",
        "provider": "p",
        "citations": ["u"],
    }
    assert made == head  # the gateway adds usage that is not complete
    text = {"choices": [{"text": "a", "finish_reason": "eos_token"}]}
    (made,) = await answer(json.dumps(text).encode(), stream=False, type="openaiCompletion")
    (choice,) = msgspec.json.decode(bytes(made.value))["choices"]
    assert choice == {"index": 0, "text": "a", "finish_reason": "stop", "native_finish_reason": "eos_token"}


async def test_who_asks_for_functions_gets_a_function_call() -> None:
    body = json.dumps(whole("function_call", function_call=CALL)).encode()
    told = said(await answer(body, "application/json", stream=False, payload=b'{"functions":[{"name":"f"}]}'))
    assert told == {"function_call": CALL, "finish_reason": "function_call"}


async def test_what_holds_for_the_whole_answer_goes_with_the_first_output_or_comes_last() -> None:
    head = {"id": "up-1", "system_fingerprint": "fp", "service_tier": None, "obfuscation": "xx"}
    first = {**head, **delta(role="assistant", content="")}
    end = {**head, **delta("stop"), "timings": {"ms": 5}, "citations": ["u"]}
    items = await answer(
        sse(first, head | delta(content="a") | {"citations": []}, head | delta(content="b"), end, DONE)
    )
    assert [msgspec.json.decode(encoder.encode(item)) for item in items] == [
        {"content": "a", "extra": {"response": {"id": "up-1", "system_fingerprint": "fp"}}},
        {"content": "b"},
        {"finishReason": "stop"},
        {"extra": {"response": {"timings": {"ms": 5}, "citations": ["u"]}}},
    ]


@pytest.mark.parametrize(
    "event",
    [
        b'{"choices":[1]}',
        b'{"choices":"x"}',
        b'{"choices":[{"delta":3}]}',
        b'{"choices":[{"index":"x"}]}',
        b'{"choices":[{"index":[]}]}',
        b'{"choices":[{"index":-1}]}',
        b'{"choices":[{"index":1024}]}',
        b'{"choices":[{"delta":{"tool_calls":"a"}}]}',
        b'{"choices":[' + b",".join([b"{}"] * 1025) + b"]}",
        b'{"choices":[' + b",".join([b"{}"] * 400_000) + b"]}",
        b'{"choices":[{"delta":{"tool_calls":[' + b",".join([b"{}"] * 1025) + b"]}}]}",
    ],
    ids=range(11),
)
def test_what_is_not_a_chunk_is_a_value_error(event: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        OpenAIReader(Head("t", "m", 0)).read(event)
