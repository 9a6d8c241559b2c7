"""Small requests to an upstream that show what works there, through the adapter that would run tasks."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fairlane.workers.adapters.upstream import Upstream
from fairlane.workers.sdk import Context, Delta, Result, Task, TaskError, Usage

MAX_TOKENS = 1024
"""Of each answer; models that think need some."""
MAX_TEXT = 256 * 1024
"""Characters after which an answer is not heard out: it takes no notice of the bound."""
NO_MODEL = "fairlane-no-such-model"
_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


_REFUSALS = frozenset({"BAD_REQUEST", "UPSTREAM_ERROR"})
"""What a model that is not there may fail with, if it is final. A wrong key or a dead server has refused no model."""


class Failed(msgspec.Struct, rename="camel"):
    """The failure that a task would end with."""

    code: str
    message: str
    retryable: bool
    http_status: int | None = None


class Finding(msgspec.Struct, rename="camel"):
    """What one request has shown. `usage` is what the upstream reported, in our words and its own."""

    check: str
    works: bool
    says: str
    ms: int
    ttft_ms: int | None = None
    tokens_per_second: float | None = None
    usage: dict[str, Any] | None = None
    failure: Failed | None = None


class _Arguments(msgspec.Struct):
    city: str


@dataclass
class _Heard:
    """An answer and when it came, in seconds after the request."""

    content: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    finish: str | None = None
    usage: Usage | None = None
    first_s: float | None = None
    last_s: float = 0.0
    pieces: int = 0


def _said_something(heard: _Heard) -> tuple[bool, str]:
    if heard.content:
        return True, repr(_short(heard.content))
    if heard.reasoning:
        return True, f"thinks, and comes to no answer within {MAX_TOKENS} tokens"
    return False, f"an empty answer (finish reason {heard.finish})"


async def examine(adapter: Upstream, model: str) -> AsyncGenerator[Finding, None]:
    """Yield the findings: models, answer, stream, tools, json, refusal."""
    yield await _models(adapter, model)
    yield await _try(adapter, "answer", model, "Reply with the word OK.")
    counting = "Count from 1 to 40, separated by spaces."
    yield await _try(adapter, "stream", model, counting, stream=True)
    weather = "What is the weather in Paris? Use the tool."
    yield await _try(adapter, "tools", model, weather, _called, tools=[_TOOL])
    members = "Answer with a JSON object with one member: ok, which is true."
    yield await _try(adapter, "json", model, members, _is_object, response_format={"type": "json_object"})
    refusal = await _try(adapter, "refusal", NO_MODEL, "Hi.", stream=True, max_completion_tokens=16)
    if refusal.failure is None:
        refusal.works, refusal.says = False, f"answers for a model that it does not have ({NO_MODEL})"
    else:
        refusal.works = refusal.failure.code in _REFUSALS and not refusal.failure.retryable
        refusal.says = "an unknown model is refused" if refusal.works else ""
    yield refusal


async def _models(adapter: Upstream, model: str) -> Finding:
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        listed = await adapter.list_models()
    except TaskError as error:
        return Finding("models", False, "", _ms(loop.time() - began), failure=_failed(error))
    name = adapter.upstream_name(model)
    among = "is among them" if name in listed else "is not among them"
    return Finding("models", bool(listed), f"{len(listed)} listed, {name} {among}", _ms(loop.time() - began))


async def _try(
    adapter: Upstream,
    name: str,
    model: str,
    prompt: str,
    judge: Callable[[_Heard], tuple[bool, str]] = _said_something,
    *,
    stream: bool = False,
    **more: Any,
) -> Finding:
    messages = [{"role": "user", "content": prompt}]
    payload = msgspec.json.encode({"messages": messages, "max_completion_tokens": MAX_TOKENS, **more})
    task = Task(task_id="check", type="openaiLike", model=model, payload_bytes=payload, stream=stream)
    loop = asyncio.get_running_loop()
    began = loop.time()
    heard = _Heard()
    finding = Finding(name, False, "", 0)
    try:
        async with contextlib.aclosing(adapter(task, Context(task))) as items:
            async for item in items:
                assert not isinstance(item, bytes)  # texts have none
                _hear(heard, item, loop.time() - began)
                if len(heard.content) + len(heard.reasoning) > MAX_TEXT:
                    raise TaskError("UPSTREAM_ERROR", "The upstream ignores max_tokens.")
        finding.works, finding.says = judge(heard)
    except TaskError as error:
        finding.failure = _failed(error)
    finding.ms = _ms(loop.time() - began)
    if heard.usage is not None:
        finding.usage = msgspec.json.decode(heard.usage.as_json())
    if stream and heard.first_s is not None:
        finding.ttft_ms = _ms(heard.first_s)
        tokens = heard.pieces if heard.usage is None else heard.usage.output_tokens or 0
        if tokens > 1 and heard.last_s > heard.first_s:
            finding.tokens_per_second = round((tokens - 1) / (heard.last_s - heard.first_s), 1)
    return finding


def _hear(heard: _Heard, item: Delta | Usage | Result, at_s: float) -> None:
    if isinstance(item, Usage):
        heard.usage = item
    elif isinstance(item, Result):
        body = item.value if isinstance(item.value, msgspec.Raw) else msgspec.json.encode(item.value)
        choice = msgspec.json.decode(body)["choices"][0]
        message, heard.finish = choice["message"], choice.get("finish_reason")
        heard.content, heard.reasoning = message.get("content") or "", message.get("reasoning_content") or ""
        heard.calls = message.get("tool_calls") or []
    else:
        heard.content += item.content or ""
        heard.reasoning += item.reasoning or ""
        heard.finish = item.finish_reason or heard.finish
        if item.content or item.reasoning:
            heard.pieces += 1
            heard.first_s = at_s if heard.first_s is None else heard.first_s
            heard.last_s = at_s


def _called(heard: _Heard) -> tuple[bool, str]:
    if not heard.calls:
        return False, f"no call of the tool, but {_said_something(heard)[1]}"
    function = heard.calls[0].get("function", {})
    name, arguments = function.get("name"), function.get("arguments", "")
    try:
        msgspec.json.decode(arguments, type=_Arguments)
        good = name == "get_weather"
    except msgspec.DecodeError:
        good = False
    return good, repr(f"{name}({_short(arguments)})")[1:-1]


def _is_object(heard: _Heard) -> tuple[bool, str]:
    try:
        value = msgspec.json.decode(heard.content)
    except msgspec.DecodeError:
        return False, f"no JSON: {_said_something(heard)[1]}"
    return isinstance(value, dict), repr(_short(heard.content))


def _failed(error: TaskError) -> Failed:
    message = "".join(letter if letter.isprintable() else " " for letter in error.message)
    return Failed(error.code, message, error.retryable, error.http_status)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:59] + "…"


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
