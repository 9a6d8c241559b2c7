"""The OpenAI-compatible adapter against scripted upstreams."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import msgspec
import pytest
import respx
from tests.support.upstreams import Script

from fairlane.workers.adapters import PROVIDERS
from fairlane.workers.adapters.clock import Limits
from fairlane.workers.adapters.upstream import Upstream
from fairlane.workers.sdk import Context, Delta, Task, TaskError, Usage

pytestmark = pytest.mark.anyio
BASE = "http://upstream.test/v1"
CHAT = f"{BASE}/chat/completions"


def task(payload: Any, *, type: str = "openaiLike", stream: bool = True, model: str = "m") -> Task:
    raw = payload if isinstance(payload, bytes) else msgspec.json.encode(payload)
    return Task(task_id="t", type=type, model=model, payload_bytes=raw, stream=stream)


async def run(adapter: Upstream, task: Task, remaining_s: float | None = None) -> list[Any]:
    loop = asyncio.get_running_loop()

    context = Context(task, deadline=None if remaining_s is None else loop.time() + remaining_s)
    try:
        return [item async for item in adapter(task, context)]
    finally:
        await adapter.aclose()


def adapter(**options: Any) -> Upstream:
    return PROVIDERS["openai"].adapter(**{"base_url": BASE, "models": ["m"], **options})


def sse(*events: Any, done: bool = True) -> httpx2.Response:
    lines = [e if isinstance(e, bytes) else msgspec.json.encode(e) for e in events]
    if done:
        lines.append(b"[DONE]")
    body = b"".join(b"data: " + line + b"\n\n" for line in lines)
    return httpx2.Response(200, headers={"Content-Type": "text/event-stream"}, content=body)


WHOLE = {"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}]}


def word(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


def sent(route: respx.Route) -> Any:
    return msgspec.json.decode(route.calls.last.request.content)


@respx.mock
async def test_a_stream_becomes_deltas_and_usage() -> None:
    route = respx.post(CHAT).mock(
        return_value=sse(
            word("a"),
            word("b", "stop"),
            {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}},
        )
    )
    items = await run(adapter(api_key="sk-1"), task({"messages": [], "seed": 7}))
    assert [i.content for i in items if isinstance(i, Delta)] == ["a", "b", None]
    assert [(i.input_tokens, i.output_tokens) for i in items if isinstance(i, Usage)] == [(1, 2)]
    assert sent(route) == {
        "messages": [],
        "seed": 7,
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert route.calls.last.request.headers["Authorization"] == "Bearer sk-1"


@respx.mock
async def test_the_payload_s_other_members_keep_their_bytes() -> None:
    route = respx.post(CHAT).mock(return_value=sse(word("a")))
    payload = (
        b'{"model":"x","temperature":1.50,"seed":12345678901234567890123,"stream":true,"stream_options":{}}'
    )
    await run(adapter(models={"m": "real"}), task(payload, stream=False))
    assert (
        route.calls.last.request.content
        == b'{"model":"real","temperature":1.50,"seed":12345678901234567890123,"stream":false}'
    )


SENT = """
    model top_p n stop seed max_tokens tool_choice parallel_tool_calls response_format logprobs top_logprobs logit_bias user
    frequency_penalty presence_penalty stream_options prediction modalities audio reasoning_effort verbosity safety_identifier
    functions function_call top_k min_p repetition_penalty stop_token_ids guided_json structured_outputs regex ebnf
    chat_template_kwargs thinking enable_thinking reasoning
"""
NOT_SENT = """
    bootstrap_host bootstrap_port bootstrap_room data_parallel_rank rid priority request_id kv_transfer_params vllm_xargs
    cache_salt prompt_cache_key prompt_cache_retention custom_params mm_processor_kwargs service_tier store metadata
    keep_alive options input_cost_per_token output_cost_per_token num_retries tags guardrails cache api_version
    aws_role_name azure_ad_token vertex_credentials litellm_params headers extra_headers extra_body ssl_verify
    context_window_fallbacks transforms usage prompt input unheard_of
    Model MODEL STREAM \u017ftream Stream_Options N Fallbacks API_BASE
