"""An answer as blocks of Anthropic's, and why it ended. Pure."""

from collections.abc import Mapping

import msgspec

from fairlane.streaming.jsontext import NULL, is_object, one_line, string_or_none

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
WHY = ("native_finish_reason", "stop_reason", "matched_stop")
"""Members of a choice that say why it ended: Anthropic's own word, and the stop sequence that was met, by
vLLM's name and by SGLang's."""
_MAX_ID = 256


def own_id(reported: bytes | None) -> bytes | None:
    """The upstream's id of the message, if it is one of Anthropic's."""
    found = string_or_none(reported)
    return (
        one_line(found)
        if found is not None and found.startswith(b'"msg_') and len(found) <= _MAX_ID
        else None
    )


def why_ended(
    finish: bytes | None, reported: Mapping[str, bytes], *, called: bool, refused: bool
) -> tuple[bytes, bytes]:
    """`stop_reason` and `stop_sequence`: as an upstream of Anthropic's said it, else by the finish reason. Calls of tools
    are the reason also if the server says `stop`."""
    sequence = string_or_none(reported.get("stop_reason")) or string_or_none(reported.get("matched_stop"))
    own = _said(reported.get("native_finish_reason"))
    reason = own if own in OWN_REASONS else STOP_REASONS.get(_said(finish) or "stop", "end_turn")
    if reason == "end_turn":
        reason = "tool_use" if called else "refusal" if refused else "stop_sequence" if sequence else reason
    if reason != "stop_sequence":
        sequence = None
    return b'"%b"' % reason.encode(), NULL if sequence is None else one_line(sequence)


def _said(raw: bytes | None) -> str | None:
    found = string_or_none(raw)
    return None if found is None else str(msgspec.json.decode(found, type=str))


def input_of(arguments: bytes) -> bytes:
    """The arguments of a call (a JSON string) as an object: a text that is none becomes one with the member `arguments`."""
    raw = (_said(arguments) or "").strip().encode()
    return one_line(raw) if is_object(raw) else b'{"arguments":%b}' % arguments if raw else b"{}"
