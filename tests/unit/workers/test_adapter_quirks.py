"""Upstreams that take a request otherwise than OpenAI's reference: what a rejection teaches, and what stays the client's."""

import logging
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import httpx2
import msgspec
import pytest
import respx
from tests.support.upstreams import anthropic_message, gemini_content

from fairlane.workers.adapters import PROVIDERS
from fairlane.workers.adapters.quirks import read_quirks
from fairlane.workers.adapters.upstream import Upstream
from fairlane.workers.sdk import Context, Result, Task, TaskError, Worker

pytestmark = pytest.mark.anyio
BASE = "http://upstream.test/v1"
CHAT = f"{BASE}/chat/completions"
USER = {"role": "user", "content": "hi"}
WHOLE = {"choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}]}
CHUNKS = b'data: {"choices":[{"delta":{"content":"Hello"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'

Body = dict[str, Any]
Answer = tuple[int, Any]


class Server:
    """A server that rejects bodies for which `wrong` returns an answer."""

    def __init__(self, wrong: Callable[[Body], Answer | None]) -> None:
        self.bodies: list[Body] = []
        self._wrong = wrong
        respx.post(url__startswith=BASE).mock(side_effect=self._answer)

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        body = msgspec.json.decode(request.content)
        self.bodies.append(body)
        if (rejected := self._wrong(body)) is not None:
            return httpx2.Response(rejected[0], json=rejected[1])
        if body.get("stream"):
            return httpx2.Response(200, headers={"Content-Type": "text/event-stream"}, content=CHUNKS)
        if request.url.path.endswith("/messages"):
            return httpx2.Response(200, json=anthropic_message([{"type": "text", "text": "Hello"}]))
        gemini = "generateContent" in request.url.path
        return httpx2.Response(200, json=gemini_content([{"text": "Hello"}]) if gemini else WHOLE)


def adapter(provider: str = "openai", **options: Any) -> Upstream:
    return PROVIDERS[provider].adapter(
        **{"base_url": BASE, "models": ["m", "n"], "api_key": "sk-1", **options}
    )


async def ask(adapter: Upstream, payload: Any, *, stream: bool = False, model: str = "m") -> None:
    """Run a task; raise what it fails with."""
    raw = msgspec.json.encode({"messages": [USER], **payload})
    task = Task(task_id="t", type="openaiLike", model=model, payload_bytes=raw, stream=stream)
    items = [item async for item in adapter(task, Context(task))]
    assert stream or isinstance(items[-1], Result)


def pydantic(*loc: str | int, msg: str = "Extra inputs are not permitted") -> Any:
    return {"detail": [{"type": "extra_forbidden", "loc": ["body", *loc], "msg": msg, "input": None}]}


def openai(message: str, param: str | None = None, code: str | None = "unsupported_parameter") -> Any:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


def has(name: str, status: int, answer: Any) -> Callable[[Body], Answer | None]:
    return lambda body: (status, answer) if name in body else None


EFFORTS = "Unsupported value: 'reasoning_effort' does not support 'minimal'. Supported values are: 'low', 'medium', and 'high'."
SYSTEM_FIRST = {"object": "error", "message": "System message must be at the beginning.", "code": 400}


def later_system(body: Body, status: int = 400) -> Answer | None:
    wrong = any(message["role"] == "system" for message in body["messages"][1:])
    return (status, SYSTEM_FIRST) if wrong else None


def by_turns(body: Body) -> Answer | None:
    roles = [message["role"] for message in body["messages"] if message["role"] != "system"]
    wrong = "system" in [message["role"] for message in body["messages"][1:]] or any(
        one == other for one, other in pairwise(roles)
    )
    return (400, openai("Conversation roles must alternate user/assistant", code=None)) if wrong else None


def said(role: str, content: Any) -> Body:
    return {"role": role, "content": content}


LATER = {
    "messages": [said("system", "a"), said("system", "b"), USER, said("system", "c"), said("user", "go")]
}
FOLDED = [said("system", "a\n\nb"), said("user", "hi\n\nc\n\ngo")]
UNKNOWN = openai(
    "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead.", "max_tokens"
)
TOO_MANY = "max_tokens is too large: 9999. This model (m-2024-08-06) supports at most 4096 completion tokens."
TOO_LONG = "Invalid 'user': string too long. Expected a string with maximum length 64, but got a string with length 80 instead."
NO_BOOLEAN = "Input should be a valid boolean, unable to interpret input"
PARALLEL = openai("parallel_tool_calls is not supported with this model")

REJECTIONS: dict[str, tuple[Any, bool, Callable[[Body], Answer | None], Body, str]] = {
    "stream_options, of pydantic": (
        *({}, True, has("stream_options", 422, pydantic("stream_options"))),
        *({"stream_options": None}, "stream_options=omit"),
    ),
    "stream_options, in words": (
        *({}, True, has("stream_options", 400, "unknown field stream_options")),
        *({"stream_options": None}, "stream_options=omit"),
    ),
    "stream_options, in other letters": (
        *({}, True, has("stream_options", 400, {"detail": "Stream options are not supported."})),
        *({"stream_options": None}, "stream_options=omit"),
    ),
    "stream_options, in an answer of status 200": (
        *({}, True, has("stream_options", 200, openai("Unknown argument: stream_options"))),
        *({"stream_options": None}, "stream_options=omit"),
    ),
    "stream_options, of the client": (
        {"stream_options": {"include_usage": True}},
        *(True, has("stream_options", 400, openai("Unrecognized request argument: stream_options"))),
        *({"stream_options": None}, "stream_options=omit"),
    ),
    "stream: false": (
        *({}, False, has("stream", 422, pydantic("stream"))),
        *({"stream": None}, "stream=omit"),
    ),
    "the older bound": (
        *({"max_completion_tokens": 5}, False, has("max_tokens", 400, UNKNOWN)),
        *({"max_tokens": None, "max_completion_tokens": 5}, "max_tokens=max_completion_tokens"),
    ),
    "the older bound, by its param alone": (
        *({"max_tokens": 5}, False, has("max_tokens", 400, openai("no", "max_tokens"))),
        *({"max_tokens": None, "max_completion_tokens": 5}, "max_tokens=max_completion_tokens"),
    ),
    "a bound beyond the model's": (
        {"max_tokens": 9999},
        *(False, lambda body: (400, openai(TOO_MANY, code=None)) if body["max_tokens"] > 4096 else None),
        *({"max_tokens": 4096}, "max_output_tokens=4096"),
    ),
    "parallel_tool_calls": (
        *({"parallel_tool_calls": False}, False, has("parallel_tool_calls", 400, PARALLEL)),
        *({"parallel_tool_calls": None}, "parallel_tool_calls=omit"),
    ),
    "reasoning_effort": (
        *({"reasoning_effort": "low"}, False, has("reasoning_effort", 422, pydantic("reasoning_effort"))),
        *({"reasoning_effort": None}, "reasoning_effort=omit"),
    ),
    "a value of reasoning_effort": (
        {"reasoning_effort": "minimal"},
        False,
        lambda body: (400, openai(EFFORTS)) if body.get("reasoning_effort") == "minimal" else None,
        *({"reasoning_effort": "low"}, "reasoning_effort=low,medium,high"),
    ),
    "several system messages": (LATER, False, later_system, {"messages": FOLDED}, "system=first"),
    "several system messages, as llama.cpp's 500": (
        *(LATER, False, lambda body: later_system(body, 500), {"messages": FOLDED}, "system=first"),
    ),
    "roles by turns": (LATER, False, by_turns, {"messages": FOLDED}, "system=first"),
    "the role developer": (
        {"messages": [said("developer", "a"), USER]},
        False,
        lambda body: (400, openai("Unexpected role")) if body["messages"][0]["role"] == "developer" else None,
        *({"messages": [said("system", "a"), USER]}, "developer=system"),
    ),
    "a member of a message": (
        {"messages": [USER, {**said("assistant", "a"), "reasoning_content": "b"}, USER]},
        False,
        lambda body: (
            (422, pydantic("messages", 1, "assistant", "reasoning_content"))
            if "reasoning_content" in body["messages"][1]
            else None
        ),
        *({"messages": [USER, said("assistant", "a"), USER]}, "reasoning_content=omit"),
    ),
    "a member of a tool": (
        {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
        False,
        lambda body: (
            (422, pydantic("tools", 0, "function", "strict"))
            if "strict" in body["tools"][0]["function"]
            else None
        ),
        *({"tools": [{"type": "function", "function": {"name": "f"}}]}, "strict=omit"),
    ),
    "two at a time": (
        {"max_tokens": 5},
        True,
        lambda body: (
            (422, {"detail": [*pydantic("stream_options")["detail"], *pydantic("max_tokens")["detail"]]})
            if "stream_options" in body
            else None
        ),
        {"max_tokens": None, "max_completion_tokens": 5, "stream_options": None},
        "stream_options=omit max_tokens=max_completion_tokens",
    ),
}


@pytest.mark.parametrize("case", REJECTIONS)
@respx.mock
async def test_what_the_upstream_does_not_take_is_sent_otherwise_once_and_for_all_later_tasks(
    case: str, caplog: pytest.LogCaptureFixture
) -> None:
    payload, stream, wrong, expected, quirks = REJECTIONS[case]
    server, worker, upstream = Server(wrong), Worker(), adapter()
    upstream.attach(worker)
    with caplog.at_level(logging.WARNING, "fairlane.worker"):
        await ask(upstream, payload, stream=stream)
        assert len(server.bodies) == 2
        await ask(upstream, payload, stream=stream)
        await ask(upstream, payload, stream=stream, model="n")
    assert [len(server.bodies)] == [5]
    for body in (server.bodies[1], server.bodies[2], server.bodies[4]):
        assert {name: body.get(name) for name in expected} == expected
    assert worker.tags == {"quirks": quirks}
    assert len(caplog.records) == len(quirks.split())
    await upstream.aclose()


@respx.mock
async def test_embeddings_come_as_numbers_from_a_server_that_knows_no_encoding_of_them() -> None:
    vectors = {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}]}
    unknown = openai("encoding_format does not have a valid value", "encoding_format", None)
    server = Server(lambda body: (400, unknown) if "encoding_format" in body else (200, vectors))
    upstream = adapter()
    payload = b'{"input":"a","encoding_format":"base64"}'
    task = Task(task_id="t", type="openaiEmbedding", model="m", payload_bytes=payload, stream=False)
    for _ in range(2):
        assert [item async for item in upstream(task, Context(task))]
    assert ["encoding_format" in body for body in server.bodies] == [True, False, False]
    await upstream.aclose()


