"""Each provider's adapter against scripted upstreams: what goes over the wire, errors, broken and endless answers."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
import pytest
import respx
from tests.support.upstreams import (
    Script,
    anthropic_error,
    anthropic_events,
    anthropic_message,
    gemini_chunks,
    gemini_content,
    sse,
)

from fairlane.workers.adapters import PROVIDERS
from fairlane.workers.adapters.clock import Limits
from fairlane.workers.adapters.upstream import Upstream
from fairlane.workers.sdk import Context, Delta, Result, Task, TaskError, Usage, Worker

pytestmark = pytest.mark.anyio
HI = {"messages": [{"role": "user", "content": "hi"}]}
BASE = "http://upstream.test/v1"
PATHS = {
    "anthropic": "/messages",
    "gemini": "/models/m:streamGenerateContent?alt=sse",
    **dict.fromkeys(("openai", "deepseek", "glm", "vllm", "ollama"), "/chat/completions"),
}
STREAMS = {
    "anthropic": sse(*anthropic_events([{"type": "text", "text": "hello"}]), named=True),
    "gemini": sse(*gemini_chunks([{"text": "hello"}])),
    "openai": sse(
        {"choices": [{"delta": {"content": "hello"}}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
        "[DONE]",
    ),
}
STREAMS |= dict.fromkeys(("deepseek", "glm", "vllm", "ollama"), STREAMS["openai"])


def adapter(name: str, **options: Any) -> Upstream:
    return PROVIDERS[name].adapter(**{"base_url": BASE, "models": ["m"], "api_key": "sk-1", **options})


async def run(adapter: Upstream, payload: Any = HI, *, stream: bool = True) -> list[Any]:
    raw = msgspec.json.encode(payload)
    task = Task(task_id="t", type="openaiLike", model="m", payload_bytes=raw, stream=stream)
    context = Context(task)
    items = []
    try:
        async for item in adapter(task, context):
            items.append(item)
    except TaskError as error:
        items.append(error)
    finally:
        await adapter.aclose()
    return items


async def failure(adapter: Upstream, payload: Any = HI, *, stream: bool = True) -> TaskError:
    error = (await run(adapter, payload, stream=stream))[-1]
    assert isinstance(error, TaskError)
    return error


def events(body: bytes) -> httpx2.Response:
    return httpx2.Response(200, headers={"Content-Type": "text/event-stream"}, content=body)


def sent(route: respx.Route) -> Any:
    return msgspec.json.decode(route.calls.last.request.content)


@pytest.mark.parametrize("name", PATHS)
@respx.mock
async def test_each_provider_streams_text_usage_and_its_end(name: str) -> None:
    respx.post(BASE + PATHS[name]).mock(return_value=events(STREAMS[name]))
    items = await run(adapter(name))
    assert "".join(item.content or "" for item in items if isinstance(item, Delta)) == "hello"
    assert [item.finish_reason for item in items if isinstance(item, Delta)][-1] == "stop"
    (usage,) = (item for item in items if isinstance(item, Usage))
    assert usage.input_tokens
    assert usage.output_tokens


@respx.mock
async def test_the_key_goes_where_each_looks_for_it() -> None:
    found = {}
    for name in ("anthropic", "gemini", "openai"):
        route = respx.post(BASE + PATHS[name]).mock(return_value=events(STREAMS[name]))
        await run(adapter(name))
        headers = route.calls.last.request.headers
        found[name] = {k: v for k, v in headers.items() if "sk-1" in v or k == "anthropic-version"}
        assert "sk-1" not in str(route.calls.last.request.url)
    assert found == {
        "anthropic": {"x-api-key": "sk-1", "anthropic-version": "2023-06-01"},
        "gemini": {"x-goog-api-key": "sk-1"},
        "openai": {"authorization": "Bearer sk-1"},
    }


@respx.mock
async def test_whole_answers_are_completions() -> None:
    answers = {
        "/messages": anthropic_message([{"type": "text", "text": "hello"}]),
        "/models/m:generateContent": gemini_content([{"text": "hello"}]),
    }
    for name, (path, answer) in zip(("anthropic", "gemini"), answers.items(), strict=True):
        respx.post(BASE + path).mock(return_value=httpx2.Response(200, json=answer))
        usage, result = await run(adapter(name), stream=False)
        assert isinstance(usage, Usage)
        assert isinstance(result, Result)
        choice = json.loads(bytes(result.value))["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("hello", "stop")
        # an upstream that takes no notice of `stream`
        respx.post(BASE + PATHS[name]).mock(return_value=httpx2.Response(200, json=answer))
        assert isinstance((await run(adapter(name)))[-1], Result)


@pytest.mark.parametrize("name", ["deepseek", "glm", "ollama"])
@respx.mock
async def test_what_a_preset_s_server_knows_by_another_name_is_said_by_that(name: str) -> None:
    route = respx.post(BASE + "/chat/completions").mock(return_value=events(STREAMS[name]))
    messages = [{"role": "developer", "content": "x"}, {"role": "user", "content": "developer"}]
    await run(adapter(name), {"messages": messages, "max_completion_tokens": 5, "seed": 1.50})
    body = sent(route)
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert (body["max_tokens"], "max_completion_tokens" in body, body["seed"]) == (5, False, 1.5)


# ---- errors --------------------------------------------------------------------------------------


def google_error(code: int, status: str, message: str = "no", details: Any = ()) -> Any:
    return {"error": {"code": code, "message": message, "status": status, "details": list(details)}}


RETRY_INFO = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "22.5s"}
BAD_KEY = {
    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
    "reason": "API_KEY_INVALID",
    "domain": "googleapis.com",
}
LOW = "Your credit balance is too low to access the Anthropic API."
LONG = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."


def glm_error(code: str) -> Any:
    return {"error": {"code": code, "message": "no"}}


ERRORS: list[tuple[str, int, Any, str, bool]] = [
    ("anthropic", 400, anthropic_error("invalid_request_error"), "BAD_REQUEST", False),
    ("anthropic", 400, anthropic_error("invalid_request_error", LOW), "UPSTREAM_QUOTA", False),
    (
        "anthropic",
        400,
        anthropic_error("invalid_request_error", "prompt is too long: 2 > 1"),
        "CONTEXT_LENGTH",
        False,
    ),
    ("anthropic", 401, anthropic_error("authentication_error"), "UPSTREAM_AUTH", False),
    ("anthropic", 402, anthropic_error("billing_error"), "UPSTREAM_QUOTA", False),
    ("anthropic", 403, anthropic_error("permission_error"), "UPSTREAM_AUTH", False),
    ("anthropic", 404, anthropic_error("not_found_error", "model: m"), "UPSTREAM_ERROR", False),
    ("anthropic", 413, anthropic_error("request_too_large"), "BAD_REQUEST", False),
    ("anthropic", 429, anthropic_error("rate_limit_error"), "MODEL_TOO_BUSY", True),
    ("anthropic", 500, anthropic_error("api_error"), "UPSTREAM_ERROR", True),
    ("anthropic", 529, anthropic_error("overloaded_error"), "MODEL_TOO_BUSY", True),
    ("gemini", 400, google_error(400, "INVALID_ARGUMENT"), "BAD_REQUEST", False),
    ("gemini", 400, google_error(400, "INVALID_ARGUMENT", LONG), "CONTEXT_LENGTH", False),
    ("gemini", 400, google_error(400, "INVALID_ARGUMENT", details=[BAD_KEY]), "UPSTREAM_AUTH", False),
    ("gemini", 400, google_error(400, "FAILED_PRECONDITION"), "UPSTREAM_QUOTA", False),
    ("gemini", 403, google_error(403, "PERMISSION_DENIED"), "UPSTREAM_AUTH", False),
    ("gemini", 404, google_error(404, "NOT_FOUND"), "UPSTREAM_ERROR", False),
    ("gemini", 429, [google_error(429, "RESOURCE_EXHAUSTED")], "MODEL_TOO_BUSY", True),
    ("gemini", 500, google_error(500, "INTERNAL"), "UPSTREAM_ERROR", True),
    ("gemini", 503, google_error(503, "UNAVAILABLE"), "MODEL_TOO_BUSY", True),
    ("gemini", 504, google_error(504, "DEADLINE_EXCEEDED"), "UPSTREAM_TIMEOUT", True),
    *(("glm", 429, glm_error(code), "MODEL_TOO_BUSY", True) for code in ("1302", "1303", "1305")),
    *(("glm", 429, glm_error(code), "UPSTREAM_QUOTA", False) for code in ("1113", "1308", "1310")),
    ("glm", 401, glm_error("1002"), "UPSTREAM_AUTH", False),
    ("glm", 400, glm_error("1214"), "BAD_REQUEST", False),
    ("glm", 400, glm_error("1301"), "CONTENT_FILTERED", False),
    ("glm", 400, glm_error("1211"), "UPSTREAM_ERROR", False),
    ("glm", 400, glm_error("1261"), "CONTEXT_LENGTH", False),
    ("openai", 429, {"error": {"code": "insufficient_quota", "message": "no"}}, "UPSTREAM_QUOTA", False),
    ("openai", 429, {"error": {"code": "rate_limit_exceeded", "message": "no"}}, "MODEL_TOO_BUSY", True),
    ("deepseek", 402, {"error": {"message": "Insufficient Balance"}}, "UPSTREAM_QUOTA", False),
    ("deepseek", 503, {"error": {"message": "busy"}}, "MODEL_TOO_BUSY", True),
]


@pytest.mark.parametrize(("name", "status", "answer", "code", "retryable"), ERRORS)
@respx.mock
async def test_a_provider_s_refusal_becomes_this_failure(
    name: str, status: int, answer: Any, code: str, retryable: bool
) -> None:
    respx.post(BASE + PATHS[name]).mock(return_value=httpx2.Response(status, json=answer))
    error = await failure(adapter(name))
    assert (error.code, error.retryable, error.http_status) == (code, retryable, status)


IN_STREAM: list[tuple[str, Any, str]] = [
    ("anthropic", anthropic_error("overloaded_error"), "MODEL_TOO_BUSY"),
    ("anthropic", anthropic_error("rate_limit_error"), "MODEL_TOO_BUSY"),
    ("anthropic", anthropic_error("api_error"), "UPSTREAM_ERROR"),
    ("anthropic", anthropic_error("invalid_request_error"), "BAD_REQUEST"),
    ("anthropic", anthropic_error("billing_error"), "UPSTREAM_QUOTA"),
    ("gemini", google_error(503, "UNAVAILABLE"), "MODEL_TOO_BUSY"),
    ("gemini", google_error(429, "RESOURCE_EXHAUSTED", details=[RETRY_INFO]), "MODEL_TOO_BUSY"),
    ("gemini", google_error(400, "INVALID_ARGUMENT"), "BAD_REQUEST"),
    ("glm", glm_error("1113"), "UPSTREAM_QUOTA"),
    ("glm", {"choices": [{"delta": {}, "finish_reason": "network_error"}]}, "UPSTREAM_ERROR"),
    (
        "deepseek",
        {"choices": [{"delta": {}, "finish_reason": "insufficient_system_resource"}]},
        "UPSTREAM_ERROR",
    ),
]


@pytest.mark.parametrize(("name", "event", "code"), IN_STREAM)
@respx.mock
async def test_an_error_after_a_good_beginning_becomes_this_failure(name: str, event: Any, code: str) -> None:
    beginning = STREAMS[name].partition(b"\n\n")[0] + b"\n\n" if name in ("anthropic", "gemini") else b""
    respx.post(BASE + PATHS[name]).mock(return_value=events(beginning + sse(event)))
    items = await run(adapter(name))
    assert isinstance(items[-1], TaskError)
    assert items[-1].code == code
    if beginning:
        assert any(isinstance(item, Usage) for item in items)  # what was used so far is told all the same


@pytest.mark.parametrize(
    ("headers", "pause_ms"), [({}, 22_500), ({"Retry-After": "3"}, 3_000), ({"retry-after-ms": "40"}, 40)]
)
@respx.mock
async def test_google_s_retry_info_is_a_pause_where_no_header_says_one(
    headers: dict[str, str], pause_ms: int
) -> None:
    answer = google_error(429, "RESOURCE_EXHAUSTED", details=[{"retryDelay": "x"}, "y", RETRY_INFO])
    respx.post(BASE + PATHS["gemini"]).mock(return_value=httpx2.Response(429, json=answer, headers=headers))
    assert (await failure(adapter("gemini"))).retry_after_ms == pause_ms


# ---- broken, endless and silent answers ----------------------------------------------------------


@pytest.mark.parametrize("name", ["anthropic", "gemini", "openai"])
@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "UPSTREAM_TRUNCATED"),
        (b": nothing\n\n\n\n", "UPSTREAM_TRUNCATED"),
        (b'data: {"type":', "UPSTREAM_TRUNCATED"),
        (b"data: <html>\n\n", "UPSTREAM_ERROR"),
        (b'data: "text"\n\n', "UPSTREAM_ERROR"),
        (b"data: " + b"[" * 5000 + b"\n\n", "JSON_PARSE_FAILED"),
    ],
)
@respx.mock
async def test_a_stream_of_garbage_ends_with_a_clear_failure(name: str, body: bytes, code: str) -> None:
    respx.post(BASE + PATHS[name]).mock(return_value=events(body))
    assert (await failure(adapter(name))).code == code


@pytest.mark.parametrize("name", ["anthropic", "gemini"])
@respx.mock
async def test_a_stream_that_is_cut_anywhere_is_a_truncation_and_tells_its_usage(name: str) -> None:
    for end in range(100, len(STREAMS[name]) - 2, 97):
        respx.post(BASE + PATHS[name]).mock(return_value=events(STREAMS[name][:end]))
        items = await run(adapter(name))
        if isinstance(items[-1], TaskError):
            assert items[-1].code == "UPSTREAM_TRUNCATED"
        else:  # only the last blank line, or what says nothing, is missing
            assert b'"stop_reason": "' in STREAMS[name][:end] or b"finishReason" in STREAMS[name][:end]
        if any(isinstance(item, Delta) for item in items):
            assert any(isinstance(item, Usage) for item in items)


FIRST_TOKEN = {
    "anthropic": sse(*anthropic_events([{"type": "text", "text": "abc"}])[:4], named=True),
    "gemini": sse(gemini_content([{"text": "abc"}], finish=None)),
    "deepseek": sse({"choices": [{"delta": {"content": "abc"}}]}),
}
HEARTBEATS = {
    "anthropic": sse({"type": "ping"}, named=True),
    "gemini": b"\r\n\r\n",
    "deepseek": b": keep-alive\n\n",
}


@pytest.mark.parametrize("name", HEARTBEATS)
async def test_heartbeats_after_output_are_silence(name: str) -> None:
    async def write() -> AsyncIterator[bytes]:
        yield FIRST_TOKEN[name]
        while True:
            yield HEARTBEATS[name]
            await asyncio.sleep(0.005)

    upstream = Script(write)
    limits = Limits(ttft_ms=60_000, idle_ms=40, total_ms=60_000)
    items = await run(adapter(name, transport=upstream, limits=limits))
    assert isinstance(items[0], Delta)
    assert isinstance(items[-1], TaskError)
    assert "silent for 40 ms" in items[-1].message
    assert upstream.closed.is_set()


@pytest.mark.parametrize("name", ["gemini", "openai"])
@pytest.mark.parametrize("breaks", [False, True])
async def test_an_answer_that_was_whole_when_its_connection_hung_or_broke_is_one(
    name: str, breaks: bool
) -> None:
    async def write() -> AsyncIterator[bytes]:
        yield STREAMS[name].removesuffix(b"data: [DONE]\n\n")
        if breaks:
            raise httpx2.ReadError("reset")
        await asyncio.Event().wait()

    upstream = Script(write)
    items = await run(adapter(name, transport=upstream, limits=Limits(60_000, 40, 60_000)))
    assert isinstance(items[-1], Usage)
    assert upstream.closed.is_set()


@pytest.mark.parametrize("name", FIRST_TOKEN)
async def test_cancellation_closes_the_upstream_s_stream(name: str) -> None:
    async def write() -> AsyncIterator[bytes]:
        yield FIRST_TOKEN[name]
        await asyncio.Event().wait()

    upstream = Script(write)
    running = asyncio.create_task(run(adapter(name, transport=upstream)))
    async with asyncio.timeout(5):
        await upstream.reading.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert upstream.closed.is_set()


@respx.mock
async def test_a_task_that_a_dialect_cannot_say_is_refused_and_not_offered() -> None:
    for name in ("anthropic", "gemini"):
        one = adapter(name)
        worker = Worker()
        one.attach(worker)
        assert worker.registry.find("m", "openaiLike") is not None
        assert worker.registry.find("m", "openaiEmbedding") is None
        assert (await failure(one, {**HI, "functions": [{}]})).code == "BAD_REQUEST"
        assert not respx.calls


@respx.mock
async def test_an_upstream_s_list_of_models_is_read_in_each_dialect() -> None:
    google = {"models": [{"name": "models/m", "inputTokenLimit": 1000, "outputTokenLimit": 24}, {"name": 5}]}
    respx.get(BASE + "/models?pageSize=1000").mock(return_value=httpx2.Response(200, json=google))
    respx.get(BASE + "/models?limit=1000").mock(
        return_value=httpx2.Response(200, json={"data": [{"id": "m"}]})
    )
    listed = await adapter("gemini").list_models()
    assert (listed["m"].context_length, listed["m"].owned_by) == (1024, "google")
    assert set(await adapter("anthropic").list_models()) == {"m"}


def test_the_table_has_the_names_that_are_promised_and_each_makes_an_adapter() -> None:
    assert set(PROVIDERS) == {"openai", "deepseek", "glm", "vllm", "ollama", "anthropic", "gemini"}
    for name, provider in PROVIDERS.items():
        assert provider.name == name
        provider.adapter(models=["m"], api_key="k")