"""
REJECTED = """
    api_base api_key base_url organization custom_llm_provider deployment_id model_list fallbacks models route provider preset
    plugins web_search_options data_sources custom_logit_processor session_params lora_path chat_template mock_response grammar
"""


@respx.mock
async def test_cookies_of_one_task_are_not_sent_with_the_next() -> None:
    route = respx.post(CHAT).respond(headers={"Set-Cookie": "session=1"}, json=WHOLE)
    upstream = adapter()
    for _ in range(2):
        assert [item async for item in upstream(task({}, stream=False), Context(task({})))]
    assert all("Cookie" not in call.request.headers for call in route.calls)
    await upstream.aclose()


async def test_a_server_of_this_machine_is_asked_through_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []

    def serving(name: str) -> Any:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.append(name)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            writer.close()

        return asyncio.start_server(answer, "127.0.0.1", 0)

    async with await serving("proxy") as proxy, await serving("upstream") as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        for host in ("127.0.0.1", "localhost", "upstream.test"):
            base_url = f"http://{host}:{server.sockets[0].getsockname()[1]}/v1"
            with pytest.raises(TaskError):
                await run(adapter(base_url=base_url), task({}))
    assert heard == ["upstream", "upstream", "proxy"]


@respx.mock
async def test_what_makes_an_answer_is_sent_and_what_says_nothing_or_is_unknown_is_not() -> None:
    route = respx.post(CHAT).mock(return_value=sse(word("a")))
    asked = {name: {"a": 1} for name in (SENT + NOT_SENT).split()} | dict.fromkeys(REJECTED.split())
    await run(adapter(), task({**asked, "messages": []}))
    assert set(sent(route)) == {*SENT.split(), "messages", "stream"}


USER = {"role": "user", "content": "a"}
CALLS = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
UNTYPED: list[Any] = [
    {"messages": [{"role": "user", "content": [{"type": None, "text": "x"}]}]},
    {"tools": [{"type": None, "function": {"name": "f"}}]},
]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "stop": [], "user": None}, {}),
        ({"tools": None, "tool_choice": "none"}, {}),
        ({"tools": "", "response_format": "", "stop": "", "user": "", "tool_choice": "auto"}, {}),
        *(
            ({"messages": [{**said, **nothing}]}, {"messages": [said]})
            for said in ({"role": "assistant", "content": None, "tool_calls": CALLS}, USER)
            for nothing in ({}, {"refusal": None, "annotations": [], "audio": None, "name": None})
        ),
        (
            {"messages": [{"role": "assistant", "content": [], "tool_calls": CALLS}]},
            {"messages": [{"role": "assistant", "content": None, "tool_calls": CALLS}]},
        ),
        ({"messages": [{**USER, "tool_calls": []}]}, {}),
        *((asked, asked) for asked in UNTYPED),
    ],
)
@respx.mock
async def test_what_a_client_says_with_null_or_an_empty_list_is_not_sent(asked: Any, expected: Any) -> None:
    route = respx.post(CHAT).mock(return_value=sse(word("a")))
    await run(adapter(), task({"messages": [USER], **asked}))
    body = {name: value for name, value in sent(route).items() if not name.startswith("stream")}
    assert body == {"model": "m", "messages": [USER], **expected}


CHAT_REJECTED: dict[str, Any] = {name: {name: ["x"]} for name in REJECTED.split()} | {
    "a template for the template": {"chat_template_kwargs": {"chat_template": "{{ x }}"}},
    **{
        f"the tool {tool.get('type')}": {"tools": [{"type": "function", "function": {"name": "f"}}, tool]}
        for tool in ({"type": "mcp", "server_url": "http://x"}, {"type": "web_search"}, {"google_search": {}})
    },
    **{
        f"a part: {part}": {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, part]}]}
        for part in (
            {"type": "file", "file": {"file_id": "file-1"}},
            {"type": "input_file", "file_id": "file-1"},
            {"type": "image_url", "file_id": "file-1", "image_url": {"url": "https://x.test"}},
            {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
            {"type": "image_url", "image_url": "/etc/passwd"},
            {"image_url": {"url": "file:///etc/passwd"}},
            {"type": "text", "text": "a", "image_url": "file:///etc/passwd"},
            {"type": "video_url", "video_url": {"url": "file-1"}},
            {"type": "image_embeds", "image_embeds": "gAAA"},
        )
    },
    "one part by itself": {
        "messages": [{"role": "user", "content": {"type": "file", "file": {"file_id": "x"}}}]
    },
    "messages that cannot be read": {"messages": [1]},
}


@pytest.mark.parametrize("case", CHAT_REJECTED)
@respx.mock
async def test_a_request_for_another_source_than_the_model_is_rejected_and_never_sent(case: str) -> None:
    route = respx.post(CHAT).mock(return_value=sse(word("a")))
    plain = msgspec.json.encode({"messages": [], **CHAT_REJECTED[case]})
    for raw in (plain, plain.replace(b"file_id", b"file\\u005fid").replace(b"s", b"\\u0073")):
        with pytest.raises(TaskError) as caught:
            await run(adapter(), task(raw))
        assert (caught.value.code, caught.value.retryable) == ("BAD_REQUEST", False)
    assert not route.called


@respx.mock
async def test_an_operator_may_allow_a_member_a_tool_a_part_and_file_ids() -> None:
    route = respx.post(CHAT).mock(return_value=sse(word("a")))
    asked: dict[str, Any] = {"provider": {"order": ["x"]}, "tools": [{"type": "web_search"}], "Model": "x"}
    asked["messages"] = [{"role": "user", "content": [{"type": "input_file", "file_id": "file-1"}]}]
    names = ["provider", "tools.web_search", "content.input_file", "file_id"]
    await run(adapter(quirks=dict.fromkeys(names, "allow")), task(asked))
    del asked["Model"]
    assert {name: sent(route)[name] for name in asked} == asked
    for name in names:
        with pytest.raises(TaskError):
            await run(adapter(quirks=dict.fromkeys({*names} - {name}, "allow")), task(asked))


def body(message: str = "why", **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, **more}}


NO_SUCH_PATH: list[Any] = [
    "",
    "404 page not found",
    "<html><head><title>404 Not Found</title></head></html>",
    {"detail": "Not Found"},
    body("File Not Found", type="not_found_error", code=404),
    body("Invalid URL (POST /chat/completions)", type="invalid_request_error"),
    body("There is no POST /chat/completions.", type="invalid_request_error"),
]
"""What Go's servers, nginx, FastAPI, llama.cpp, OpenAI and Fairlane answer under a wrong base URL."""

