"""One choice of an answer, as every view shows it, and how a worker's result becomes choices."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from msgspec import Raw

from fairlane.streaming.jsontext import as_text, items, kind_of, members, string_or_none

NOT_EXTRA = frozenset({"index", "message", "delta", "text", "finish_reason"})
NOT_EXTRA_IN_MESSAGE = frozenset({"role", "content", "refusal", "reasoning_content", "tool_calls"})
THOUGHTS = "thinking_blocks"
"""The member of a chat message with thoughts as Anthropic sent them, which must come back unchanged."""

_STOP = b'"stop"'
_TOOL_CALLS = b'"tool_calls"'


@dataclass(slots=True)
class Choice:
    """`content`, `reasoning`, `refusal`, `finish` are JSON strings, `tool_calls` whole objects without index.

    `members` and `message` hold what else the choice and its message have: names to unparsed values.
    """

    index: int
    content: bytes | None = None
    reasoning: bytes | None = None
    refusal: bytes | None = None
    tool_calls: list[bytes] = field(default_factory=list)
    finish: bytes | None = None
    members: dict[str, bytes] = field(default_factory=dict)
    message: dict[str, bytes] = field(default_factory=dict)


def finish_of(calls_tools: bool) -> bytes:
    """The finish reason of a choice that has none."""
    return _TOOL_CALLS if calls_tools else _STOP


def has_choices(result: bytes | None) -> bool:
    """Whether the result has OpenAI's form: an object with a list of `choices`."""
    found = members(result)
    return found is not None and kind_of(found.get("choices")) == "["


def finish_of_result(result: bytes) -> str | None:
    """Why choice 0 of a result ended, if the result says so."""
    if b"finish" not in result and b"\\u" not in result:  # none of its names does
        return None
    found = members(result) or {}
    for raw in (items(found.get("choices")) or ())[:1]:
        found = members(raw) or {}
    reason = string_or_none(found.get("finish_reason")) or string_or_none(found.get("finishReason"))
    return None if reason is None else str(msgspec.json.decode(reason, type=str))


def what_came(result: bytes | None) -> str:
    """A result that does not suit, in a few words."""
    if result is None or not kind_of(result):
        return "nothing"
    found = members(result)
    if found is not None:
        names = [name[:40] for name in found][:5]
        return f"an object with the members {', '.join(names)}" if names else "an empty object"
    return {"[": "a list", '"': "a text", "t": "true", "f": "false"}.get(kind_of(result), "a number")


def choices_of_result(result: bytes) -> list[Choice]:
    """A worker's result as choices; never empty.

    1. An object with a list of `choices`: those, of a chat, a completion, or a native result.
    2. An object with a text as `content`, or with none but with tool calls: one message.
    3. A text: the content of one message.
    4. Any other JSON: serialised into the content.
    """
    found = members(result)
    if found is not None:
        listed = items(found.get("choices"))
        if listed is not None:
            return [_listed_choice(place, raw) for place, raw in enumerate(listed)] or [Choice(0)]
        if string_or_none(found.get("content")) or (not kind_of(found.get("content")) and _calls(found)):
            return [_message_choice(0, found)]
    return [Choice(0, content=as_text(result))]


def _listed_choice(place: int, raw: bytes) -> Choice:
    found = members(raw)
    if found is None:
        return Choice(place, content=as_text(raw))
    index = _small_int(found.get("index"), place)
    message = members(found.get("message"))
    if message is None:
        choice = _message_choice(index, found)
        if choice.content is None and kind_of(found.get("text")):
            choice.content = as_text(found["text"])
    else:
        choice = _message_choice(index, message)
        choice.message = others(message, NOT_EXTRA_IN_MESSAGE)
        if choice.reasoning is not None:
            choice.message.pop("reasoning", None)
        choice.finish = string_or_none(found.get("finish_reason"))
    if message is not None or kind_of(found.get("text")):
        choice.members = others(found, NOT_EXTRA)
    return choice


def _message_choice(index: int, found: dict[str, Raw]) -> Choice:
    content = found.get("content")
    return Choice(
        index,
        content=as_text(content) if content is not None and kind_of(content) else None,
        reasoning=string_or_none(found.get("reasoning_content")) or string_or_none(found.get("reasoning")),
        refusal=string_or_none(found.get("refusal")),
        tool_calls=_calls(found),
        finish=string_or_none(found.get("finish_reason")) or string_or_none(found.get("finishReason")),
    )


def _calls(found: dict[str, Raw]) -> list[bytes]:
    calls = items(found.get("tool_calls")) or items(found.get("toolCalls")) or []
    return [call for call in calls if members(call)]


def thoughts_of(found: Mapping[str, bytes]) -> list[bytes]:
    """The thoughts as they must come back, among the members of a message or a delta."""
    return items(found.get(THOUGHTS)) or []


def others(found: Mapping[str, bytes], known: frozenset[str]) -> dict[str, bytes]:
    """The members that are not among `known` and not null."""
    return {name: bytes(value) for name, value in found.items() if name not in known and kind_of(value)}


def _small_int(raw: Raw | None, default: int) -> int:
    text = b"" if raw is None else bytes(raw)
    return int(text) if len(text) <= 4 and text.isdigit() else default