@pytest.mark.parametrize(
    ("provider", "wrong", "payload"),
    [
        (
            "anthropic",
            lambda body: (
                (400, openai("max_tokens: 8192 > 4096, which is the maximum"))
                if body["max_tokens"] > 4096
                else None
            ),
            {},
        ),
        (
            "anthropic",
            has("thinking", 400, openai("thinking: not supported by this model")),
            {"reasoning_effort": "low"},
        ),
        (
            "gemini",
            lambda body: (400, openai("Thinking is not enabled")) if "thinkingConfig" in str(body) else None,
            {"reasoning_effort": "low"},
        ),
    ],
)
@respx.mock
async def test_a_translation_takes_back_what_it_added(provider: str, wrong: Any, payload: Body) -> None:
    server, upstream = Server(wrong), adapter(provider)
    await ask(upstream, payload)
    await ask(upstream, payload)
    assert len(server.bodies) == 3
    await upstream.aclose()


VALUES: list[tuple[str, Any, int, Any, str]] = [
    (
        "verbosity",
        "ultra",
        400,
        openai("Unsupported value: 'verbosity' does not support 'ultra'", code=None),
        "ultra",
    ),
    ("verbosity", "ultra", 400, openai("Invalid 'ultra'", "verbosity", "unsupported_value"), "ultra"),
    ("verbosity", "ultra", 422, "verbosity: unknown variant `ultra`, expected `low` or `high`", "variant"),
    ("user", "u" * 80, 400, openai(TOO_LONG, "user", "string_above_max_length"), "too long"),
    ("parallel_tool_calls", "no", 422, pydantic("parallel_tool_calls", msg=NO_BOOLEAN), "boolean"),
    (
        *("parallel_tool_calls", "no", 422),
        {"detail": [*pydantic("n")["detail"], *pydantic("parallel_tool_calls", msg=NO_BOOLEAN)["detail"]]},
        "boolean",
    ),
    ("reasoning_effort", "very", 400, openai(EFFORTS.replace("minimal", "very")), "very"),
    ("reasoning_effort", "very", 400, openai("Unknown reasoning_effort 'very'"), "very"),
    ("reasoning_effort", "low", 400, openai("reasoning_effort needs a seed", code=None), "seed"),
    ("max_tokens", "5", 400, openai("Invalid type for 'max_tokens'", "max_tokens", "invalid_type"), "type"),
]


