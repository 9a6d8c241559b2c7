"""Reduces messages and tools to what an upstream takes: plain chat, with the roles that it knows. Pure."""

from collections.abc import Collection, Iterable
from typing import Any

import msgspec
from msgspec import Raw

from fairlane.workers.adapters.quirks import OMIT, Quirks

Message = dict[str, Raw]

_NOT_HERE = frozenset({"cache_control", "thinking_blocks", "is_error"})
_ERROR = "Error: "
_BETWEEN = "\n\n"
_USER, _SYSTEM, _DEVELOPER, _TOOL = b'"user"', b'"system"', b'"developer"', b'"tool"'
_EMPTY = b'""'
_NULL = Raw(b"null")
_messages = msgspec.json.Decoder(list[Message])
_parts = msgspec.json.Decoder(list[dict[str, Raw]])
_text = msgspec.json.Decoder(str)


def plain_messages(messages: Raw, quirks: Quirks, *, translated: bool) -> Raw:
    """Return the messages as this upstream takes them, without members that say nothing. Those of a `translated` request lose
    members for Anthropic, have texts as one text, and images of tool results in a user message after them. Invalid messages are
    left to the upstream, which rejects them."""
    omitted = {name for name, instead in quirks.items() if instead == OMIT}
    try:
        sent = _messages.decode(messages)
        known = [_spoken(message) for message in sent]
        if known == sent and not (translated or omitted or quirks.keys() & {"system", "developer"}):
            return messages
        said: Iterable[Any] = _said(known) if translated else known
        plain = [_without(message, omitted) for message in said]
        for message in plain if "developer" in quirks else ():
            if _role(message) == _DEVELOPER:
                message["role"] = Raw(_SYSTEM)
        plain = _system_first(plain) if "system" in quirks else plain
    except (msgspec.MsgspecError, RecursionError):
        return messages
    return Raw(msgspec.json.encode(plain))


def plain_tools(tools: Raw, quirks: Quirks, *, translated: bool) -> Raw:
    """Reduce the tools in the same way."""
    omitted = {name for name, instead in quirks.items() if instead == OMIT}
    if not translated and "strict" not in omitted:
        return tools
    try:
        known: list[dict[str, Any]] = [_without(tool, _NOT_HERE) for tool in _messages.decode(tools)]
        for tool in known:
            if omitted and "function" in tool:
                tool["function"] = _without(msgspec.json.decode(tool["function"], type=Message), omitted)
    except (msgspec.MsgspecError, RecursionError):
        return tools
    return Raw(msgspec.json.encode(known))


def joined(first: bytes, second: bytes) -> bytes:
    """Return the contents of two messages as one, all as JSON: a text if both are texts, else parts."""
    if _EMPTY in (first, second):
        return second if first == _EMPTY else first
    if first[:1] == second[:1] == b'"':
        return b"%b\\n\\n%b" % (first[:-1], second[1:])
    parts = [
        one.strip()[1:-1] if one[:1] == b"[" else b'{"type":"text","text":%b}' % one
        for one in (first, second)
    ]
    return b"[%b]" % b",".join(part for part in parts if part.strip())


def _system_first(messages: Iterable[Any]) -> list[Any]:
    """Join the leading messages of the system, and say a later one as a user's; it joins those of the user around it, as many
    templates want roles by turns."""
    kept: list[dict[str, Any]] = []
    was_later = False
    for message in messages:
        role, before = _role(message), _role(kept[-1]) if kept else b""
        is_later = role == _SYSTEM and before not in (b"", _SYSTEM)
        role = _USER if is_later else role
        if role == before and (role == _SYSTEM or is_later or was_later):
            content = joined(_content(kept[-1]), _content(message))
            kept[-1] = {**kept[-1], "content": Raw(content)}
        else:
            kept.append({**message, "role": Raw(role)} if is_later else message)
        was_later = is_later
    return kept


def _role(message: dict[str, Any]) -> bytes:
    return bytes(message.get("role", b""))


def _content(message: dict[str, Any]) -> bytes:
    content = msgspec.json.encode(message.get("content"))
    return _EMPTY if content == b"null" else content


def _spoken(message: Message) -> Message:
    """Return the members that are neither null nor an empty list, and the content, which a message of calls has as null. Empty
    texts stay: DeepSeek requires `reasoning_content`."""
    nothing = {name for name, value in message.items() if bytes(memoryview(value)[:5]) in (b"null", b"[]")}
    return {
        name: _NULL if name in nothing else value
        for name, value in message.items()
        if name == "content" or name not in nothing
    }


def _said(messages: list[Message]) -> Iterable[Any]:
    images: list[Any] = []
    for message in messages:
        is_result = bytes(message.get("role", b"")) == _TOOL
        if images and not is_result:
            yield {"role": Raw(_USER), "content": images}
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
        yield {"role": Raw(_USER), "content": images}


def _without(found: dict[str, Any], names: Collection[str] = _NOT_HERE) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in names}


def _joined(parts: list[dict[str, Raw]]) -> str:
    return _BETWEEN.join(_text.decode(part["text"]) for part in parts)


def _as_text(content: Any) -> str:
    return content if isinstance(content, str) else str(_text.decode(content))
