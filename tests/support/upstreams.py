"""What providers say, as their documents have it: events and bodies made of the parts of an answer."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import httpx2


def sse(*events: Any, named: bool = False) -> bytes:
    """Server-sent events; with `named`, each under its type, as Anthropic sends them."""
    lines = []
    for event in events:
        head = f"event: {event['type']}\n" if named else ""
        lines.append(f"{head}data: {event if isinstance(event, str) else json.dumps(event)}\n\n")
    return "".join(lines).encode()


ANTHROPIC_USAGE = {
    "input_tokens": 10,
    "cache_creation_input_tokens": 3,
    "cache_read_input_tokens": 20,
    "output_tokens": 1,
}


def anthropic_message(content: list[Any], stop: str = "end_turn", **more: Any) -> dict[str, Any]:
    """A whole message."""
    usage = {**ANTHROPIC_USAGE, "output_tokens": 7}
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-real", "usage": usage}
    return {**head, "content": content, "stop_reason": stop, "stop_sequence": None, **more}


def anthropic_events(content: list[Any], stop: str = "end_turn", cut: int = 3) -> list[dict[str, Any]]:
    """The same message as a stream whose texts are cut into pieces of so many characters."""
    message = {**anthropic_message([]), "stop_reason": None, "usage": ANTHROPIC_USAGE}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}, {"type": "ping"}]
    for index, block in enumerate(content):
        kind = block["type"]
        empty = {
            "text": {"text": ""},
            "thinking": {"thinking": "", "signature": ""},
            "tool_use": {"input": {}},
        }
        events.append(
            {"type": "content_block_start", "index": index, "content_block": {**block, **empty.get(kind, {})}}
        )
        deltas: list[dict[str, Any]] = []
        if kind == "text":
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"], cut)]
        elif kind == "thinking":
            deltas = [
                {"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"], cut)
            ]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        elif kind == "tool_use" and block["input"]:
            parts = pieces(json.dumps(block["input"]), cut)
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ["", *parts]]
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": stop, "stop_sequence": None}
    events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 7}})
    return [*events, {"type": "message_stop"}]


def anthropic_error(kind: str, message: str = "no") -> dict[str, Any]:
    """What stands in a refusal, or in a stream that broke off."""
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


GEMINI_USAGE = {
    "promptTokenCount": 30,
    "cachedContentTokenCount": 20,
    "candidatesTokenCount": 4.0,
    "toolUsePromptTokenCount": "2",
    "thoughtsTokenCount": 5,
    "totalTokenCount": 41,
}


def gemini_content(parts: list[Any], finish: str | None = "STOP", **more: Any) -> dict[str, Any]:
    """A whole answer, or one chunk of a stream."""
    candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    known = {"usageMetadata": GEMINI_USAGE, "modelVersion": "gemini-real", "responseId": "resp-1"}
    return {"candidates": [candidate], **known, **more}


def gemini_chunks(parts: list[Any], cut: int = 3) -> list[dict[str, Any]]:
    """The same answer as a stream."""
    chunks = []
    for part in parts:
        texts = list(pieces(part["text"], cut)) if "text" in part else []
        chunks += [gemini_content([{**part, "text": piece}], finish=None) for piece in texts]
        if not texts:
            chunks.append(gemini_content([part], finish=None))
    return [*chunks, gemini_content([{"text": ""}])]


def pieces(text: str, cut: int) -> Iterable[str]:
    """The text in pieces of `cut` characters."""
    return [text[at : at + cut] for at in range(0, len(text), cut)]


class Script(httpx2.AsyncByteStream, httpx2.AsyncBaseTransport):
    """A transport whose answer is written by a coroutine; `closed` is set when the adapter lets go of it."""

    def __init__(self, write: Callable[[], AsyncIterator[bytes]]) -> None:
        self._write = write
        self.reading = asyncio.Event()
        self.closed = asyncio.Event()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"Content-Type": "text/event-stream"}, stream=self)

    def __aiter__(self) -> AsyncIterator[bytes]:
        self.reading.set()
        return self._write()

    async def aclose(self) -> None:
        self.closed.set()
