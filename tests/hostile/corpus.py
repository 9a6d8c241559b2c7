"""Valid requests of every call, as bytes: what the attackers begin with. Pure."""

import json
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.hostile.cast import CHAIN, HOSTILE, LAB, LAB_QUEUES, ROUTE, STREAMING, WORKING, secret

NOBODYS = "01a1fc1b-0232-8009-84a9-bfa34c29bda8"
"""The id of a task that could be and is not."""
NOBODYS_FILE = "file-01a1fc1b02328009a4a9bfa34c29bda8"
BOUNDARY = "a-boundary"
NO_BATCH = f"batch_{'0' * 32}"
"""The same of a batch."""


@dataclass
class Known:
    """What attackers know of the run: ids and tickets of their own tasks, and the ids of the victim's."""

    mine: deque[str] = field(default_factory=lambda: deque([NOBODYS], 200))
    theirs: deque[str] = field(default_factory=lambda: deque([NOBODYS], 200))
    tickets: deque[tuple[str, str]] = field(default_factory=lambda: deque([(NOBODYS, "x" * 32)], 200))
    """Own tasks and their tickets."""


@dataclass(frozen=True, slots=True)
class Valid:
    """A request that the gateway takes. `long`: its answer may go on until the task ends, or for ever."""

    method: str
    path: str
    key: str | None = None
    body: Any = None
    headers: tuple[tuple[str, str], ...] = ()
    long: bool = False
    form: bytes | None = None
    """A body that is a form, and no JSON."""

    def head(self, length: int | None) -> bytes:
        """The request head with a body of so many bytes; None: without a word on its length."""
        lines = [f"{self.method} {self.path} HTTP/1.1", "Host: 127.0.0.1"]
        if self.key:
            lines.append(f"Authorization: Bearer {secret(self.key)}")
        if self.form is not None:
            lines.append(f"Content-Type: multipart/form-data; boundary={BOUNDARY}")
        elif self.body is not None:
            lines.append("Content-Type: application/json")
        if length is not None and (length or self.body is not None):
            lines.append(f"Content-Length: {length}")
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join(lines).encode("utf-8", "surrogatepass") + b"\r\n\r\n"

    def payload(self) -> bytes:
        if self.form is not None:
            return self.form
        return b"" if self.body is None else json.dumps(self.body).encode()

    def bytes(self) -> bytes:
        payload = self.payload()
        return self.head(len(payload)) + payload


def words(rng: random.Random) -> str:
    return " ".join(
        rng.choice(("lane", "slot", "turn", "née", "日本", "🙂")) for _ in range(rng.randint(1, 6))
    )


def _message(rng: random.Random) -> dict[str, Any]:
    return {"role": rng.choice(("user", "system", "assistant")), "content": words(rng)}


def _model(rng: random.Random) -> str:
    return rng.choice(WORKING)


def _chat(rng: random.Random, known: Known) -> Valid:
    body: dict[str, Any] = {
        "model": _model(rng),
        "messages": [_message(rng) for _ in range(rng.randint(1, 3))],
    }
    body |= rng.choice(
        ({}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}, {"max_tokens": 4})
    )
    headers = rng.choice(((), (("X-Fairlane-Priority", "3"),), (("X-Fairlane-Metadata", '{"a": 1}'),)))
    return Valid("POST", "/v1/chat/completions", "mallory", body, headers)


def _completion(rng: random.Random, known: Known) -> Valid:
    body = {"model": _model(rng), "prompt": words(rng), "stream": rng.random() < 0.5}
    return Valid("POST", "/v1/completions", "mallory", body)


def _embedding(rng: random.Random, known: Known) -> Valid:
    body = {"model": STREAMING, "input": [words(rng)], "encoding_format": rng.choice(("float", "base64"))}
    return Valid("POST", "/v1/embeddings", "mallory", body)


def _batch(rng: random.Random, known: Known) -> Valid:
    file_id = f"file-{rng.getrandbits(128):032x}"
    body = {"input_file_id": file_id, "endpoint": "/v1/embeddings", "completion_window": "24h"}
    return Valid("POST", "/v1/batches", "mallory", {**body, "metadata": {"a": words(rng)}})


