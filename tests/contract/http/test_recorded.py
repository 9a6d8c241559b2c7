"""Recorded exchanges: for each kind of call the request, the task that its worker gets, and the answer, without the parts that
vary. FAIRLANE_RECORD=1 writes recorded.json again: look at the difference before you commit it."""

import asyncio
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.contract.gateway import Gateway, Worker, named

pytestmark = pytest.mark.anyio

FILE = Path(__file__).with_name("recorded.json")
RECORDS = os.environ.get("FAIRLANE_RECORD") == "1"
HEADERS = ("content-type", "location", "retry-after", "allow", "x-should-retry")
"""Headers whose values are recorded; of the others the names."""
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
TOOLS = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
]
CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
USAGE = {"inputTokens": 5, "outputTokens": 2}
TEXT: tuple[dict[str, Any], ...] = ({"content": "Hel"}, {"content": "lo"}, {"finishReason": "stop"})
NOBODY = "00000000-0000-8000-8000-000000000000"


@dataclass(frozen=True)
class Call:
    """A call, and what a worker does with its task, if it becomes one."""

    name: str
    path: str
    body: Any = None
    method: str = "POST"
    deltas: tuple[dict[str, Any], ...] = ()
    result: Any = None
    end: dict[str, Any] = field(default_factory=lambda: {"usage": USAGE})
    runs: bool = True
    headers: dict[str, str] = field(default_factory=dict)
    features: tuple[str, ...] = ()


def failed(code: str, **more: Any) -> dict[str, Any]:
    return {"error": "it broke", "errorInfo": {"code": code, "retryable": False, **more}}


def chat(name: str, **more: Any) -> Call:
    body = {**CHAT, **more.pop("body", {})}
    return Call(name, "/v1/chat/completions", body, **{"deltas": TEXT, **more})


def refused(name: str, path: str, body: Any = None, **more: Any) -> Call:
    return Call(name, path, body, runs=False, **more)


MESSAGES = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]}
RESPONSE = {"model": "m", "input": "Hello", "store": False}
ANTHROPIC = {"anthropic-version": "2023-06-01"}
CALLS = (
    # ---- the Fairlane API
    Call("native", "/api/openai", CHAT, result={"content": "Hi", "n": 1}),
    Call("native deltas", "/api/openai", CHAT, deltas=TEXT),
    Call("native stream", "/api/openai", {**CHAT, "stream": True}, deltas=TEXT),
    Call("native task", "/api/tasks", {"type": "resize", "model": "m", "payload": [1, "é"]}, result=[2]),
    Call("native error", "/api/openai", CHAT, end={"error": "it broke"}),
    Call(
        "native stream error",
        "/api/openai",
        {**CHAT, "stream": True},
        deltas=TEXT[:1],
        end=failed("UPSTREAM_ERROR"),
    ),
    Call("native timeout", "/api/openai", {**CHAT, "timeout": 200}, end={}),
    refused("native no json", "/api/openai", "{oops"),
    refused("native no object", "/api/openai", []),
    refused("native bad field", "/api/openai", {**CHAT, "timeout": "soon"}),
    refused("native no worker", "/api/openai", {**CHAT, "model": "nobody's"}),
    refused("poll unknown", f"/api/task/{NOBODY}", method="GET"),
    refused("events unknown", f"/api/task/{NOBODY}/events", method="GET"),
    refused("cancel unknown", f"/api/task/{NOBODY}/cancel"),
    refused("sse unknown", f"/api/sse-stream?taskId={NOBODY}", method="GET"),
    refused("no such path", "/api/nothing", method="GET"),
    refused("wrong method", "/api/openai", method="GET"),
    refused("alive", "/livez", method="GET"),
    refused("ready", "/readyz", method="GET"),
    refused("me", "/api/me", method="GET"),
    # ---- OpenAI's API
    chat("chat"),
    chat("chat stream", body={"stream": True}),
    chat("chat stream usage", body={"stream": True, "stream_options": {"include_usage": True}}),
    chat("chat tools", body={"tools": TOOLS}, deltas=({"toolCalls": [CALL]}, {"finishReason": "tool_calls"})),
    chat("chat reasoning", deltas=({"reasoning": "Hm"}, {"content": "Hi"}, {"finishReason": "length"})),
    chat("chat error", deltas=(), end=failed("CONTEXT_LENGTH", httpStatus=400)),
    chat("chat stream error", body={"stream": True}, deltas=TEXT[:1], end=failed("UPSTREAM_ERROR")),
    refused("chat no json", "/v1/chat/completions", "{oops"),
    refused("chat no messages", "/v1/chat/completions", {"model": "m"}),
    refused("chat no worker", "/v1/chat/completions", {**CHAT, "model": "nobody's"}),
    Call("completion", "/v1/completions", {"model": "m", "prompt": "Hello"}, deltas=TEXT),
    Call(
        "completion stream", "/v1/completions", {"model": "m", "prompt": "Hello", "stream": True}, deltas=TEXT
    ),
    Call("embeddings", "/v1/embeddings", {"model": "m", "input": ["a", "b"]}, result=[[0.5, -1], [0, 1]]),
    Call(
        "embeddings base64",
        "/v1/embeddings",
        {"model": "m", "input": "a", "encoding_format": "base64"},
        result=[[0.5]],
    ),
    refused("models", "/v1/models", method="GET"),
    refused("model", "/v1/models/m", method="GET"),
    refused("model unknown", "/v1/models/nobody's", method="GET"),
    Call("response", "/v1/responses", RESPONSE, deltas=TEXT, features=("responses",)),
    Call(
        "response stream", "/v1/responses", {**RESPONSE, "stream": True}, deltas=TEXT, features=("responses",)
    ),
    Call(
        "response tools",
        "/v1/responses",
        RESPONSE,
        deltas=({"toolCalls": [CALL]}, {"finishReason": "tool_calls"}),
        features=("responses",),
    ),
    Call("response error", "/v1/responses", RESPONSE, end=failed("UPSTREAM_ERROR"), features=("responses",)),
    refused("response no input", "/v1/responses", {"model": "m"}, features=("responses",)),
    refused("response unknown", "/v1/responses/resp_0", method="GET", features=("responses",)),
    refused("file unknown", "/v1/files/file-0", method="GET", features=("files",)),
    refused("batch unknown", "/v1/batches/batch_0", method="GET", features=("batches",)),
    # ---- Anthropic's API
    Call("message", "/v1/messages", MESSAGES, deltas=TEXT, headers=ANTHROPIC, features=("messages",)),
    Call(
        "message stream",
        "/v1/messages",
        {**MESSAGES, "stream": True},
        deltas=TEXT,
        headers=ANTHROPIC,
        features=("messages",),
    ),
    Call(
        "message tools",
        "/v1/messages",
        MESSAGES,
        deltas=({"toolCalls": [CALL]}, {"finishReason": "tool_calls"}),
        headers=ANTHROPIC,
        features=("messages",),
    ),
    Call(
        "message error",
        "/v1/messages",
        MESSAGES,
        end=failed("MODEL_TOO_BUSY"),
        headers=ANTHROPIC,
        features=("messages",),
    ),
    refused("message no tokens", "/v1/messages", {"model": "m"}, headers=ANTHROPIC, features=("messages",)),
    refused(
        "message count", "/v1/messages/count_tokens", MESSAGES, headers=ANTHROPIC, features=("messages",)
    ),
)

