"""Reduces messages and tools to what an upstream takes: plain chat, with the roles that it knows. Pure."""

from collections.abc import Collection, Iterable
from typing import Any

import msgspec
from msgspec import Raw

from fairlane.workers.adapters.quirks import OMIT, Quirks

Object = dict[str, Any]

_NOT_HERE = frozenset({"cache_control", "thinking_blocks", "is_error"})
_objects = msgspec.json.Decoder(list[Object])


def plain_messages(messages: Raw, quirks: Quirks, *, translated: bool) -> Raw:
    """Return the messages as this upstream takes them, without members that say nothing. Those of a `translated` request lose
    members for Anthropic, have texts as one text, and images of tool results in a user message after them. Invalid messages are
    left to the upstream, which rejects them."""
    omitted = {name for name, instead in quirks.items() if instead == OMIT}
    try:
        sent = _objects.decode(messages)
        known = [_spoken(message) for message in sent]
        if known == sent and not (translated or omitted or quirks.keys() & {"system", "developer"}):
            return messages
        plain = [_without(message, omitted) for message in (_said(known) if translated else known)]
    except (msgspec.MsgspecError, RecursionError):
        return messages
    for message in plain if "developer" in quirks else ():
        if message.get("role") == "developer":
            message["role"] = "system"
    return Raw(msgspec.json.encode(_system_first(plain) if "system" in quirks else plain))


def plain_tools(tools: Raw, quirks: Quirks, *, translated: bool) -> Raw:
    """Reduce the tools in the same way."""
    omitted = {name for name, instead in quirks.items() if instead == OMIT}
    if not translated and "strict" not in omitted:
        return tools
    try:
        known = [_without(tool) for tool in _objects.decode(tools)]
        for tool in known:
            if omitted and "function" in tool:
                tool["function"] = _without(msgspec.convert(tool["function"], Object), omitted)
    except (msgspec.MsgspecError, RecursionError):
        return tools
    return Raw(msgspec.json.encode(known))


def joined(first: Any, second: Any) -> Any:
    """Return the contents of two messages as one: a text if both are texts, else parts."""
    if not first or not second:
        return first or second or ""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    contents = [one if isinstance(one, list) else [{"type": "text", "text": one}] for one in (first, second)]
    return [*contents[0], *contents[1]]


def _system_first(messages: Iterable[Object]) -> list[Object]:
    """Join the leading messages of the system, and say a later one as a user's; it joins those of the user around it, as many
    templates want roles by turns."""
    kept: list[Object] = []
    was_later = False
    for message in messages:
        role, before = message.get("role"), kept[-1].get("role") if kept else None
        is_later = role == "system" and before not in (None, "system")
        role = "user" if is_later else role
        if kept and role == before and (role == "system" or is_later or was_later):
            kept[-1]["content"] = joined(kept[-1].get("content"), message.get("content"))
        else:
            kept.append({**message, "role": role} if is_later else message)
        was_later = is_later
    return kept


def _spoken(message: Object) -> Object:
    """Return the members that are neither null nor an empty list, and the content, which a message of calls has as null. Empty
    texts stay: DeepSeek requires `reasoning_content`."""
    return {
        name: None if value == [] else value
        for name, value in message.items()
        if name == "content" or value not in (None, [])
    }


def _said(messages: list[Object]) -> Iterable[Object]:
    images: list[Object] = []
    for message in messages:
        is_result = message.get("role") == "tool"
        if images and not is_result:
            yield {"role": "user", "content": images}
            images = []
        plain = _without(message)
        if isinstance(message.get("content"), list):
            parts = [_without(part) for part in msgspec.convert(message["content"], list[Object])]
            if is_result:
                images += [part for part in parts if "text" not in part]
                parts = [part for part in parts if "text" in part]
            if all("text" in part for part in parts):
                texts = msgspec.convert([part["text"] for part in parts], list[str])
                plain["content"] = "\n\n".join(texts)
            else:
                plain["content"] = parts
        if is_result and message.get("is_error") is True:
            plain["content"] = "Error: " + msgspec.convert(plain.get("content"), str)
        if "tool_calls" in plain:
            calls = msgspec.convert(plain["tool_calls"], list[Object])
            plain["tool_calls"] = [_without(call) for call in calls]
        yield plain
    if images:
        yield {"role": "user", "content": images}


def _without(found: Object, names: Collection[str] = _NOT_HERE) -> Object:
    return {name: value for name, value in found.items() if name not in names}
