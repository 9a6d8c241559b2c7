"""Whole chat completions of workers, read as an adapter reads them, in the normal form (PROTOCOL.md, Output). Pure."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from fairlane.streaming.jsontext import items, members
from fairlane.streaming.tool_calls import whole_calls
from fairlane.workers.adapters.dialects.chat import Head
from fairlane.workers.adapters.dialects.chunks import OpenAIReader
from fairlane.workers.adapters.failures import UpstreamSaid
from fairlane.workers.sdk import Result, TaskError, Usage

_Said = Annotated[str, Meta(min_length=1)]


class _Function(Struct, gc=False):
    name: _Said
    arguments: str


class _Call(Struct, gc=False):
    id: _Said
    type: _Said
    function: _Function


class _Message(Struct, gc=False):
    content: str | None = None
    tool_calls: list[_Call] | None = None
    reasoning: None = None


class _Choice(Struct, gc=False):
    message: _Message
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter", "function_call"]
    usage: None = None

    @property
    def calls(self) -> list[_Call]:
        return self.message.tool_calls or []


class _Completion(Struct, gc=False):
    choices: Annotated[list[_Choice], Meta(min_length=1)]
    x_groq: None = None


_completion = msgspec.json.Decoder(_Completion).decode


def normal_answer(result: bytes, head: Head) -> bytes:
    """Return a chat completion in the normal form: as it came, or made of what it says. Return any other result as it is."""
    if b'"choices"' not in result or _is_normal(result):
        return result
    try:
        output = OpenAIReader(head).whole(result)
    except (UpstreamSaid, TaskError, msgspec.MsgspecError, ValueError, RecursionError):
        return result
    answer = next((members(bytes(item.value)) for item in output if isinstance(item, Result)), None)
    if answer is None:
        return result
    for usage in (item for item in output if isinstance(item, Usage) and "usage" not in answer):
        answer["usage"] = Raw(msgspec.json.encode(usage.details))
    choices = [members(raw) or {} for raw in items(answer["choices"]) or ()]
    for number, choice in enumerate(choices):
        message = members(choice["message"]) or {}
        if "tool_calls" in message:
            calls = b",".join(whole_calls(message["tool_calls"], head.task_id, number))
            choice["message"] = Raw(msgspec.json.encode({**message, "tool_calls": Raw(b"[%b]" % calls)}))
    return msgspec.json.encode({**answer, "choices": choices})


def _is_normal(result: bytes) -> bool:
    try:
        choices = _completion(result).choices
    except msgspec.MsgspecError:
        return False
    ids = [call.id for choice in choices for call in choice.calls]
    reasons = all(choice.finish_reason != ("stop" if choice.calls else "tool_calls") for choice in choices)
    return reasons and len(ids) == len(set(ids))