TOO_LARGE = (
    "Request too large for gpt-4 in organization org-x on tokens per min (TPM): Limit 10000, Requested 13000. The input or output"
    " tokens must be reduced in order to run successfully."
)
TOO_MUCH = (
    "Rate limit reached for gpt-4 in organization org-x on tokens per min (TPM): Limit 10000, Used 9000, Requested 2000. Please"
    " try again in 6s."
)

REFUSALS: list[tuple[int, Any, str, bool]] = [
    (429, body(), "MODEL_TOO_BUSY", True),
    (503, body(), "MODEL_TOO_BUSY", True),
    (529, body(type="overloaded_error"), "MODEL_TOO_BUSY", True),
    (408, body(), "UPSTREAM_TIMEOUT", True),
    (429, body(code="insufficient_quota"), "UPSTREAM_QUOTA", False),
    (429, body("Request too large: too many tokens per minute"), "MODEL_TOO_BUSY", True),
    (429, body(TOO_LARGE, type="tokens", code="rate_limit_exceeded"), "CONTEXT_LENGTH", False),
    (
        413,
        body(TOO_LARGE.replace("13000", "13,000"), type="tokens", code="rate_limit_exceeded"),
        "CONTEXT_LENGTH",
        False,
    ),
    (429, body(TOO_MUCH, type="tokens", code="rate_limit_exceeded"), "MODEL_TOO_BUSY", True),
    (402, body("Insufficient Balance"), "UPSTREAM_QUOTA", False),
    (401, body(), "UPSTREAM_AUTH", False),
    (403, body(), "UPSTREAM_AUTH", False),
    (400, body(), "BAD_REQUEST", False),
    (404, body(code="model_not_found"), "UPSTREAM_ERROR", False),
    (404, body("The model `x` was not found", type="not_found_error"), "UPSTREAM_ERROR", False),
    (429, body("Limit 1, Requested " + "9" * 5000), "MODEL_TOO_BUSY", True),
    (422, '{"detail":[{"loc":[],"msg":"\\ud800"}]}', "BAD_REQUEST", False),
    *((404, answer, "UPSTREAM_ERROR", False) for answer in NO_SUCH_PATH),
    (413, body(), "BAD_REQUEST", False),
    (422, {"detail": [{"loc": ["body"], "msg": "field required"}]}, "BAD_REQUEST", False),
    (400, body(code="context_length_exceeded"), "CONTEXT_LENGTH", False),
    (400, body(type="exceed_context_size_error", n_ctx=512), "CONTEXT_LENGTH", False),
    (400, body("This model's maximum context length is 8192 tokens."), "CONTEXT_LENGTH", False),
    (400, {"message": "the request exceeds the available context size"}, "CONTEXT_LENGTH", False),
    (500, body("the prompt is larger than the context window"), "CONTEXT_LENGTH", False),
    (400, body(code="content_filter"), "CONTENT_FILTERED", False),
    (400, body(innererror={"code": "content_filter"}), "CONTENT_FILTERED", False),
    (500, body(), "UPSTREAM_ERROR", True),
    (502, "<html>Bad Gateway</html>", "UPSTREAM_ERROR", True),
    (504, "", "UPSTREAM_TIMEOUT", True),
    (522, "", "UPSTREAM_TIMEOUT", True),
    (524, "", "UPSTREAM_TIMEOUT", True),
    (520, "", "UPSTREAM_ERROR", True),
    (409, body(), "UPSTREAM_ERROR", True),
    (425, body(), "MODEL_TOO_BUSY", True),
    (501, body(), "UPSTREAM_ERROR", False),
    (505, "", "UPSTREAM_ERROR", False),
    (511, "", "UPSTREAM_ERROR", False),
    (301, "", "UPSTREAM_ERROR", False),
]


