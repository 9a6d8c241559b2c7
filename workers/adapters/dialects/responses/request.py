"""A request of OpenAI's Responses, as it goes to an upstream that has them. Pure. What goes out is told in docs/providers.md.

It goes out as it came, but for `model`, `stream` (as the task says) and `store`: the upstream keeps nothing, as Fairlane does, and
so nobody can read there what somebody else's request left. What a model thought comes back sealed instead (`include`), where the
model thinks. Whatever would spend more of the operator's money than tokens, or reach what their account holds (tools that the
upstream runs, files, stored prompts, conversations and responses), is refused unless the operator allows it by its name.
"""

import re
from collections.abc import Collection
from typing import Any

import msgspec
from msgspec import Raw, Struct

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
SEALED = "reasoning.encrypted_content"
FILE_ID = "file_id"
_NOTHING = (b"null", b"false")
_THINKER = re.compile(r"(?:.*/)?(?:o\d|gpt-5(?!-chat)|gpt-[6-9]|codex|computer-use)", re.IGNORECASE)
"""OpenAI's models that think; others refuse to be asked for sealed thoughts."""


class _Tool(Struct):
    type: str = ""


class _Part(Struct):
    file_id: Raw = Raw(b"null")


class _Item(Struct):
    type: str | None = None
    content: Raw = Raw(b"null")
    output: Raw = Raw(b"null")


_tools = msgspec.json.Decoder(list[_Tool])
_items, _raws = msgspec.json.Decoder(list[_Item]), msgspec.json.Decoder(list[Raw])
_part, _names = msgspec.json.Decoder(_Part), msgspec.json.Decoder(list[str])


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
    if "tools" in said:
        _check_tools(said["tools"], allowed)
    if "input" in said:
        _check_input(said["input"], allowed)
    body: dict[str, Any] = {**said, "model": model, "store": False, "stream": stream}
    if _thinks(said, model):
        included = _names.decode(said["include"]) if "include" in said else []
        body["include"] = list(dict.fromkeys([*included, SEALED]))
    return body


def _thinks(said: dict[str, Raw], model: str) -> bool:
    asks = said.get("reasoning")
    return _THINKER.match(model) is not None or (asks is not None and bytes(asks).strip() != b"{}")


def _check_tools(raw: Raw, allowed: Collection[str]) -> None:
    if bytes(raw).count(b"{") > MOST_OBJECTS:
        raise refused(f"tools: they have more than {MOST_OBJECTS} objects")
    for number, tool in enumerate(_tools.decode(raw)):
        if tool.type not in OF_CALLERS and f"tools.{tool.type}" not in allowed:
            raise refused(
                f"tools[{number}].type: {tool.type[:100]!r} is run by the upstream, at its operator's cost, and not allowed here"
            )


def _check_input(raw: Raw, allowed: Collection[str]) -> None:
    """Refuse files of the upstream's account, and items that it would have had to keep."""
    if bytes(raw).lstrip()[:1] != b"[":
        return
    if bytes(raw).count(b"{") > MOST_OBJECTS:
        raise refused(f"input: it has more than {MOST_OBJECTS} objects")
    parts = 0
    for number, item in enumerate(_items.decode(raw)):
        if item.type == "item_reference":
            raise refused(f"input[{number}]: the upstream keeps no items; send the item itself")
        for name, content in (("content", item.content), ("output", item.output)):
            listed = _parts_of(content)
            parts += 1 + len(listed)
            if parts > MOST_PARTS:
                raise refused(f"input: it has more than {MOST_PARTS} items and parts")
            if FILE_ID not in allowed and any(_names_file(part) for part in listed):
                raise refused(
                    f"input[{number}].{name}: {FILE_ID} would be a file of the upstream's account; send the file itself"
                )


def _parts_of(content: Raw) -> list[Raw]:
    """The parts of an item's content or output: of a list its items, an object by itself."""
    kind = bytes(content[:64] if isinstance(content, bytes) else bytes(content)[:64]).lstrip()[:1]
    return _raws.decode(content) if kind == b"[" else [content] if kind == b"{" else []


def _names_file(part: Raw) -> bool:
    return b"file_id" in bytes(part) and bytes(part).lstrip()[:1] == b"{" and not is_null(_part.decode(part).file_id)