VARIES = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<uuid>"),
    (r"\b(req_)?[0-9a-f]{24,32}\b", "<id>"),
    (r"event: queued\ndata: .*\n\n", ""),  # (the task may start before its client is read)
    (r'("version":)"[^"]*"', r'\1"<varies>"'),
    (r'("disabledFeatures":)\[[^]]*\]', r'\1"<varies>"'),
    (r"\b1[0-9]{15}\b", "<us>"),
    (r"\b1[0-9]{12}\b", "<ms>"),
    (r"\b1[0-9]{9}\b", "<s>"),
    (r'("(?:\w+Ms|obfuscation|ticket|instance)": ?)("[^"]*"|\d+)', r"\1<varies>"),
    (r"(ticket=)[\w.-]+", r"\1<varies>"),
    (r"\braw-[\w]+", "<worker>"),
    (r"\b\d+(\.\d+)? ?ms\b", "<n> ms"),
)


def stable(text: str) -> str:
    """A text without the parts that vary."""
    for pattern, placeholder in VARIES:
        text = re.sub(pattern, placeholder, text)
    return text


async def worked(worker: Worker, call: Call, progress: asyncio.Condition) -> Any:
    """Run the task of a call. Each delta is sent when the client of a stream has read the one before it."""
    task = await worker.take()
    for number, delta in enumerate(call.deltas, 1):
        async with progress:
            await worker.send(type="taskChunk", **named(task), seq=number, deltas=[delta])
            if isinstance(call.body, dict) and call.body.get("stream") and "finishReason" not in delta:
                await progress.wait()
    if call.end:
        await worker.finish(task, call.result, lastSeq=len(call.deltas), **call.end)
        await worker.receive("resultAck")
    else:
        await worker.receive("cancel")
        await worker.finish(task)
    return {name: value for name, value in task.items() if name not in ("type", "attempt", "traceparent")}


async def exchanged(gateway: Gateway, client: httpx2.AsyncClient, call: Call) -> dict[str, Any]:
    """Make a call. Return the request, the task and the answer, without the parts that vary."""
    content = (
        call.body if isinstance(call.body, str) else json.dumps(call.body) if call.body is not None else None
    )
    headers = {**({"content-type": "application/json"} if content else {}), **call.headers}
    progress, body = asyncio.Condition(), b""

    async def answer() -> httpx2.Response:
        nonlocal body
        async with client.stream(call.method, call.path, content=content, headers=headers) as response:
            async for piece in response.aiter_raw():
                async with progress:
                    body += piece
                    progress.notify_all()
            return response

    async with gateway.worker_v2("m") as worker:
        if call.runs:
            response, task = await asyncio.gather(answer(), worked(worker, call, progress))
        else:
            response, task = await answer(), None
    text = stable(body.decode())
    fields = {name: stable(response.headers[name]) for name in HEADERS if name in response.headers}
    found: dict[str, Any] = {"status": response.status_code, "headers": fields}
    found["other headers"] = sorted({*response.headers} - {*fields, "date", "content-length"})
    found["body"] = (
        text.split("\n") if fields.get("content-type", "").startswith("text/event-stream") else text
    )
    if task:
        found["task"] = stable(json.dumps(task))
    return found


@pytest.mark.parametrize(
    "call", [pytest.param(call, marks=pytest.mark.feature(*call.features), id=call.name) for call in CALLS]
)
async def test_the_exchange_is_as_recorded(gateway: Gateway, call: Call) -> None:
    async with gateway.client() as client:
        found = await exchanged(gateway, client, call)
    recorded = json.loads(FILE.read_text()) if FILE.exists() else {}
    if RECORDS:
        names = [one.name for one in CALLS]
        recorded = {name: found if name == call.name else recorded.get(name) for name in names}
        FILE.write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n")
    assert found == recorded[call.name]