@pytest.mark.parametrize(
    ("payload", "wrong", "words"),
    [
        (
            {"temperature": 9},
            has("temperature", 400, openai("temperature is above 2", "temperature")),
            "temperature",
        ),
        ({"seed": 1}, has("seed", 422, pydantic("seed")), "seed"),
        *(({name: value}, has(name, status, answer), words) for name, value, status, answer, words in VALUES),
        (
            {"max_tokens": -1},
            lambda body: (400, openai(f"{sorted(body)[0]} must be positive")),
            "max_tokens must",
        ),
        (
            {"messages": [{**said("assistant", "a"), "reasoning_content": 5}]},
            lambda body: (
                (422, pydantic("messages", 0, "reasoning_content", msg="Input should be a valid string"))
                if "reasoning_content" in body["messages"][0]
                else None
            ),
            "valid string",
        ),
        (
            {"temperature": 9},
            lambda body: (422, pydantic("stream") if "stream" in body else openai("temperature is above 2")),
            "temperature is above 2",
        ),
    ],
)
@respx.mock
async def test_a_rejection_of_what_the_client_sent_is_the_client_s(
    payload: Body, wrong: Any, words: str
) -> None:
    server, worker, upstream = Server(wrong), Worker(), adapter()
    upstream.attach(worker)
    with pytest.raises(TaskError) as caught:
        await ask(upstream, payload)
    assert (caught.value.code, worker.tags) == ("BAD_REQUEST", None)
    assert words in caught.value.message
    assert len(server.bodies) <= 2
    await upstream.aclose()


