"""All calls of a gateway as an OpenAPI document, for the requests that are generated from it. A test compares it with the routes.

As narrow as the gateway takes them where that matters (what is outside is generated too, on purpose), and no narrower. Attackers
may not pause what the well-behaved use, so the names of queues and models that can be changed are few.
"""

from typing import Any

from tests.hostile.cast import LAB, LAB_QUEUES, STREAMING, WORKING
from tests.hostile.corpus import NOBODYS

Schema = dict[str, Any]

MODEL: Schema = {"type": "string", "enum": list(WORKING)}
MESSAGES: Schema = {
    "type": "array",
    "maxItems": 3,
    "items": {
        "type": "object",
        "properties": {
            "role": {"enum": ["user", "system", "assistant"]},
            "content": {"type": "string", "maxLength": 40},
        },
        "required": ["role", "content"],
    },
}
FLAG: Schema = {"type": "boolean"}
OURS: Schema = {
    "stream": FLAG,
    "async": FLAG,
    "timeout": {"type": "number", "minimum": 0, "maximum": 600_000},
    "mode": {"enum": ["stream", "batch", "vision"]},
    "priority": {"type": "integer", "minimum": 0, "maximum": 5},
    "onDisconnect": {"enum": ["cancel", "continue"]},
    "resultTtlMs": {"type": "integer", "minimum": 1, "maximum": 86_400_000},
    "metadata": {
        "type": "object",
        "maxProperties": 2,
        "additionalProperties": {"type": "string", "maxLength": 20},
    },
}
TASK_ID: Schema = {"type": "string", "format": "uuid", "example": NOBODYS}
OPENAI_HEADERS = {
    "X-Fairlane-Timeout": OURS["timeout"],
    "X-Fairlane-Priority": OURS["priority"],
    "X-Fairlane-Mode": OURS["mode"],
    "X-Fairlane-On-Disconnect": OURS["onDisconnect"],
}


NONE: dict[str, Schema] = {}


def _object(required: list[str], **properties: Schema) -> Schema:
    return {
        "type": "object",
        "required": required,
        "properties": properties,
        "maxProperties": len(properties) + 1,
    }


def _parameters(where: str, schemas: dict[str, Schema]) -> list[Schema]:
    return [
        {"name": name, "in": where, "required": where == "path", "schema": schema}
        for name, schema in schemas.items()
    ]


def _call(
    *,
    body: Schema | None = None,
    path: dict[str, Schema] = NONE,
    query: dict[str, Schema] = NONE,
    header: dict[str, Schema] = NONE,
) -> Schema:
    call: Schema = {"responses": {"default": {"description": "see the documentation"}}}
    call["parameters"] = [
        *_parameters("path", path),
        *_parameters("query", query),
        *_parameters("header", header),
    ]
    if body is not None:
        call["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return call


CHAT = _object(
    ["model", "messages"],
    model=MODEL,
    messages=MESSAGES,
    stream=FLAG,
    stream_options=_object([], include_usage=FLAG),
    max_tokens={"type": "integer", "minimum": 1, "maximum": 64},
    n={"type": "integer", "minimum": 1, "maximum": 3},
)
COMPLETION = _object(
    ["model", "prompt"], model=MODEL, prompt={"type": "string", "maxLength": 60}, stream=FLAG
)
EMBEDDING = _object(
    ["model", "input"],
    model={"enum": [STREAMING]},
    input={"type": "string", "maxLength": 60},
    encoding_format={"enum": ["float", "base64"]},
)
NATIVE = _object([], model=MODEL, messages=MESSAGES, **OURS)
TASK = _object(
    ["type", "payload"],
    type={"enum": ["openaiLike", "resize"]},
    model=MODEL,
    payload=_object([], messages=MESSAGES),
    **OURS,
)
QUEUE_CHANGE = _object(
    [],
    weight={"type": ["number", "null"], "minimum": 0.001, "maximum": 1000},
    max_length={"type": ["integer", "null"], "minimum": 1, "maximum": 1000},
    paused={"type": ["boolean", "null"]},
)
MODEL_CHANGE = _object(
    [],
    concurrency={"type": ["integer", "null"], "minimum": 1, "maximum": 99},
    paused={"type": ["boolean", "null"]},
)
CURSOR: Schema = {"type": "string", "maxLength": 30}
EVENTS = {"after": CURSOR, "fromLatest": {"enum": ["0", "1", "true"]}}
COUNT: Schema = {"type": "integer", "minimum": 1, "maximum": 200}
FILTERS = {name: {"type": "string", "maxLength": 30} for name in ("user", "queue", "model", "worker", "code")}
ID = {"task_id": TASK_ID}

PATHS: dict[str, dict[str, Schema]] = {
    "/v1/chat/completions": {"post": _call(body=CHAT, header=OPENAI_HEADERS)},
    "/v1/completions": {"post": _call(body=COMPLETION, header=OPENAI_HEADERS)},
    "/v1/embeddings": {"post": _call(body=EMBEDDING)},
    "/v1/models": {"get": _call()},
    "/v1/models/{model}": {"get": _call(path={"model": MODEL})},
    "/api/openai": {"post": _call(body=NATIVE)},
    "/api/tasks": {"post": _call(body=TASK)},
    "/api/task/{task_id}": {"get": _call(path=ID)},
    "/api/task/{task_id}/cancel": {"post": _call(path=ID)},
    "/api/task/{task_id}/events": {"get": _call(path=ID, query=EVENTS, header={"Last-Event-ID": CURSOR})},
    "/api/sse-stream": {"get": _call(query={"taskId": TASK_ID, **EVENTS})},
    "/api/caller": {"get": _call()},
    "/api/admin/state": {"get": _call(query={"tasks": COUNT})},
    "/api/admin/audit": {"get": _call(query={"after": CURSOR, "limit": COUNT})},
    "/api/admin/feed": {"get": _call()},
    "/api/admin/history": {"get": _call()},
    "/api/admin/tasks": {
        "get": _call(
            query={"limit": COUNT, "after": CURSOR, "state": {"enum": ["queued", "failed"]}, **FILTERS}
        )
    },
    "/api/admin/tasks/{task_id}": {"get": _call(path=ID)},
    "/api/admin/tasks/{task_id}/cancel": {"post": _call(path=ID)},
    "/api/admin/workers/{worker_id}/drain": {
        "post": _call(path={"worker_id": {"type": "string", "pattern": "^0{8}[0-9a-f]{8}$"}})
    },
    "/api/admin/queues/{name}": {
        "patch": _call(path={"name": {"enum": list(LAB_QUEUES)}}, body=QUEUE_CHANGE)
    },
    "/api/admin/models/{name}": {"patch": _call(path={"name": {"enum": [LAB]}}, body=MODEL_CHANGE)},
    "/metrics": {"get": _call()},
    "/health/live": {"get": _call(), "head": _call()},
    "/health/ready": {"get": _call(), "head": _call()},
    "/": {"get": _call(), "head": _call()},
    "/dashboard": {"get": _call(), "head": _call()},
    "/favicon.ico": {"get": _call(), "head": _call()},
    "/static/{file}": {
        method: _call(path={"file": {"type": "string", "maxLength": 30}}) for method in ("get", "head")
    },
}

DOCUMENT: Schema = {"openapi": "3.1.0", "info": {"title": "Fairlane", "version": "1"}, "paths": PATHS}
