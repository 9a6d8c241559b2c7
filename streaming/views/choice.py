"""One choice of an answer, as every view shows it, and how a worker's result becomes choices."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
from msgspec import Raw

from fairlane.streaming.jsontext import (
    EMPTY_STRING,
    as_text,
    items,
    join_object,
    kind_of,
    members,
    string_or_none,
)
from fairlane.streaming.tool_calls import read_pieces, whole_calls

NOT_EXTRA = frozenset({"index", "message", "delta", "text", "finish_reason"})
NOT_EXTRA_IN_MESSAGE = frozenset(
    {"role", "content", "refusal", "reasoning_content", "reasoning", "tool_calls"}
)
_NOT_ABOUT = frozenset({"object", "created", "model", "choices", "usage"})
"""Members of an answer as a whole that are not what an upstream says of it."""
THOUGHTS = "thinking_blocks"
"""The member of a chat message with thoughts as Anthropic sent them, which must come back unchanged."""

_string = msgspec.json.Decoder(str).decode


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


def choices_of_result(result: bytes, task_id: str) -> list[Choice]:
    """A worker's result as choices; never empty.

    1. An object with a list of `choices`: those, of a chat, a completion, or a native result. Members of the answer as a whole
       are the member `response` of the first.
    2. An object with a text as `content`, or with none but with tool calls: one message.
    3. A text: the content of one message.
    4. Any other JSON: serialised into the content.
    """
    found = members(result)
    if found is not None:
        listed = items(found.get("choices"))
        if listed is not None:
            choices = [_choice(place, members(raw) or {}, task_id) for place, raw in enumerate(listed)] or [
                Choice(0)
            ]
            if about := others(found, _NOT_ABOUT):
                choices[0].members["response"] = join_object(about.items())
            return choices
        choice = _choice(0, found, task_id)
        if string_or_none(found.get("content")) or (not kind_of(found.get("content")) and choice.tool_calls):
            return [choice]
    return [Choice(0, content=as_text(result))]


def _choice(place: int, found: dict[str, Raw], task_id: str) -> Choice:
    index = _small_int(found.get("index"), place)
    message = members(found.get("message"))
    said = found if message is None else message
    choice = Choice(
        index,
        content=_said(said.get("content")) or _said(found.get("text")),
        reasoning=_said(said.get("reasoning_content")) or _said(said.get("reasoning")),
        refusal=_said(said.get("refusal")),
        tool_calls=whole_calls(said.get("tool_calls") or said.get("toolCalls"), task_id, index),
        finish=_said(found.get("finish_reason")) or _said(found.get("finishReason")),
    )
    if message is not None:
        choice.message = others(message, NOT_EXTRA_IN_MESSAGE)
    if message is not None or kind_of(found.get("text")):
        choice.members = others(found, NOT_EXTRA)
    return choice


def _said(raw: Raw | None) -> bytes | None:
    text = string_or_none(raw)
    return None if text == EMPTY_STRING else text


def said_bytes(choice: Choice) -> int:
    """How long a choice's texts are in UTF-8, and the names and arguments of its calls."""
    texts = [text for text in (choice.content, choice.reasoning, choice.refusal) if text is not None]
    size = 0
    for piece in read_pieces(b"[%b]" % b",".join(_with_index(choice.tool_calls))):
        texts.append(bytes(piece.function.arguments))
        size += len(bytes(piece.function.name)) - 2
    return size + sum(len(_string(text).encode()) for text in texts)


def pieces(choice: Choice, *, thought: bool) -> Iterator[tuple[str, bytes]]:
    """A whole choice as the chunks (kind and delta) that would have said it, without its finish reason; `thought`: without its
    reasoning, which was said."""
    rest, more = dict(choice.members), dict(choice.message)
    if about := rest.pop("response", None):
        yield "extra", join_object([("response", about)])
    thoughts = items(more.pop(THOUGHTS, None)) or []
    if thought:
        yield from map(_signed, thoughts)
    else:
        yield from _reasoning(choice.reasoning, thoughts)
    if rest:
        yield "extra", join_object(rest.items())
    if choice.content is not None:
        yield "text", choice.content
    if choice.refusal is not None:
        yield "refusal", choice.refusal
    if choice.tool_calls:
        yield "tool", b"[%b]" % b",".join(_with_index(choice.tool_calls))
    if more:
        yield "extra", join_object([("delta", join_object(more.items()))])


def _with_index(calls: list[bytes]) -> Iterator[bytes]:
    """Whole calls as call deltas."""
    return (b'{"index":%d,%b' % (index, call[1:]) for index, call in enumerate(calls))


def _reasoning(reasoning: bytes | None, thoughts: list[bytes]) -> Iterator[tuple[str, bytes]]:
    """Reasoning, and the thoughts that must come back: each behind its text, if their texts are all of it."""
    texts = [string_or_none((members(raw) or {}).get("thinking")) or EMPTY_STRING for raw in thoughts]
    if reasoning is None or "".join(map(_string, texts)) == _string(reasoning):
        for raw, text in zip(thoughts, texts, strict=True):
            if text != EMPTY_STRING:
                yield "reasoning", text
            yield _signed(raw)
        return
    yield "reasoning", reasoning
    yield from (_signed(raw) for raw, text in zip(thoughts, texts, strict=True) if text == EMPTY_STRING)


def _signed(thought: bytes) -> tuple[str, bytes]:
    return "extra", b'{"delta":{"%b":[%b]}}' % (THOUGHTS.encode(), thought)


def others(found: Mapping[str, bytes], known: frozenset[str]) -> dict[str, bytes]:
    """The members that are not among `known` and not null."""
    return {name: bytes(value) for name, value in found.items() if name not in known and kind_of(value)}


def _small_int(raw: Raw | None, default: int) -> int:
    text = b"" if raw is None else bytes(raw)
    return int(text) if len(text) <= 4 and text.isdigit() else default
