"""A choice of an OpenAI-compatible answer, as servers write it, in the normal form (PROTOCOL.md, Output). Pure."""

from collections.abc import Collection, Iterator
from typing import Any

from fairlane.workers.adapters.lenient import count, encoded
from fairlane.workers.protocol import Delta
from fairlane.workers.sdk.errors import TaskError
from fairlane.workers.sdk.values import Usage

MAX_CHOICES = 1024
MAX_USAGE = 16 * 1024
MAX_LEVELS = 8
"""Of lists within lists in a text that is made of parts."""
REASONS = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})
"""OpenAI's finish reasons."""
_FINISHES = {
    "length": "length max_tokens max_output_tokens max_length model_length model_context_window_exceeded",
    "tool_calls": "tool_call tool_calls tool_use function_call function_calls",
    "content_filter": "content_filter content_filtered safety sensitive refusal recitation language blocklist spii model_armor"
    " prohibited_content image_safety image_prohibited_content image_recitation image_other no_image",
    "": "insufficient_system_resource network_error abort aborted error malformed_function_call unexpected_tool_call"
    " too_many_tool_calls missing_thought_signature malformed_response other",
}
_NAMES = {native: name for name, natives in _FINISHES.items() for native in natives.split()}
"""Other vocabularies, in lower case; "" is a server that gave up (DeepSeek, GLM, SGLang, vLLM, Gemini). All others are `stop`."""
_REASONING = ("reasoning_content", "reasoning", "thinking", "reasoning_text")
"""Names of the same text: some servers send two of them."""
_THOUGHTS = frozenset(
    {"thinking", "reasoning", "reasoning_text", "reasoning.text", "reasoning.summary", "summary_text"}
)
_INSIDE = ("text", "thinking", "reasoning", "refusal", "summary", "content", "value")
"""Where a part has its text."""


def finish_of(reason: str, said: Collection[str]) -> str:
    """Return OpenAI's name of the finish reason of a choice, which has said these members of a message: `tool_calls` and `stop`
    by whether it has called tools. Raise `TaskError` for a reason that means a failure."""
    if reason == "function_call" and reason in said:
        return reason
    name = _NAMES.get(reason.lower(), "stop")
    if not name:
        raise TaskError("UPSTREAM_ERROR", f"The upstream stopped its answer: {reason}.", retryable=True)
    if name in ("stop", "tool_calls"):
        return "tool_calls" if "tool_calls" in said else "stop"
    return name


def read_message(delta: Delta, members: Any, *, legacy: bool, is_whole: bool = False) -> dict[str, Any]:
    """Fill in what a delta or a message says. Return its `tool_calls` and its unknown members. `legacy`: its client
    asked for a `function_call`. `is_whole`: it is a message, each of whose calls is another one."""
    if type(members) is not dict:
        raise ValueError("a delta or a message is not an object")
    unknown: dict[str, Any] = {}
    reasoning = ""
    for name, value in members.items():
        if value is None or value == "" or value == [] or name == "role":
            continue
        if name == "content":
            if type(value) is str:
                delta.content = value
            else:
                texts: dict[str, list[str]] = {"content": [], "reasoning": [], "refusal": []}
                for kind, text in _texts(value, "content"):
                    texts[kind].append(text)
                delta.content = "".join(texts["content"]) or None
                delta.refusal = delta.refusal or "".join(texts["refusal"]) or None
                reasoning = "".join(texts["reasoning"])
        elif name in _REASONING:
            delta.reasoning = delta.reasoning or _text(value) or None
        elif name == "refusal":
            delta.refusal = _text(value) or None
        elif name == "tool_calls":
            unknown[name] = _calls(value, is_whole=is_whole)
        elif name == "function_call" and not legacy:
            unknown["tool_calls"] = [_call({"index": 0, "type": "function", "function": value})]
        else:
            if name == "reasoning_details":  # they go back to the server as they came
                reasoning = reasoning or _text(value)
            unknown[name] = value
    delta.reasoning = delta.reasoning or reasoning or None
    return unknown


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "".join(text for _, text in _texts(value, "content"))


def _texts(value: Any, kind: str, level: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the texts of a content that is made of parts, each with its kind. Unknown parts have none; an object that is not a
    part (structured output of some servers) is its JSON."""
    if isinstance(value, str):
        yield kind, value
    elif isinstance(value, list) and level < MAX_LEVELS:
        for part in value:
            yield from _texts(part, kind, level + 1)
    elif isinstance(value, dict) and level < MAX_LEVELS:
        type_ = value.get("type") if isinstance(value.get("type"), str) else None
        inside = next((value[name] for name in _INSIDE if value.get(name)), None)
        if type_ in _THOUGHTS:
            kind = "reasoning"
        elif type_ == "refusal":
            kind = "refusal"
        elif type_ not in (None, "text", "output_text", "summary"):
            return
        elif type_ is None and inside is None:
            inside = bytes(encoded(value)).decode()
        yield from _texts(inside, kind, level + 1)
    elif isinstance(value, int | float):
        yield kind, bytes(encoded(value)).decode()


def _calls(value: Any, *, is_whole: bool) -> list[dict[str, Any]]:
    """Return tool calls whose arguments are texts. Raise ValueError for what is no call."""
    listed = value if isinstance(value, list) else [value]
    if len(listed) > MAX_CHOICES:
        raise ValueError(f"tool_calls has more than {MAX_CHOICES} items")
    calls = [_call(call) for call in listed]
    return [{**call, "index": at} for at, call in enumerate(calls)] if is_whole else calls


def _call(call: Any) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise ValueError("a tool call that is not an object")
    function = call.get("function")
    if not isinstance(function, dict):
        function = {name: call[name] for name in ("name", "arguments") if name in call}
        others = {name: value for name, value in call.items() if name not in ("function", *function)}
        if not function:
            return others
        call = others
    arguments = function.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        function = {**function, "arguments": bytes(encoded(arguments)).decode()}
    return {**call, "function": function}


def usage_of(members: Any) -> Usage | None:
    """Return an upstream's `usage` by OpenAI's names, its own further members with it; None where it says nothing or too much."""
    if not isinstance(members, dict) or not members or len(bytes(encoded(members))) > MAX_USAGE:
        return None
    details = dict(members)
    prompt = _count(details, "prompt_tokens", "input_tokens")
    completion = _count(details, "completion_tokens", "output_tokens")
    cached = _count(details, "cached_tokens", "prompt_cache_hit_tokens")
    if prompt is not None and completion is not None:
        details |= {"prompt_tokens": prompt, "completion_tokens": completion}
        details["total_tokens"] = _count(details, "total_tokens") or prompt + completion
    if cached is not None and not details.get("prompt_tokens_details"):
        details["prompt_tokens_details"] = {"cached_tokens": cached}
    return Usage(prompt, completion, details)


def _count(members: dict[str, Any], *names: str) -> int | None:
    """Return a count by one of its names."""
    for name in names:
        if name in members and (found := count(members[name])) is not None:
            return found
    return None
