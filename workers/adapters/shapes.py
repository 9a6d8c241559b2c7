"""OpenAI's answer objects, and the members of a payload that they depend on. Shared by the adapters that invent answers."""

import base64
import hashlib
import math
import struct
import time
from typing import Any

from fairlane.workers.sdk import Task, Usage

EMBEDDING_SIZE = 8


def prompt_of(payload: Any) -> str | None:
    """The text that a payload asks about: its last user message, else its last message, or its prompt.

    None when it is none of OpenAI's shapes; an empty text when there are no messages.
    """
    if not isinstance(payload, dict):
        return None
    messages = payload.get("messages")
    if isinstance(messages, list):
        known = [m for m in messages if isinstance(m, dict)]
        users = [m for m in known if m.get("role") == "user"]
        chosen = users or known
        return _text(chosen[-1].get("content")) if chosen else ""
    prompt = payload.get("prompt")
    if isinstance(prompt, list):
        prompt = prompt[0] if prompt else ""
    if isinstance(prompt, str):
        return prompt
    return None if prompt is None else str(prompt)


def max_tokens_of(payload: Any) -> int | None:
    """The payload's bound on output tokens, if it has one."""
    if not isinstance(payload, dict):
        return None
    for name in ("max_completion_tokens", "max_tokens"):
        value = payload.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None


def completion(task: Task, text: str, finish_reason: str, usage: Usage) -> dict[str, Any]:
    """A `chat.completion`, or a `text_completion` for tasks of that type."""
    if task.type == "openaiCompletion":
        choice: dict[str, Any] = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
        return _answer(task, "cmpl", "text_completion", [choice], usage)
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
    return _answer(task, "chatcmpl", "chat.completion", [choice], usage)


def embeddings(task: Task) -> dict[str, Any]:
    """A list of small vectors, one per input; the same text always gives the same one."""
    payload = task.payload if isinstance(task.payload, dict) else {}
    inputs = payload.get("input", "")
    if not isinstance(inputs, list) or all(isinstance(item, int) for item in inputs):
        inputs = [inputs]
    as_base64 = payload.get("encoding_format") == "base64"
    data = [
        {"object": "embedding", "index": index, "embedding": _encode(_vector(str(item)), as_base64)}
        for index, item in enumerate(inputs)
    ]
    tokens = sum(len(str(item).split()) for item in inputs)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": task.model, "usage": usage}


def usage_for(prompt: str, output_tokens: int) -> Usage:
    """Usage where each word is a token."""
    return Usage(input_tokens=len(prompt.split()), output_tokens=output_tokens)


def _answer(
    task: Task, prefix: str, kind: str, choices: list[dict[str, Any]], usage: Usage
) -> dict[str, Any]:
    inputs, outputs = usage.input_tokens or 0, usage.output_tokens or 0
    return {
        "id": f"{prefix}-{task.task_id}",
        "object": kind,
        "created": int(time.time()),
        "model": task.model,
        "choices": choices,
        "usage": {"prompt_tokens": inputs, "completion_tokens": outputs, "total_tokens": inputs + outputs},
    }


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return ""


def _vector(text: str) -> list[float]:
    digest = hashlib.sha256(text.encode(errors="replace")).digest()
    numbers = [int.from_bytes(digest[4 * i : 4 * i + 4], "big") / 2**31 - 1 for i in range(EMBEDDING_SIZE)]
    length = math.sqrt(sum(number * number for number in numbers)) or 1.0
    return [number / length for number in numbers]


def _encode(vector: list[float], as_base64: bool) -> list[float] | str:
    if not as_base64:
        return vector
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