def _blocks(rng: random.Random) -> list[dict[str, Any]]:
    known = (
        {"type": "text", "text": words(rng), "cache_control": {"type": "ephemeral"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": words(rng)}},
    )
    return [rng.choice(known) for _ in range(rng.randint(1, 3))]


def _messages(rng: random.Random, known: Known) -> Valid:
    conversation: list[dict[str, Any]] = [{"role": "user", "content": rng.choice((words(rng), _blocks(rng)))}]
    if rng.random() < 0.5:
        use = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": words(rng)}}
        thought = {"type": "thinking", "thinking": words(rng), "signature": rng.choice(("", "sig"))}
        result = {"type": "tool_result", "tool_use_id": "t1", "content": _blocks(rng)[:1], "is_error": True}
        conversation += [
            {"role": "assistant", "content": [thought, use]},
            {"role": "user", "content": [result]},
        ]
    body: dict[str, Any] = {"model": _model(rng), "max_tokens": rng.randint(1, 9), "messages": conversation}
    body |= rng.choice(({}, {"stream": True}, {"system": words(rng)}, {"thinking": {"type": "adaptive"}}))
    tools = [{"name": "weather", "input_schema": {"type": "object"}}]
    body |= rng.choice(({}, {"tools": tools}, {"tools": tools, "tool_choice": {"type": "any"}}))
    headers = rng.choice(((), (("anthropic-version", "2023-06-01"), ("anthropic-beta", "some-2026-01-01"))))
    return Valid("POST", "/v1/messages", "mallory", body, headers)


def _counted(rng: random.Random, known: Known) -> Valid:
    body = {"model": _model(rng), "messages": [{"role": "user", "content": _blocks(rng)}]}
    return Valid("POST", "/v1/messages/count_tokens", "mallory", body)


def _responses(rng: random.Random, known: Known) -> Valid:
    parts = [{"type": "input_text", "text": words(rng)}, {"type": "input_image", "image_url": "https://a/b"}]
    items: list[dict[str, Any]] = [
        {"role": "user", "content": rng.choice((words(rng), parts[:1], parts))},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": words(rng)}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": words(rng)},
    ]
    body: dict[str, Any] = {"model": _model(rng), "input": rng.choice((words(rng), items[:1], items))}
    body |= rng.choice(({}, {"stream": True}, {"instructions": words(rng)}, {"max_output_tokens": 9}))
    tools = [{"type": "function", "name": "weather", "parameters": {"type": "object"}}]
    body |= rng.choice(({}, {"tools": tools}, {"tools": tools, "tool_choice": "required"}))
    body |= rng.choice(({}, {"metadata": {"a": "b"}}, {"reasoning": {"effort": "low", "summary": "auto"}}))
    previous = f"resp_{rng.choice((*known.mine, *known.theirs))}"
    body |= rng.choice(({}, {"store": False}, {"background": True}, {"previous_response_id": previous}))
    return Valid("POST", "/v1/responses", "mallory", body)


def _on_response(method: str, path: str) -> Callable[[random.Random, Known], Valid]:
    def make(rng: random.Random, known: Known) -> Valid:
        response = f"resp_{rng.choice((*known.mine, *known.theirs))}"
        return Valid(method, f"/v1/responses/{response}{path}", "mallory", {} if method == "POST" else None)

    return make


def part(name: str, data: bytes, filename: str | None = None) -> bytes:
    """A part of a form."""
    named = "" if filename is None else f'; filename="{filename}"'
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'
    return head.encode("utf-8", "surrogatepass") + data + b"\r\n"


def file_form(rng: random.Random) -> list[bytes]:
    """The parts of a form that brings a file, in any order."""
    parts = [
        part("file", words(rng).encode() * rng.choice((0, 1, 1, 1000)), f"{words(rng)}.jsonl"),
        part("purpose", rng.choice((b"batch", b"user_data"))),
    ]
    if rng.random() < 0.3:
        parts += [part("expires_after[anchor]", b"created_at"), part("expires_after[seconds]", b"3600")]
    return rng.sample(parts, len(parts))


def _file(rng: random.Random, known: Known) -> Valid:
    form = b"".join(file_form(rng)) + f"--{BOUNDARY}--\r\n".encode()
    return Valid("POST", "/v1/files", "mallory", form=form)


def _media(path: str, **members: Any) -> Callable[[random.Random, Known], Valid]:
    """A call with a JSON body for audio, images or moderations; nobody offers them here."""

    def make(rng: random.Random, known: Known) -> Valid:
        body = {"model": _model(rng), **{name: words(rng) for name in members}}
        body |= rng.choice(({}, {"stream": True}, {"n": 2}, {"stream_format": "sse"}))
        return Valid("POST", path, "mallory", body)

    return make


def _upload(path: str, file: str) -> Callable[[random.Random, Known], Valid]:
    """One with a form."""

    def make(rng: random.Random, known: Known) -> Valid:
        parts = [part("model", _model(rng).encode()), part(file, words(rng).encode(), "a.bin")]
        more = (
            ("prompt", words(rng)),
            ("temperature", "0.5"),
            ("include[]", "x"),
            ("svg[model]", "m"),
            ("stream", "true"),
        )
        parts += [part(name, text.encode()) for name, text in more if rng.random() < 0.5]
        form = b"".join(rng.sample(parts, len(parts))) + f"--{BOUNDARY}--\r\n".encode()
        return Valid("POST", path, "mallory", form=form)

    return make


def _native(rng: random.Random, known: Known) -> Valid:
    body: dict[str, Any] = {"model": _model(rng), "messages": [_message(rng)]}
    body |= rng.choice(({}, {"stream": True}, {"async": True}, {"async": True, "stream": True}))
    body |= rng.choice(
        ({}, {"timeout": 5000}, {"priority": 2}, {"metadata": {"a": [1]}}, {"onDisconnect": "continue"})
    )
    body |= rng.choice(({}, {}, {"idempotencyKey": f"key-{rng.randint(1, 9)}"}))
    body |= rng.choice(({}, {"resultTtlMs": 1000}, {"mode": rng.choice(("stream", "batch", "vision"))}))
    return Valid("POST", "/api/openai", "mallory", body)


def _task(rng: random.Random, known: Known) -> Valid:
    body: dict[str, Any] = {
        "type": rng.choice(("openaiLike", "resize")),
        "model": _model(rng),
        "payload": {"messages": [_message(rng)]},
    }
    body["async"] = rng.random() < 0.5
    return Valid("POST", "/api/tasks", "mallory", body)


def _prompt(rng: random.Random, known: Known) -> Valid:
    variables = {"text": words(rng), "list": [words(rng)] * rng.randint(0, 3)}
    body = {"template": ROUTE, "variables": variables, "async": rng.random() < 0.5}
    return Valid("POST", "/api/tasks", "mallory", body)


def _chain(rng: random.Random, known: Known) -> Valid:
    variables = {"text": words(rng), "list": [words(rng)] * rng.randint(0, 4)}
    return Valid("POST", "/api/tasks", "mallory", {"chain": CHAIN, "variables": variables})


def _delegated(rng: random.Random, known: Known) -> Valid:
    headers = (
        ("X-Fairlane-User", f"user-{rng.randint(1, 9)}"),
        ("X-Fairlane-Tier", rng.choice(("free", "lab"))),
    )
    return Valid("POST", "/api/openai", "site", {"model": _model(rng), "messages": [_message(rng)]}, headers)


def _read(path: str, long: bool = False) -> Callable[[random.Random, Known], Valid]:
    def make(rng: random.Random, known: Known) -> Valid:
        task = rng.choice((*known.mine, *known.theirs))
        return Valid("GET", path.format(task=task), "mallory", long=long)

    return make


def _by_ticket(rng: random.Random, known: Known) -> Valid:
    task, ticket = rng.choice(known.tickets)
    return Valid("GET", f"/api/task/{task}/events?token={ticket}", long=True)


def _cancel(path: str, key: str) -> Callable[[random.Random, Known], Valid]:
    def make(rng: random.Random, known: Known) -> Valid:
        return Valid("POST", path.format(task=rng.choice(known.mine)), key, {})

    return make


def _change(kind: str) -> Callable[[random.Random, Known], Valid]:
    def make(rng: random.Random, known: Known) -> Valid:
        name = rng.choice(LAB_QUEUES) if kind == "queues" else LAB
        field = rng.choice(("paused", "max_length", "weight")) if kind == "queues" else "concurrency"
        value: Any = {"paused": rng.random() < 0.5, "weight": rng.uniform(0.1, 9)}.get(
            field, rng.randint(1, 50)
        )
        return Valid("PATCH", f"/api/admin/{kind}/{name}", "ops", {field: rng.choice((value, None))})

    return make


def _key(method: str, path: str, *bodies: Any) -> Callable[[random.Random, Known], Valid]:
    """A call about a key that is there, or is none; new ones have an id that is taken, or one of few."""

    def make(rng: random.Random, known: Known) -> Valid:
        body = rng.choice(bodies) if bodies else None
        return Valid(
            method, path.format(key=rng.choice((f"made-{rng.randint(1, 9)}", "mallory"))), "ops", body
        )

    return make


def _url(rng: random.Random) -> str:
    return f"https://made-{rng.randint(1, 9)}.example.com/{rng.choice(('', 'a', 'a/b?c=%20'))}"


def _plain(rng: random.Random, known: Known) -> Valid:
    body: dict[str, Any] = {"target_url": _url(rng), "http_method": rng.choice(("GET", "POST"))}
    body |= rng.choice(({}, {"body": words(rng)}, {"priority": 2, "timestamp": 5}, {"task_type": "offline"}))
    return Valid("POST", "/api/submitTask", "mallory", body)


def _request(rng: random.Random, known: Known) -> Valid:
    """A task that is a request to an endpoint."""
    body: dict[str, Any] = {"type": "http", "url": _url(rng), "query": {"q": words(rng)}, "async": True}
    body |= rng.choice(
        ({}, {"body": {"a": [words(rng)]}}, {"bodyBase64": "AP8="}, {"headers": {"accept": "*/*"}})
    )
    return Valid("POST", "/api/tasks", "mallory", body)


def _endpoint(method: str, *bodies: Any) -> Callable[[random.Random, Known], Valid]:
    """A call about an endpoint that may be there."""

    def make(rng: random.Random, known: Known) -> Valid:
        body = rng.choice(bodies) if bodies else None
        return Valid(method, f"/api/admin/endpoints/made-{rng.randint(1, 9)}", "ops", body)

    return make


HOOK, DELIVERY = f"hook_{'0' * 24}", f"wh_{'0' * 32}"
"""A webhook, and one of its deliveries, that could be and are not."""


def _hook(method: str, path: str, *bodies: Any) -> Callable[[random.Random, Known], Valid]:
    """A call about a webhook that is nobody's."""

    def make(rng: random.Random, known: Known) -> Valid:
        return Valid(method, f"/api/webhooks/{HOOK}{path}", "mallory", rng.choice(bodies) if bodies else None)

    return make


def _fixed(
    method: str, path: str, key: str | None = None, long: bool = False
) -> Callable[[random.Random, Known], Valid]:
    return lambda rng, known: Valid(method, path, key, {} if method == "POST" else None, long=long)


def _permit(method: str, path: str) -> Callable[[random.Random, Known], Valid]:
    def make(rng: random.Random, known: Known) -> Valid:
        task = rng.choice((*known.mine, *known.theirs))
        shown = f"{task}.{''.join(rng.choices('abcXYZ019_-', k=32))}"
        headers = [
            ("X-Task-Id", task),
            ("X-Fairlane-Permit", shown),
            ("X-Fairlane-Receipt", shown),
            ("X-Original-URL", "http://127.0.0.1:9/a"),
            ("X-Forwarded-Uri", "/a"),
        ]
        return Valid(method, path, headers=tuple(rng.sample(headers, rng.randint(0, len(headers)))))

    return make


CALLS: dict[tuple[str, str], Callable[[random.Random, Known], Valid]] = {
    ("POST", "/v1/chat/completions"): _chat,
    ("POST", "/v1/completions"): _completion,
    ("POST", "/v1/embeddings"): _embedding,
    ("POST", "/v1/moderations"): _media("/v1/moderations", input=1),
    ("POST", "/v1/audio/speech"): _media("/v1/audio/speech", input=1, voice=1),
    ("POST", "/v1/images/generations"): _media("/v1/images/generations", prompt=1),
    ("POST", "/v1/audio/transcriptions"): _upload("/v1/audio/transcriptions", "file"),
    ("POST", "/v1/audio/translations"): _upload("/v1/audio/translations", "file"),
    ("POST", "/v1/images/edits"): _upload("/v1/images/edits", "image"),
    ("POST", "/v1/images/variations"): _upload("/v1/images/variations", "image"),
    ("POST", "/v1/messages"): _messages,
    ("POST", "/v1/responses"): _responses,
    ("GET", "/v1/responses/{response_id}"): lambda rng, known: rng.choice(
        (
            _read("/v1/responses/resp_{task}"),
            _read("/v1/responses/resp_{task}?stream=true", long=True),
            _read("/v1/responses/resp_{task}?stream=true&starting_after=2", long=True),
        )
    )(rng, known),
    ("DELETE", "/v1/responses/{response_id}"): _on_response("DELETE", ""),
    ("POST", "/v1/responses/{response_id}/cancel"): _on_response("POST", "/cancel"),
    ("GET", "/v1/responses/{response_id}/input_items"): _read(
        "/v1/responses/resp_{task}/input_items?limit=2&order=asc"
    ),
    ("POST", "/v1/messages/count_tokens"): _counted,
    ("POST", "/v1/batches"): _batch,
    ("GET", "/v1/batches"): _fixed("GET", "/v1/batches?limit=5", "mallory"),
    ("GET", "/v1/batches/{batch_id}"): _fixed("GET", f"/v1/batches/{NO_BATCH}", "mallory"),
    ("POST", "/v1/batches/{batch_id}/cancel"): _fixed("POST", f"/v1/batches/{NO_BATCH}/cancel", "mallory"),
    ("GET", "/api/admin/batches"): _fixed("GET", "/api/admin/batches?state=unended&limit=5", "ops"),
    ("GET", "/v1/models"): _fixed("GET", "/v1/models", "mallory"),
    ("POST", "/v1/files"): _file,
    ("GET", "/v1/files"): lambda rng, known: Valid(
        "GET", f"/v1/files?limit={rng.randint(1, 9)}&order={rng.choice(('asc', 'desc'))}", "mallory"
    ),
    ("GET", "/v1/files/{file_id}"): _fixed("GET", f"/v1/files/{NOBODYS_FILE}", "mallory"),
    ("GET", "/v1/files/{file_id}/content"): _fixed("GET", f"/v1/files/{NOBODYS_FILE}/content", "mallory"),
    ("DELETE", "/v1/files/{file_id}"): _fixed("DELETE", f"/v1/files/{NOBODYS_FILE}", "mallory"),
    ("GET", "/v1/models/{model}"): lambda rng, known: Valid(
        "GET", f"/v1/models/{_model(rng)}", rng.choice(HOSTILE)
    ),
    ("POST", "/api/openai"): lambda rng, known: rng.choice((_native, _native, _delegated))(rng, known),
    ("POST", "/api/tasks"): lambda rng, known: rng.choice((_task, _task, _prompt, _request, _chain))(
        rng, known
    ),
    ("GET", "/api/routes"): lambda rng, known: Valid("GET", "/api/routes", rng.choice(HOSTILE)),
    ("GET", "/api/task/{task_id}"): _read("/api/task/{task}"),
    ("POST", "/api/task/{task_id}/cancel"): _cancel("/api/task/{task}/cancel", "mallory"),
    ("GET", "/api/task/{task_id}/events"): lambda rng, known: rng.choice(
        (
            _read("/api/task/{task}/events", long=True),
            _read("/api/task/{task}/events?fromLatest=1", long=True),
            _by_ticket,
        )
    )(rng, known),
    ("GET", "/api/permit/check"): _permit("GET", "/api/permit/check"),
    ("GET", "/api/permit/check/{endpoint}"): _permit("GET", "/api/permit/check/image"),
    ("GET", "/api/permit/check/{endpoint}/{original}"): _permit("GET", "/api/permit/check/image/a/b?c=d"),
    ("POST", "/api/permit/done"): _permit("POST", "/api/permit/done"),
    ("GET", "/api/sse-stream"): _read("/api/sse-stream?taskId={task}", long=True),
    ("GET", "/api/me"): lambda rng, known: Valid("GET", "/api/me", rng.choice(HOSTILE)),
    ("GET", "/api/admin/overview"): lambda rng, known: Valid(
        "GET", f"/api/admin/overview?tasks={rng.randint(0, 99)}", "ops"
    ),
    ("GET", "/api/admin/audit"): _fixed("GET", "/api/admin/audit?limit=5", "ops"),
    ("DELETE", "/api/admin/users/{user}"): lambda rng, known: Valid(
        "DELETE", f"/api/admin/users/nobody{rng.randint(0, 99)}", "ops"
    ),
    ("PATCH", "/api/admin/webhooks/{webhook_id}"): lambda rng, known: Valid(
        "PATCH", f"/api/admin/webhooks/{HOOK}", "ops", {"enabled": False}
    ),
    ("GET", "/api/admin/balances"): _fixed("GET", "/api/admin/balances?limit=5", "ops"),
    ("GET", "/api/admin/balances/ledger"): _fixed("GET", "/api/admin/balances/ledger?limit=5", "ops"),
    ("POST", "/api/admin/balances/grants"): lambda rng, known: Valid(
        "POST",
        "/api/admin/balances/grants",
        "ops",
        {"key": "site", "credits": rng.randint(-9, 9) or 1, "id": f"grant-{rng.randint(0, 99)}"},
    ),
    ("GET", "/api/admin/rejections"): _fixed("GET", "/api/admin/rejections?limit=5", "ops"),
    ("GET", "/api/admin/events"): _fixed("GET", "/api/admin/events", "ops", long=True),
    ("GET", "/api/admin/timeseries"): lambda rng, known: Valid("GET", "/api/admin/timeseries", "ops"),
    ("GET", "/api/admin/tasks"): lambda rng, known: Valid(
        "GET",
        f"/api/admin/tasks?limit={rng.randint(1, 20)}&from={rng.randint(0, 9)}"
        f"&state={rng.choice(('queued', 'executing', 'failed'))}",
        "ops",
    ),
    ("GET", "/api/admin/tasks/{task_id}"): lambda rng, known: Valid(
        "GET", f"/api/admin/tasks/{rng.choice(known.mine)}", "ops"
    ),
    ("POST", "/api/admin/workers/{worker_id}/drain"): lambda rng, known: Valid(
        "POST", f"/api/admin/workers/{rng.getrandbits(64):016x}/drain", "ops", {}
    ),
    ("GET", "/api/admin/settings"): _fixed("GET", "/api/admin/settings?name=lab", "ops"),
    ("GET", "/api/admin/overrides"): _fixed("GET", "/api/admin/overrides", "ops"),
    ("POST", "/api/admin/overrides"): lambda rng, known: Valid(
        "POST",
        "/api/admin/overrides?check=true",
        "ops",
        {"target": "model", "name": LAB, "values": {"first_output_ms": rng.randint(1000, 9000)}},
    ),
    ("PATCH", "/api/admin/overrides/{override_id}"): lambda rng, known: Valid(
        "PATCH", "/api/admin/overrides/nothing", "ops", {"percent": rng.randint(1, 100)}
    ),
    ("PATCH", "/api/admin/queues/{name}"): _change("queues"),
    ("PATCH", "/api/admin/models/{name}"): _change("models"),
    ("POST", "/api/submitTask"): _plain,
    ("GET", "/api/queryTask"): _read("/api/queryTask?task_id={task}"),
    ("POST", "/api/cancelTask"): lambda rng, known: Valid(
        "POST", "/api/cancelTask", "mallory", {"task_id": rng.choice(known.mine)}
    ),
    ("GET", "/api/admin/endpoints"): _fixed("GET", "/api/admin/endpoints", "ops"),
    ("POST", "/api/admin/endpoints"): lambda rng, known: Valid(
        "POST",
        "/api/admin/endpoints",
        "ops",
        {
            "name": f"made-{rng.randint(1, 9)}",
            "url": f"https://made-{rng.randint(1, 9)}.example.com/*",
            "note": words(rng),
        },
    ),
    ("PATCH", "/api/admin/endpoints/{name}"): _endpoint(
        "PATCH", {"concurrency": 3}, {"set_headers": {"X-Test": "a"}}, {"windows": "5/1s"}, {"note": None}
    ),
    ("DELETE", "/api/admin/endpoints/{name}"): _endpoint("DELETE"),
    ("GET", "/api/webhooks"): _fixed("GET", "/api/webhooks", "mallory"),
    ("POST", "/api/webhooks"): lambda rng, known: Valid(
        *("POST", "/api/webhooks", "mallory"),
        {
            "url": f"https://h{rng.randint(1, 9)}.example.invalid/{rng.randint(1, 9)}",
            "events": rng.choice((["*"], ["task.failed", "batch.completed"])),
            "note": words(rng),
        },
    ),
    ("GET", "/api/webhooks/{webhook_id}"): _hook("GET", ""),
    ("PATCH", "/api/webhooks/{webhook_id}"): _hook(
        "PATCH",
        "",
        {"enabled": False},
        {"enabled": True},
        {"events": ["*"]},
        {"url": "https://h.example.invalid/"},
    ),
    ("DELETE", "/api/webhooks/{webhook_id}"): _hook("DELETE", ""),
    ("POST", "/api/webhooks/{webhook_id}/rotate"): _hook("POST", "/rotate", {}, {"keepMs": 0}),
    ("POST", "/api/webhooks/{webhook_id}/test"): _hook("POST", "/test", {}),
    ("GET", "/api/webhooks/{webhook_id}/deliveries"): _hook("GET", "/deliveries?limit=5&state=waiting"),
    ("GET", "/api/webhooks/{webhook_id}/deliveries/{delivery_id}"): _hook("GET", f"/deliveries/{DELIVERY}"),
    ("POST", "/api/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver"): _hook(
        "POST", f"/deliveries/{DELIVERY}/redeliver", {}
    ),
    ("GET", "/api/admin/webhooks"): _fixed("GET", "/api/admin/webhooks?limit=5", "ops"),
    ("GET", "/api/admin/keys"): _fixed("GET", "/api/admin/keys?limit=5", "ops"),
    ("GET", "/api/admin/keys/{key_id}"): _key("GET", "/api/admin/keys/{key}"),
    ("POST", "/api/admin/keys"): lambda rng, known: Valid(
        "POST", "/api/admin/keys", "ops", {"id": f"made-{rng.randint(1, 9)}", "note": words(rng)}
    ),
    ("PATCH", "/api/admin/keys/{key_id}"): _key(
        "PATCH", "/api/admin/keys/{key}", {"weight": 2.5}, {"note": None}, {"limits": {"requests_per_day": 5}}
    ),
    ("POST", "/api/admin/keys/{key_id}/rotate"): _key(
        "POST", "/api/admin/keys/{key}/rotate", {}, {"keep_ms": 0}
    ),
    ("POST", "/api/admin/keys/{key_id}/revoke"): _key(
        "POST", "/api/admin/keys/{key}/revoke", {}, {"now": True}
    ),
    ("GET", "/api/admin/usage"): lambda rng, known: Valid(
        "GET",
        f"/api/admin/usage?by={rng.choice(('model', 'key,day', 'hour', 'user&format=csv', 'route,day'))}",
        "ops",
    ),
    ("GET", "/api/admin/usage/tasks"): _fixed("GET", "/api/admin/usage/tasks?limit=5", "ops"),
    ("GET", "/api/usage"): lambda rng, known: Valid("GET", "/api/usage?by=model", rng.choice(HOSTILE)),
    ("GET", "/metrics"): _fixed("GET", "/metrics", "ops"),
    ("GET", "/api/admin/users"): _fixed("GET", "/api/admin/users", "ops"),
    ("POST", "/api/admin/tasks/cancel"): _fixed("POST", "/api/admin/tasks/cancel?user=nobody", "ops"),
    **{(method, path): _fixed(method, path) for path in ("/livez", "/readyz") for method in ("GET", "HEAD")},
    **{
        (method, path): _fixed(method, path)
        for path in ("/", "/dashboard", "/docs", "/favicon.ico")
        for method in ("GET", "HEAD")
    },
    ("GET", "/openapi.json"): _fixed("GET", "/openapi.json"),
    ("GET", "/static/{file}"): _fixed("GET", "/static/common/api.js"),
    ("HEAD", "/static/{file}"): _fixed("HEAD", "/static/common/api.js"),
}
"""One maker per call of the gateway (a test compares them with its routes)."""

SUBMITS = tuple(
    call
    for call in CALLS
    if call[0] == "POST"
    and not any(part in call[1] for part in ("cancel", "/api/admin/", "/api/permit/", "/v1/files"))
    and not any(part in call[1] for part in ("cancel", "/api/admin/", "/api/permit/", "/batches"))
)
RARE = {
    ("GET", "/metrics"),
    ("GET", "/api/admin/overview"),
    ("GET", "/api/admin/events"),
    ("GET", "/api/admin/timeseries"),
}
"""Calls that cost the gateway a multiple of the others: an operator makes them a few times a minute."""


def any_valid(rng: random.Random, known: Known, among: tuple[tuple[str, str], ...] = tuple(CALLS)) -> Valid:
    """A request of a random call."""
    call = rng.choice(among)
    if call in RARE and rng.random() < 0.9:
        call = ("POST", "/api/openai")
    return CALLS[call](rng, known)
