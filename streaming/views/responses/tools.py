"""The tools of a Responses request by the names that a chat model calls them by, and their calls as items. Pure.

Chat has functions alone. A function of a namespace is one whose name begins with the namespace; a custom tool is a function with
one text, `input`; a search for tools that the client runs is the function `tool_search`.
"""

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from msgspec import Raw

from fairlane.streaming.jsontext import EMPTY_STRING, items, json_string, kind_of, members, one_line

MAX_NAME = 64
"""Characters of a function's name at OpenAI and most servers."""
SEARCH = "tool_search"
INPUT = "input"
_SEPARATOR = "__"
_text = msgspec.json.Decoder(str).decode


class Tool(NamedTuple):
    """A tool: the type of its calls' items, the kind of their ids, its name and namespace as JSON strings."""

    item: bytes = b"function_call"
    id_kind: bytes = b"fc"
    name: bytes = EMPTY_STRING
    namespace: bytes = b""

    def call(self, item_id: bytes, call_id: bytes, content: bytes, status: bytes) -> bytes:
        """Return a call as an item; `content` as `content_of` returns it."""
        begin = b'{"id":%b,"type":"%b","status":"%b","call_id":%b,' % (item_id, self.item, status, call_id)
        if self.item == b"tool_search_call":
            return b'%b"execution":"client","arguments":%b}' % (begin, content)
        if self.namespace:
            begin += b'"namespace":%b,' % self.namespace
        member = b"arguments" if self.item == b"function_call" else b"input"
        return b'%b"name":%b,"%b":%b}' % (begin, self.name, member, content)

    def content_of(self, arguments: bytes) -> bytes:
        """Return what a call's item shows of its arguments, a JSON string: the same, the input of a custom tool, or an object."""
        if self.item == b"function_call":
            return arguments
        found = members(_text(arguments).encode())
        if self.item == b"tool_search_call":
            return b"{}" if found is None else one_line(_text(arguments).encode())
        value = (found or {}).get(INPUT)
        return one_line(value) if value is not None and kind_of(value) == '"' else arguments


_CUSTOM = Tool(b"custom_tool_call", b"ctc")
_SEARCH = Tool(b"tool_search_call", b"tsc")


def function_name(name: str, namespace: str = "") -> str:
    """Return the name of the function that stands for a tool. One that is too long ends with a hash of the whole."""
    if not namespace:
        return name
    joined = f"{namespace.removesuffix(_SEPARATOR)}{_SEPARATOR}{name}"
    if len(joined) <= MAX_NAME:
        return joined
    mark = hashlib.sha256(joined.encode()).hexdigest()[:8]
    return f"{joined[: MAX_NAME - len(mark) - 1]}_{mark}"


class Tools:
    """The tools that a response repeats."""

    def __init__(self, echo: bytes) -> None:
        self._echo = echo
        self._known: dict[str, Tool] | None = None

    def find(self, name: bytes) -> Tool:
        """Return the tool that a function stands for; `name` is a JSON string."""
        if self._known is None:  # when there is a call: most responses have none
            self._known = dict(_tools((members(self._echo) or {}).get("tools"), ""))
        return self._known.get(_text(name)) or Tool(name=name)


def _tools(raw: Raw | None, namespace: str) -> Iterator[tuple[str, Tool]]:
    for one in items(raw) or () if raw is not None else ():
        found = members(one) or {}
        kind = _text(found["type"])
        if kind == SEARCH:
            yield SEARCH, _SEARCH
            continue
        name = _text(found["name"])
        if kind == "namespace":
            yield from _tools(found["tools"], name)
        elif kind == "custom" or namespace:
            tool = (_CUSTOM if kind == "custom" else Tool())._replace(name=json_string(name))
            yield (
                function_name(name, namespace),
                tool._replace(namespace=json_string(namespace) if namespace else b""),
            )