@pytest.mark.parametrize(("status", "answer", "code", "retryable"), REFUSALS)
@respx.mock
async def test_a_refusal_becomes_this_failure(status: int, answer: Any, code: str, retryable: bool) -> None:
    content = answer.encode() if isinstance(answer, str) else msgspec.json.encode(answer)
    respx.post(CHAT).mock(return_value=httpx2.Response(status, content=content, headers={"Retry-After": "7"}))
    with pytest.raises(TaskError) as caught:
        await run(adapter(), task({}))
    error = caught.value
    assert (error.code, error.retryable, error.http_status) == (code, retryable, status)
    blames_request = code in ("BAD_REQUEST", "CONTEXT_LENGTH", "CONTENT_FILTERED")
    assert error.retry_after_ms == (None if blames_request else 7000)
    assert str(status) in error.message
    assert error.message.startswith("The worker's base URL may be wrong") is (
        answer in NO_SUCH_PATH and status == 404
    )


@pytest.mark.parametrize(
    ("models", "asked", "code", "sentence"),
    [
        (["m"], "m", "UPSTREAM_ERROR", f"asked for m, {CHAT} answered 404: no x"),
        ({"m": "big"}, "m", "UPSTREAM_ERROR", f"asked for big, {CHAT} answered 404: no x"),
        ({"*": "big"}, "any", "UPSTREAM_ERROR", f"asked for big, {CHAT} answered 404: no x"),
        (["*"], "invented", "BAD_REQUEST", "The upstream answered 404: no x"),
    ],
)
@respx.mock
async def test_a_model_that_the_upstream_does_not_have_is_its_callers_fault_only_if_they_chose_it(
    models: Any, asked: str, code: str, sentence: str
) -> None:
    respx.post(CHAT).mock(return_value=httpx2.Response(404, json=body("no x", code="model_not_found")))
    with pytest.raises(TaskError) as caught:
        await run(adapter(models=models, base_url="http://user:word@upstream.test/v1"), task({}, model=asked))
    assert caught.value.code == code
    assert caught.value.message.endswith(sentence)


