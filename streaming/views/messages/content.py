"""An answer as blocks of Anthropic's, and why it ended. Pure."""

from collections.abc import Mapping

import msgspec

from fairlane.streaming.jsontext import (
    EMPTY_STRING,
    NULL,
    is_object,
    json_string,
    kind_of,
    members,
    one_line,
    string_or_none,
)
from fairlane.streaming.views.choice import Choice, thoughts_of

STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
"""By finish reason; any other one is `end_turn`."""
OWN_REASONS = frozenset(
    {*STOP_REASONS.values(), "stop_sequence", "pause_turn", "model_context_window_exceeded"}
)
"""Anthropic's, which their upstream sends as its own word (`native_finish_reason`)."""
WHY = ("native_finish_reason", "stop_reason")
"""Members of a choice that say why it ended: Anthropic's own word, and the stop sequence that was met."""
_MAX_ID = 256


def own_id(told: bytes | None) -> bytes | None:
    """The upstream's id of the message, if it is one of Anthropic's."""
    found = string_or_none(told)
    return (
        one_line(found)
        if found is not None and found.startswith(b'"msg_') and len(found) <= _MAX_ID
        else None
    )


def why_ended(
    finish: bytes | None, told: Mapping[str, bytes], *, called: bool, refused: bool
) -> tuple[bytes, bytes]:
    """`stop_reason` and `stop_sequence`: as an upstream of Anthropic's said it, else by the finish reason. Calls of tools
    are the reason also if the server says `stop`."""
    sequence = string_or_none(told.get("stop_reason"))
    own = _said(told.get("native_finish_reason"))
    reason = own if own in OWN_REASONS else STOP_REASONS.get(_said(finish) or "stop", "end_turn")
    if reason == "end_turn":
        reason = "tool_use" if called else "refusal" if refused else "stop_sequence" if sequence else reason
    if reason != "stop_sequence":
        sequence = None
    return b'"%b"' % reason.encode(), NULL if sequence is None else one_line(sequence)


def _said(raw: bytes | None) -> str | None:
    found = string_or_none(raw)
    return None if found is None else str(msgspec.json.decode(found, type=str))


def blocks_of(choice: Choice) -> list[dict[str, bytes]]:
    """A choice as blocks, each member one line: thoughts, the text, calls."""
    blocks = _thoughts(choice)
    for text in (choice.content, choice.refusal):
        if text is not None and text != EMPTY_STRING:
            blocks.append({"type": b'"text"', "text": one_line(text)})
    for index, raw in enumerate(choice.tool_calls):
        call = members(raw) or {}
        function = members(call.get("function")) or {}
        blocks.append(
            {
                "type": b'"tool_use"',
                "id": one_line(string_or_none(call.get("id")) or b'"call_%d"' % index),
                "name": one_line(string_or_none(function.get("name")) or EMPTY_STRING),
                "input": _input(function.get("arguments")),
            }
        )
    return blocks


def _thoughts(choice: Choice) -> list[dict[str, bytes]]:
    """Signed as they came, if they are all that was thought."""
    told = [members(raw) or {} for raw in thoughts_of(choice.message)]
    blocks, texts = [], []
    for thought in told:
        data, signature = string_or_none(thought.get("data")), string_or_none(thought.get("signature"))
        text = string_or_none(thought.get("thinking")) or EMPTY_STRING
        if data is not None:
            blocks.append({"type": b'"redacted_thinking"', "data": one_line(data)})
        elif signature is not None:
            texts.append(_said(text) or "")
            blocks.append(
                {"type": b'"thinking"', "thinking": one_line(text), "signature": one_line(signature)}
            )
    reasoning = choice.reasoning
    if texts == [""] and reasoning is not None:  # its signature alone was sent
        return [
            {**block, "thinking": one_line(reasoning)} if "signature" in block else block for block in blocks
        ]
    if reasoning is None or reasoning == EMPTY_STRING or "".join(texts) == _said(reasoning):
        return blocks
    blocks = [block for block in blocks if "data" in block]
    return [{"type": b'"thinking"', "thinking": one_line(reasoning), "signature": EMPTY_STRING}, *blocks]


def _input(arguments: bytes | None) -> bytes:
    """The arguments of a call, which must be an object here: a text that is none becomes one with the member `arguments`."""
    if arguments is None or not kind_of(arguments):
        return b"{}"
    text = _said(arguments)
    raw = bytes(arguments) if text is None else text.strip().encode("utf-8", "replace")
    if not raw:
        return b"{}"
    if is_object(raw):
        return one_line(raw)
    return b'{"arguments":%b}' % json_string(raw.decode())
