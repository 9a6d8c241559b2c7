"""The submitting calls, each way to be answered, and what of an answer is promised to be the same."""

import re
from dataclasses import dataclass
from typing import Any

import httpx2

MESSAGES = [{"role": "user", "content": "hi"}]
KEY = "order-7"


@dataclass(frozen=True)
class Asking:
    """One call with one way to be answered."""

    path: str
    body: dict[str, Any]
    result: Any = None
    """What the worker answers; None: what its chunks make up."""

    def __str__(self) -> str:
        ways = [way for way in ("stream", "async") if self.body.get(way)] or ["sync"]
        return f"{self.path}-{ways[0]}"

    async def __call__(self, http: httpx2.AsyncClient, key: str | None = KEY, **more: Any) -> httpx2.Response:
        headers = {} if key is None else {"Idempotency-Key": key}
        return await http.post(self.path, json={**self.body, **more}, headers=headers)


NATIVE = {"model": "m", "messages": MESSAGES}
ANY = {"type": "openaiLike", "model": "m", "payload": {"messages": MESSAGES}}
CHAT = {"model": "m", "messages": MESSAGES}
COMPLETION = {"model": "m", "prompt": "hi"}
ASKINGS = [
    *(Asking("/api/openai", {**NATIVE, **way}) for way in ({}, {"stream": True}, {"async": True})),
    *(Asking("/api/tasks", {**ANY, **way}) for way in ({}, {"stream": True}, {"async": True})),
    *(Asking("/v1/chat/completions", {**CHAT, **way}) for way in ({}, {"stream": True})),
    *(Asking("/v1/completions", {**COMPLETION, **way}) for way in ({}, {"stream": True})),
    Asking("/v1/embeddings", {"model": "m", "input": "hi"}, [[0.5, 0.25]]),
]
WAITED_FOR = [asking for asking in ASKINGS if not asking.body.get("async")]

_UNLOGGED = re.compile(rb"event: (?:queued|progress)\ndata: [^\n]*\n\n")
_WAITING = re.compile(rb'data: [^\n]*"fairlane":\{"queuePosition"[^\n]*\n\n')


def promised(answer: httpx2.Response) -> tuple[int, bytes]:
    """Status and body, without what says only how this reader waited: keep-alives, and places in the queue."""
    return answer.status_code, promised_of(answer.content)


def promised_of(body: bytes) -> bytes:
    body = re.sub(rb"^: keepalive\n", b"", body, flags=re.MULTILINE)
    return _WAITING.sub(b"", _UNLOGGED.sub(b"", body))