@respx.mock
async def test_a_wrong_base_url_is_named() -> None:
    respx.post("http://upstream.test/chat/completions").mock(return_value=httpx2.Response(404))
    with pytest.raises(TaskError) as caught:
        await run(adapter(base_url="http://upstream.test/"), task({}))
    assert caught.value.message == (
        "The worker's base URL may be wrong (most end with /v1): http://upstream.test/chat/completions answered 404."
    )


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        (httpx2.Response(200, json={"data": []}), ""),
        (httpx2.Response(404), ""),
        (httpx2.Response(401), ""),
        (httpx2.Response(503, json=body("Loading model")), f"{BASE}/models answered 503: Loading model"),
        (
            httpx2.ConnectError("refused"),
            f"{BASE}/models: The upstream cannot be reached (ConnectError: refused).",
        ),
    ],
)
@respx.mock
async def test_an_upstream_is_asked_for_its_models_to_see_whether_it_works(answer: Any, wrong: str) -> None:
    respx.get(f"{BASE}/models").mock(side_effect=[answer])
    upstream = adapter()
    assert await upstream.check() == wrong
    await upstream.aclose()


@pytest.mark.parametrize(
    ("response", "pause_ms"),
    [
        (httpx2.Response(429, headers={"retry-after-ms": "350", "Retry-After": "1"}), 350),
        (httpx2.Response(429, headers={"Retry-After": "86400"}), 3_600_000),
        (httpx2.Response(429), 1000),
        (httpx2.Response(429, headers={"Retry-After": "soon"}), 1000),
        (httpx2.Response(429, json=body(code="insufficient_quota")), None),
        (httpx2.Response(503), None),
        (httpx2.Response(503, json=body("try again in 2.5s")), 2500),
        (httpx2.Response(400, json=body("'try again in 9s' is no role")), None),
        (httpx2.Response(413, json=body(retry_after=9)), None),
        (httpx2.Response(404, json=body("no model 'try again in 9s'", code="model_not_found")), None),
        (httpx2.Response(429, content=b'{"error":"no","retry_after":1e400}'), 1000),
        (httpx2.Response(429, content=b'{"error":"no","retry_after":' + b"9" * 400 + b"}"), 1000),
        (httpx2.Response(429, content=b'{"error":"no","retry_after":' + b"9" * 5000 + b"}"), 1000),
        (httpx2.Response(200, content=b'{"error":"too many requests","retry_after":1e400}'), 1000),
        (httpx2.Response(503, headers={"Retry-After": "2"}), 2000),
        (sse({"error": {"message": "later", "code": 429}}), 1000),
        (sse({"error": {"message": "later", "type": "rate_limit_error"}}), 1000),
        (sse({"error": {"message": "later", "type": "overloaded_error"}}), None),
    ],
)
@respx.mock
async def test_the_pause_that_the_upstream_asks_for_goes_with_the_failure(
    response: httpx2.Response, pause_ms: int | None
) -> None:
    respx.post(CHAT).mock(return_value=response)
    with pytest.raises(TaskError) as caught:
        await run(adapter(), task({}))
    assert caught.value.retry_after_ms == pause_ms


@respx.mock
async def test_the_upstream_s_sentence_is_bounded_and_never_holds_the_key() -> None:
    respx.post(CHAT).mock(return_value=httpx2.Response(401, json=body("bad key sk-secret " + "x" * 9000)))
    with pytest.raises(TaskError) as caught:
        await run(adapter(api_key="sk-secret"), task({}))
    assert "sk-secret" not in caught.value.message
    assert "bad key ***" in caught.value.message
    assert len(caught.value.message) <= 2000


