"""Reduces a Messages or Responses request to plain chat, as strict servers reject other members. Pure."""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Raw

Message = dict[str, Raw]

_NOT_HERE = ("cache_control", "thinking_blocks", "is_error")
_ERROR = "Error: "
_BETWEEN = "\n\n"
_USER = Raw(b'"user"')
_TOOL = b'"tool"'
_NULL = Raw(b"null")
_messages = msgspec.json.Decoder(list[Message])
_parts = msgspec.json.Decoder(list[dict[str, Raw]])
_text = msgspec.json.Decoder(str)


def plain_messages(messages: Raw) -> Raw:
    """Return the messages without members for Anthropic, with texts as one text, and with images of tool results in a user
    message after them. Invalid messages are left to the upstream, which rejects them."""
    try:
        plain = list(_said(_messages.decode(messages)))
    except (msgspec.MsgspecError, RecursionError):
        return messages
    return Raw(msgspec.json.encode(plain))


def plain_tools(tools: Raw) -> Raw:
    """Reduce the tools in the same way."""
    try:
        known = _messages.decode(tools)
    except (msgspec.MsgspecError, RecursionError):
        return tools
    return Raw(msgspec.json.encode([_without(tool) for tool in known]))


def _said(messages: list[Message]) -> Iterable[Any]:
    images: list[Any] = []
    for message in messages:
        is_result = bytes(message.get("role", b"")) == _TOOL
        if images and not is_result:
            yield {"role": _USER, "content": images}
            images = []
        plain: dict[str, Any] = _without(message)
        content = message.get("content", _NULL)
        if bytes(content)[:1] == b"[":
            parts = [_without(part) for part in _parts.decode(content)]
            if is_result:
                images += [part for part in parts if "text" not in part]
                parts = [part for part in parts if "text" in part]
            plain["content"] = _joined(parts) if all("text" in part for part in parts) else parts
        if is_result and bytes(message.get("is_error", b"")) == b"true":
            plain["content"] = _ERROR + _as_text(plain.get("content", _NULL))
        if "tool_calls" in plain and b'"cache_control"' in bytes(plain["tool_calls"]):
            plain["tool_calls"] = [_without(call) for call in _parts.decode(plain["tool_calls"])]
        yield plain
    if images:
        yield {"role": _USER, "content": images}


def _without(found: dict[str, Raw]) -> dict[str, Raw]:
    return {name: value for name, value in found.items() if name not in _NOT_HERE}


def _joined(parts: list[dict[str, Raw]]) -> str:
    return _BETWEEN.join(_text.decode(part["text"]) for part in parts)


def _as_text(content: Any) -> str:
    return content if isinstance(content, str) else str(_text.decode(content))
