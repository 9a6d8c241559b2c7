"""Whole chat completions of workers, read as an adapter reads them, in the normal form (PROTOCOL.md, Output). Pure."""

from typing import Any

import msgspec
from msgspec import Raw, Struct

from fairlane.streaming.jsontext import items, kind_of, members
from fairlane.streaming.tool_calls import whole_calls
from fairlane.workers.adapters.dialects.chat import Head
from fairlane.workers.adapters.dialects.chunks import OpenAIReader
from fairlane.workers.adapters.failures import CallTarget, UpstreamSaid, from_answer
from fairlane.workers.sdk import Result, Usage


class _Choice(Struct, gc=False):
    message: Raw = Raw()
    finish_reason: Raw = Raw()


class _Answer(Struct, gc=False):
    choices: list[_Choice] | dict[str, Any] | str | float | bool | None = None
    error: Raw = Raw()


_answer = msgspec.json.Decoder(_Answer).decode


def normal_answer(result: bytes, head: Head) -> bytes:
    """Return a chat completion in the normal form: as it came, or made of what it says. Return any other result as it is. Raise
    TaskError for one that is an error, or has no answer."""
    if not _is_openais(result):
        return result
    reader = OpenAIReader(head)
    try:
        output = reader.whole(result)
    except UpstreamSaid as error:
        raise from_answer(error.body, "application/json", None, CallTarget("", head.model)) from error
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return result
    if not reader.complete:
        raise from_answer(result, "application/json", None, CallTarget("", head.model))
    if reader.normal and b'"tool_calls"' not in result:
        return result
    value = next(bytes(item.value) for item in output if isinstance(item, Result))
    answer = members(value) or {}
    changed = value != result
    for usage in (item for item in output if isinstance(item, Usage) and "usage" not in answer):
        answer["usage"], changed = Raw(msgspec.json.encode(usage.details)), True
    choices = [members(raw) or {} for raw in items(answer["choices"]) or ()]
    for number, choice in enumerate(choices):
        message = members(choice["message"]) or {}
        if listed := message.get("tool_calls"):
            calls = Raw(b"[%b]" % b",".join(whole_calls(listed, head.task_id, number)))
            if msgspec.json.decode(calls) != msgspec.json.decode(listed):
                changed = True
                choice["message"] = Raw(msgspec.json.encode({**message, "tool_calls": calls}))
    return msgspec.json.encode({**answer, "choices": choices}) if changed else result


def _is_openais(result: bytes) -> bool:
    """Return whether a result has choices or an error as OpenAI's objects have them."""
    if b'"choices"' not in result and b'"error"' not in result:
        return False
    try:
        answer = _answer(result)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    if isinstance(answer.choices, list):
        return all(choice.message or choice.finish_reason for choice in answer.choices)
    return kind_of(answer.error) == "{"
