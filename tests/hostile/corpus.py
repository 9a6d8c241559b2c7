"""Valid requests of every call, as bytes: the attackers damage them. Pure."""

import functools
import json
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.hostile.cast import (
    CHAIN,
    LAB,
    LAB_QUEUES,
    NO_BATCH,
    NOBODYS,
    NOBODYS_FILE,
    ROUTE,
    STREAMING,
    WORKING,
    secret,
)
from tests.hostile.document import application

Way = tuple[str, str]
"""Method and path of a call, as the gateway's list of calls has them."""


@dataclass
class Known:
    """Ids and tickets that attackers know: of their own tasks, and the ids of the victim's."""

    mine: deque[str] = field(default_factory=lambda: deque([NOBODYS], 200))
    theirs: deque[str] = field(default_factory=lambda: deque([NOBODYS], 200))
    tickets: deque[tuple[str, str]] = field(default_factory=lambda: deque([(NOBODYS, "x" * 32)], 200))
    """Own tasks and their tickets."""


@dataclass(frozen=True, slots=True)
class Valid:
    """A request that the gateway accepts. `long`: its answer may last until the task ends, or for ever."""

    method: str
    path: str
    key: str | None = None
    body: Any = None
    headers: tuple[tuple[str, str], ...] = ()
    long: bool = False

    def head(self, length: int | None) -> bytes:
        """Return the request head with a body of this length; None: without a length."""
        lines = [f"{self.method} {self.path} HTTP/1.1", "Host: 127.0.0.1"]
        if self.key:
            lines.append(f"Authorization: Bearer {secret(self.key)}")
        if self.body is not None:
            lines.append("Content-Type: application/json")
        if length is not None and (length or self.body is not None):
            lines.append(f"Content-Length: {length}")
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join(lines).encode("utf-8", "surrogatepass") + b"\r\n\r\n"

    def payload(self) -> bytes:
        return b"" if self.body is None else json.dumps(self.body).encode()

    def bytes(self) -> bytes:
        payload = self.payload()
        return self.head(len(payload)) + payload


def words(rng: random.Random) -> str:
    return " ".join(rng.choices(("lane", "slot", "turn", "née", "日本", "🙂"), k=rng.randint(1, 6)))


def _chat(rng: random.Random) -> dict[str, Any]:
    """A body for chats, of OpenAI's, Anthropic's or our own API."""
    message = {"role": rng.choice(("user", "system", "assistant")), "content": words(rng)}
    body = {"model": rng.choice(WORKING), "messages": [message] * rng.randint(1, 3), "max_tokens": 9}
    more = ({"stream": True}, {"async": True}, {"timeout": 5000}, {"idempotencyKey": f"k{rng.randint(1, 9)}"})
    return body | rng.choice(
        ({}, *more, {"metadata": {"a": "b"}}, {"priority": 2, "onDisconnect": "continue"})
    )


def _task(rng: random.Random) -> dict[str, Any]:
    variables = {"text": words(rng), "list": [words(rng)] * rng.randint(0, 3)}
    return rng.choice(
        (
            {"type": "openaiLike", "payload": _chat(rng), "model": STREAMING, "async": rng.random() < 0.5},
            {"template": ROUTE, "variables": variables},
            {"chain": CHAIN, "variables": variables},
            {"type": "http", "url": _url(rng), "query": {"q": words(rng)}, "async": True},
        )
    )


def _response(rng: random.Random) -> dict[str, Any]:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": words(rng)}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": words(rng)},
    ]
    body = {"model": rng.choice(WORKING), "input": rng.choice((words(rng), items))}
    return body | rng.choice(({}, {"stream": True}, {"background": True}, {"store": False}))


def _url(rng: random.Random) -> str:
    return f"https://made-{rng.randint(1, 9)}.example.com/{rng.choice(('', 'a', 'a/b?c=%20'))}"


BODIES: dict[Way, Callable[[random.Random], dict[str, Any]]] = {
    ("POST", "/v1/chat/completions"): _chat,
    ("POST", "/v1/messages"): _chat,
    ("POST", "/api/openai"): _chat,
    ("POST", "/v1/responses"): _response,
    ("POST", "/api/tasks"): _task,
    ("POST", "/api/submitTask"): lambda rng: {
        "target_url": _url(rng),
        "http_method": "POST",
        "body": words(rng),
    },
    ("POST", "/api/cancelTask"): lambda rng: {"task_id": NOBODYS},
    ("PATCH", "/api/admin/queues/{name}"): lambda rng: {"paused": rng.random() < 0.5, "weight": 2.5},
    ("PATCH", "/api/admin/models/{name}"): lambda rng: {"concurrency": rng.choice((None, 1, 50))},
    ("POST", "/api/admin/endpoints"): lambda rng: {"name": f"made-{rng.randint(1, 9)}", "url": _url(rng)},
    ("POST", "/api/admin/keys"): lambda rng: {"id": f"made-{rng.randint(1, 9)}", "note": words(rng)},
    ("POST", "/api/webhooks"): lambda rng: {"url": _url(rng), "events": ["*"], "note": words(rng)},
}
"""Bodies of calls that have one of their own; the others have no member, or those of `_any`."""
RARE = ("/metrics", "/api/admin/overview", "/api/admin/events", "/api/admin/timeseries")
"""Calls that cost the gateway a multiple of the others: an operator makes them a few times a minute."""


def _any(rng: random.Random) -> dict[str, Any]:
    return {"model": rng.choice(WORKING), "input": words(rng), "prompt": words(rng), "voice": "alloy"}


@functools.cache
def calls() -> list[Way]:
    """Return every call of the gateway."""
    return sorted(application().calls)


@functools.cache
def submits() -> list[Way]:
    """Return the calls that submit tasks."""
    return [
        way
        for way in calls()
        if way[0] == "POST" and (way in BODIES or "/v1/" in way[1]) and "{" not in way[1]
    ]


def valid(rng: random.Random, known: Known, way: Way) -> Valid:
    """Return a request of a call."""
    method, path = way
    task = rng.choice((*known.mine, *known.theirs))
    ids = {
        "{task_id}": task,
        "{response_id}": f"resp_{task}",
        "{file_id}": NOBODYS_FILE,
        "{batch_id}": NO_BATCH,
        "{model}": rng.choice(WORKING),
        "{name}": LAB if "models" in path else rng.choice(LAB_QUEUES),
        "{file}": "common/api.js",
    }
    segments = [ids.get(part, "nothing" if part.startswith("{") else part) for part in path.split("/")]
    made = "/".join(segments)
    if path in ("/api/sse-stream", "/api/queryTask"):
        made += f"?taskId={task}&task_id={task}"
    body = None
    if method in ("POST", "PATCH"):
        body = BODIES[way](rng) if way in BODIES else _any(rng) if path.startswith("/v1/") else {}
    key = (
        "ops" if path.startswith(("/api/admin/", "/metrics")) else rng.choice(("mallory", "mallory", "site"))
    )
    headers: tuple[tuple[str, str], ...] = ()
    if key == "site":
        headers = (("X-Fairlane-User", f"user-{rng.randint(1, 9)}"), ("X-Fairlane-Priority", "3"))
    return Valid(method, made, key, body, headers, path.endswith(("/events", "/api/sse-stream")))


def any_valid(rng: random.Random, known: Known, among: Sequence[Way] = ()) -> Valid:
    """Return a request of a random call."""
    way = rng.choice(among or calls())
    if way[1] in RARE and rng.random() < 0.9:
        way = ("POST", "/api/openai")
    return valid(rng, known, way)
