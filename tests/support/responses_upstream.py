"""A server that speaks OpenAI's Responses and keeps nothing, as strict as OpenAI is then; and the events of any answer."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from tests.support.upstream import listening

SEAL = "gAAAAA-sealed-"
"""What thoughts are sealed with here: others cannot be read."""
USAGE = {
    "input_tokens": 11,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 3},
    "total_tokens": 18,
}
_KNOWN = {
    *("model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "text", "reasoning"),
    *("include", "truncation", "max_output_tokens", "temperature", "top_p", "stream", "store", "user"),
    "prompt_cache_key",
}


def thought(text: str = "", seal: str = "1", number: int = 0) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": part} for part in text.split("|") if part]
    return {"id": f"rs_u{number}", "type": "reasoning", "summary": summary, "encrypted_content": SEAL + seal}


def message(*texts: str, number: int = 0, annotations: Any = (), **more: Any) -> dict[str, Any]:
    content = [
        {"type": "output_text", "text": text, "annotations": list(annotations), "logprobs": []}
        for text in texts
    ]
    return {
        "id": f"msg_u{number}",
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": content,
        **more,
    }


def refusal(text: str) -> dict[str, Any]:
    return {**message(), "content": [{"type": "refusal", "refusal": text}]}


def call(name: str, arguments: str, call_id: str = "call_1", number: int = 0) -> dict[str, Any]:
    head = {"id": f"fc_u{number}", "type": "function_call", "status": "completed"}
    return {**head, "call_id": call_id, "name": name, "arguments": arguments}


def response(items: list[Any], status: str = "completed", **more: Any) -> dict[str, Any]:
    """A whole response, as an upstream has it."""
    made = {"id": "resp_u", "object": "response", "created_at": 1, "status": status, "model": "theirs"}
    return {**made, "error": None, "incomplete_details": None, "output": items, "usage": USAGE, **more}


def transcript(items: list[Any], status: str = "completed", cut: int = 3, **more: Any) -> list[Any]:
    """The events of the same as a stream, its texts in pieces of `cut` characters."""
    told: list[Any] = []

    def tell(kind: str, **pairs: Any) -> None:
        told.append({"type": f"response.{kind}", "sequence_number": len(told), **pairs})

    bare = response([], "in_progress", usage=None)
    tell("created", response=bare)
    tell("in_progress", response=bare)
    for at, item in enumerate(items):
        told_item = {"output_index": at, "item_id": item["id"]}
        empty = {name: [] if isinstance(value, list) else value for name, value in item.items()}
        tell(
            "output_item.added",
            output_index=at,
            item=empty | ({"arguments": ""} if "arguments" in item else {}),
        )
        if item["type"] == "message":
            for index, part in enumerate(item["content"]):
                place = {**told_item, "content_index": index}
                tell("content_part.added", **place, part={**part, "annotations": []})
                kind = "refusal" if part["type"] == "refusal" else "output_text"
                word = "refusal" if kind == "refusal" else "text"
                for piece in _pieces(part[word], cut):
                    tell(f"{kind}.delta", **place, delta=piece, logprobs=[])
                tell(f"{kind}.done", **place, **{word: part[word]})
                tell("content_part.done", **place, part=part)
        elif item["type"] == "reasoning":
            for index, part in enumerate(item["summary"]):
                place = {**told_item, "summary_index": index}
                for piece in _pieces(part["text"], cut):
                    tell("reasoning_summary_text.delta", **place, delta=piece)
                tell("reasoning_summary_text.done", **place, text=part["text"])
        elif item["type"] == "function_call":
            for piece in _pieces(item["arguments"], cut):
                tell("function_call_arguments.delta", **told_item, delta=piece)
            tell("function_call_arguments.done", **told_item, arguments=item["arguments"])
        else:
            tell(f"{item['type']}.searching", **told_item)
        tell("output_item.done", output_index=at, item=item)
    tell(status, response=response(items, status, **more))
    return told


def _pieces(text: str, cut: int) -> list[str]:
    return [text[at : at + cut] for at in range(0, len(text), cut)]


class ResponsesUpstream:
    """What it was asked, and what it answers: `answers` in turns, a list of items each; then always a message."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.answers: list[list[Any]] = []
        self.missing = False
        """It has no /responses."""
        self.cut_after: int | None = None
        """A stream ends behind so many events."""
        self.strange: list[Any] = []
        """Events that stand behind the first one."""
        self.failing: dict[str, Any] | None = None
        """The error with which a stream fails behind its first text."""
        self.goes_on = asyncio.Event()
        """The end of a stream waits for this."""
        self.goes_on.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (part := await receive())["type"] == "http.request":
            body += part["body"]
            if not part.get("more_body"):
                break
        self.paths.append(scope["path"])
        if scope["path"].endswith("/models"):
            await _whole(send, 200, {"object": "list", "data": []})
            return
        if self.missing or not scope["path"].endswith("/responses"):
            await _whole(send, 404, {"detail": "Not Found"})
            return
        asked = json.loads(body)
        self.asked.append(asked)
        if wrong := _wrong(asked):
            error = {"message": wrong, "type": "invalid_request_error", "param": "input", "code": None}
            await _whole(send, 400, {"error": error})
            return
        items = self.answers.pop(0) if self.answers else [thought("Hm"), message("Hello there")]
        if not asked["stream"]:
            await _whole(send, 200, response(items))
            return
        events = transcript(items)
        events[1:1] = self.strange
        if self.failing is not None:
            first = next(at for at, event in enumerate(events) if event["type"].endswith("text.delta"))
            failed = {"type": "response.failed", "response": response([], "failed", error=self.failing)}
            events[first + 1 :] = [failed]
        await send(_head(200, b"text/event-stream"))
        for event in events[: self.cut_after]:
            if event is events[-1]:
                await self.goes_on.wait()
            data = f"event: {event.get('type')}\ndata: {json.dumps(event)}\n\n".encode()
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _wrong(asked: dict[str, Any]) -> str:
    """What OpenAI would refuse of a request that keeps nothing."""
    if asked.get("store") is not False:
        return "store must be false here"
    if unknown := asked.keys() - _KNOWN:
        return f"Unknown parameter: {sorted(unknown)}"
    for item in asked["input"] if isinstance(asked["input"], list) else []:
        if item.get("id") or item.get("type") == "item_reference":
            return f"Item with id '{item.get('id')}' not found. Items are not persisted when `store` is set to false."
        if item.get("type") == "reasoning" and not str(item.get("encrypted_content")).startswith(SEAL):
            return "The encrypted content could not be verified."
    return ""


def _head(status: int, content_type: bytes) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": [(b"content-type", content_type)]}


async def _whole(send: Any, status: int, body: Any) -> None:
    await send(_head(status, b"application/json"))
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


@contextlib.asynccontextmanager
async def responses_upstream() -> AsyncIterator[ResponsesUpstream]:
    """One that listens on a free port."""
    app = ResponsesUpstream()
    async with listening(app) as app.url:
        yield app
