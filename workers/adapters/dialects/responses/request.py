"""A request of OpenAI's Responses, as it goes to an upstream that has them. Pure. What goes out is told in docs/providers.md.

It goes out as it came, but for `model`, `stream` (as the task says) and `store`: the upstream keeps nothing, as Fairlane does
that, and so nobody can reach there what somebody else's request left. What a model thought comes back sealed instead (`include`),
where the model thinks. Whatever would spend more of the operator's money than tokens, or reach what their account holds (tools
that the upstream runs, files, stored prompts, conversations and responses), is refused unless the operator allows it by its name.
What was looked at goes out with each name once: no server reads another one.
"""

import re
from collections.abc import Collection
from typing import Any

import msgspec
from msgspec import Raw

from fairlane.workers.adapters.chunks import is_null
from fairlane.workers.adapters.dialects.chat import MOST_OBJECTS, MOST_PARTS, refused

PASSED = frozenset(
    {
        *("input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "max_tool_calls"),
        *("text", "reasoning", "include", "truncation", "max_output_tokens", "temperature", "top_p"),
        *("presence_penalty", "frequency_penalty", "top_logprobs"),
        *("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier"),
    }
)
"""Members that every caller may send."""
UNSAID = frozenset({"model", "stream", "stream_options", "store", "metadata"})
"""Those that are said otherwise, or are the gateway's matter."""
OF_CALLERS = frozenset(
    {"function", "custom", "local_shell", "apply_patch", "computer", "computer_use_preview"}
)
"""Tools that the caller runs; all others the upstream does."""
ITEMS = frozenset(
    {
        *("message", "reasoning", "compaction", "web_search_call"),
        *("function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"),
        *("local_shell_call", "local_shell_call_output", "apply_patch_call", "apply_patch_call_output"),
        *("computer_call", "computer_call_output"),
    }
)
"""Items of an input that every caller may send: of others some bring tools with them."""
SEALED = "reasoning.encrypted_content"
FILE_ID = "file_id"
_LOOKED_AT = frozenset({"type", FILE_ID, "content", "output"})
_NOTHING = (b"null", b"false")
_THINKER = re.compile(r"(?:.*/)?(?:o\d|gpt-5(?!-chat)|gpt-[6-9]|codex|computer-use)", re.IGNORECASE)
"""OpenAI's models that think; others refuse to be asked for sealed thoughts."""


_Members = dict[str, Raw]
_objects, _raws = msgspec.json.Decoder(list[_Members]), msgspec.json.Decoder(list[Raw])
_object, _names = msgspec.json.Decoder(_Members), msgspec.json.Decoder(list[str])
_type = msgspec.json.Decoder(str | None)


def responses_request(
    members: dict[str, Raw], model: str, *, stream: bool, allowed: Collection[str]
) -> dict[str, Any]:
    """The body of `/responses`. Raises `TaskError` for what callers may not ask for, `ValueError` for what cannot be read."""
    said = {name: raw for name, raw in members.items() if not is_null(raw) and name not in UNSAID}
    for name, raw in list(said.items()):
        if name not in PASSED and name not in allowed:
            if bytes(raw).strip() not in _NOTHING:
                raise refused(f"{name}: this worker does not pass it on from callers; leave it out")
            del said[name]
    body: dict[str, Any] = {**said, "model": model, "store": False, "stream": stream}
    if "tools" in said:
        body["tools"] = _tools(said["tools"], allowed)
    if "input" in said:
        body["input"] = _input(said["input"], allowed)
    if _thinks(said, model):
        included = _names.decode(said["include"]) if "include" in said else []
        body["include"] = list(dict.fromkeys([*included, SEALED]))
    return body


def _thinks(said: dict[str, Raw], model: str) -> bool:
    asks = said.get("reasoning")
    return _THINKER.match(model) is not None or (asks is not None and bytes(asks).strip() != b"{}")


def _tools(raw: Raw, allowed: Collection[str]) -> list[_Members]:
    _check_size(raw, "tools")
    tools = _objects.decode(raw)
    for number, tool in enumerate(tools):
        kind = _type_of(tool, f"tools[{number}]") or ""
        if kind not in OF_CALLERS and f"tools.{kind}" not in allowed:
            raise refused(
                f"tools[{number}].type: {kind[:100]!r} is run by the upstream, at its operator's cost, and not allowed here"
            )
    return tools


def _input(raw: Raw, allowed: Collection[str]) -> Any:
    """The input, without files of the upstream's account, and without items that stand for something else."""
    if bytes(raw).lstrip()[:1] != b"[":
        return raw
    _check_size(raw, "input")
    items: list[dict[str, Any]] = [*_objects.decode(raw)]
    parts = len(items)
    for number, item in enumerate(items):
        place = f"input[{number}]"
        kind = _type_of(item, place) or ("message" if "role" in item else "item_reference")
        if kind not in ITEMS and f"input.{kind}" not in allowed:
            raise refused(f"{place}.type: {kind[:100]!r} is not passed on by this worker")
        for name in ("content", "output"):
            if name in item:
                item[name], count = _parts(item[name], f"{place}.{name}", allowed)
                parts += count
    if parts > MOST_PARTS:
        raise refused(f"input: it has more than {MOST_PARTS} items and parts")
    return items


def _parts(raw: Raw, place: str, allowed: Collection[str]) -> tuple[Any, int]:
    """The parts of an item's content or output, of a list or one by itself, and how many there are."""
    kind = bytes(raw).lstrip()[:1]
    if kind == b"{":
        return _part(raw, place, allowed), 1
    if kind != b"[":
        return raw, 1
    listed = [
        _part(part, place, allowed) if bytes(part).lstrip()[:1] == b"{" else part
        for part in _raws.decode(raw)
    ]
    return listed, len(listed)


def _part(raw: Raw, place: str, allowed: Collection[str]) -> _Members:
    part = _object.decode(raw)
    _exact(part, place)
    if FILE_ID not in allowed and not is_null(part.get(FILE_ID, Raw(b"null"))):
        raise refused(
            f"{place}: {FILE_ID} would be a file of the upstream's account; name one of POST /v1/files, or send the file itself"
        )
    return part


def _type_of(found: _Members, place: str) -> str | None:
    _exact(found, place)
    return _type.decode(found["type"]) if "type" in found else None


def _exact(found: _Members, place: str) -> None:
    """Refuse other spellings of what was looked at: some servers take a name in any case."""
    for name in found:
        if name not in _LOOKED_AT and name.casefold() in _LOOKED_AT:
            raise refused(f"{place}: {name!r} must be written {name.casefold()!r}")


def _check_size(raw: Raw, name: str) -> None:
    if bytes(raw).count(b"{") > MOST_OBJECTS:
        raise refused(f"{name}: it has more than {MOST_OBJECTS} objects")