@respx.mock
async def test_an_upstream_that_rejects_everything_ends() -> None:
    names = "stream stream_options max_tokens max_completion_tokens parallel_tool_calls reasoning_effort system user"
    server = Server(lambda body: (400, openai(f"'{names}'".replace(" ", "' '") + f" {len(body)}")))
    upstream = adapter()
    with pytest.raises(TaskError):
        await ask(upstream, {**LATER, "max_tokens": 5, "parallel_tool_calls": True, "user": "u"}, stream=True)
    assert len(server.bodies) <= 6
    await upstream.aclose()


@pytest.mark.parametrize(
    ("provider", "base_url", "given", "sent"),
    [
        ("openai", "https://api.openai.com/v1", {"max_tokens": 5}, {"max_completion_tokens": 5}),
        ("openai", BASE, {"max_completion_tokens": 5}, {"max_tokens": 5}),
        ("deepseek", BASE, {"max_completion_tokens": 5, "max_tokens": None}, {"max_tokens": 5}),
        ("vllm", BASE, {"max_completion_tokens": 5}, {"max_completion_tokens": 5}),
    ],
)
@respx.mock
async def test_each_provider_has_its_name_of_the_bound(
    provider: str, base_url: str, given: Body, sent: Body
) -> None:
    route = respx.post(f"{base_url}/chat/completions").respond(json=WHOLE)
    upstream = adapter(provider, base_url=base_url)
    await ask(upstream, given)
    body = msgspec.json.decode(route.calls.last.request.content)
    assert {name: value for name, value in body.items() if name.startswith("max")} == sent
    await upstream.aclose()


@respx.mock
async def test_an_operator_sets_quirks() -> None:
    server = Server(lambda _: None)
    quirks = read_quirks(
        [
            "max_tokens=max_completion_tokens",
            *("system=first", "max_output_tokens=9", "reasoning_effort=low,high", "seed=omit"),
        ]
    )
    upstream = adapter(quirks=quirks)
    parts = [{"type": "text", "text": "c"}]
    messages = [
        said("system", "a"),
        said("system", parts),
        USER,
        said("system", parts),
        said("assistant", "d"),
        USER,
        USER,
    ]
    await ask(upstream, {"messages": messages, "max_tokens": 10, "reasoning_effort": "medium", "seed": 1})
    a, hi = ({"type": "text", "text": text} for text in ("a", "hi"))
    assert server.bodies == [
        {
            "messages": [
                said("system", [a, *parts]),
                said("user", [hi, *parts]),
                said("assistant", "d"),
                USER,
                USER,
            ],
            "max_completion_tokens": 9,
            "reasoning_effort": "low",
            "model": "m",
            "stream": False,
        }
    ]
    await upstream.aclose()


@respx.mock
async def test_each_user_has_a_name_of_its_own_for_the_server_s_prompt_cache() -> None:
    server, worker = Server(lambda _: None), Worker()
    upstream = adapter(quirks=read_quirks(["cache_salt=per_user", "prompt_cache_key=per_user"]))
    upstream.attach(worker)
    assert worker.wants_user
    for type, user in (
        ("openaiLike", "ann"),
        ("openaiCompletion", "ann"),
        ("openaiLike", "bob"),
        ("openaiLike", ""),
    ):
        raw = b'{"messages": [], "prompt": "a", "cache_salt": "mine", "prompt_cache_key": "mine"}'
        task = Task(task_id="t", type=type, model="m", payload_bytes=raw, stream=False, user=user)
        assert [item async for item in upstream(task, Context(task))]
    salts = [body["cache_salt"] for body in server.bodies]
    assert salts == [body["prompt_cache_key"] for body in server.bodies]
    assert salts[0] == salts[1]
    assert len({*salts, "mine", "ann", "bob"}) == 6
    assert all(len(salt) == 32 for salt in salts)
    await upstream.aclose()


@pytest.mark.parametrize(
    "pair", ["", "a", "=omit", "system=last", "max_output_tokens=x", "reasoning_effort=some", "a b=omit"]
)
def test_a_wrong_quirk_is_an_error_that_shows_right_ones(pair: str) -> None:
    with pytest.raises(ValueError, match="stream_options=omit"):
        read_quirks([pair])