@pytest.mark.parametrize(
    ("error", "code", "retryable"),
    [
        (httpx2.ConnectError("refused"), "UPSTREAM_ERROR", True),
        (httpx2.ConnectTimeout("slow"), "CONNECT_TIMEOUT", True),
        (httpx2.RemoteProtocolError("hung up"), "UPSTREAM_ERROR", True),
        (httpx2.ReadError("reset"), "UPSTREAM_ERROR", True),
    ],
)
@pytest.mark.parametrize("type", ["openaiLike", "openaiEmbedding"])
@respx.mock
async def test_a_broken_connection_becomes_this_failure(
    error: Exception, code: str, retryable: bool, type: str
) -> None:
    respx.post(url__startswith=BASE).mock(side_effect=error)
    with pytest.raises(TaskError) as caught:
        await run(adapter(), task({}, type=type))
    assert (caught.value.code, caught.value.retryable) == (code, retryable)


async def silence() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


async def token_then_silence() -> AsyncIterator[bytes]:
    yield b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    await asyncio.Event().wait()


async def comments_only() -> AsyncIterator[bytes]:
    while True:
        yield b": keep-alive\n\n"
        await asyncio.sleep(0.005)


LONG = 60_000


@pytest.mark.parametrize(
    ("write", "limits", "remaining_s", "code", "sentence"),
    [
        (silence, Limits(ttft_ms=30, idle_ms=LONG), None, "FIRST_TOKEN_TIMEOUT", "no output within 30 ms"),
        (
            comments_only,
            Limits(ttft_ms=30, idle_ms=LONG),
            None,
            "FIRST_TOKEN_TIMEOUT",
            "no output within 30 ms",
        ),
        (silence, Limits(ttft_ms=LONG, idle_ms=30), None, "FIRST_TOKEN_TIMEOUT", "silent for 30 ms"),
        (
            token_then_silence,
            Limits(ttft_ms=LONG, idle_ms=1000),
            None,
            "STREAM_STALLED",
            "silent for 1000 ms",
        ),
        (comments_only, Limits(LONG, LONG, total_ms=30), None, "TOTAL_TIMEOUT", "not done after 30 ms"),
        (token_then_silence, Limits(), 0.03, "TOTAL_TIMEOUT", "not done after"),
    ],
)
async def test_each_time_limit_ends_the_request(
    write: Callable[[], AsyncIterator[bytes]],
    limits: Limits,
    remaining_s: float | None,
    code: str,
    sentence: str,
) -> None:
    upstream = Script(write)
    with pytest.raises(TaskError, match=sentence) as caught:
        await run(adapter(transport=upstream, limits=limits), task({}), remaining_s)
    assert (caught.value.code, caught.value.retryable) == (code, remaining_s is None)
    assert upstream.closed.is_set()


@pytest.mark.parametrize("type", ["openaiLike", "openaiEmbedding"])
async def test_an_answer_that_comes_whole_has_the_total_limit(type: str) -> None:
    limited = adapter(transport=Script(silence), limits=Limits(total_ms=30))
    with pytest.raises(TaskError, match="not done after 30 ms") as caught:
        await run(limited, task({}, type=type, stream=False))
    assert (caught.value.code, caught.value.retryable) == ("TOTAL_TIMEOUT", True)


@pytest.mark.parametrize("base_url", ["localhost:8000", "ftp://h/v1"])
def test_a_base_url_that_is_none_is_refused_with_a_sentence(base_url: str) -> None:
    with pytest.raises(ValueError, match="base URL"):
        adapter(base_url=base_url)


def test_a_key_that_no_header_can_carry_is_refused_with_a_sentence() -> None:
    with pytest.raises(ValueError, match="The upstream's key holds '…'"):
        adapter(api_key="sk-…")
