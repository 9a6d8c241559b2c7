"""Putting pieces of OpenAI stream choices together again: tool calls, and members that we do not know."""

from typing import Any

import msgspec
from msgspec import Raw

from fairlane.streaming.jsontext import as_text, items, join_object, join_strings, kind_of, members

_MAX_INDEX = 1023
_MAX_DEPTH = 16
_REPEATED = frozenset({"id", "type", "index", "role", "name", "format"})
"""Members that say the same in each piece instead of going on."""


class ToolIndex:
    """Knows which call of a choice a tool call delta belongs to, for deltas that do not say it themselves.

    A delta with an id that was not seen begins the next call; one without id goes on with the latest.
    """

    def __init__(self) -> None:
        self._by_id: dict[bytes, int] = {}
        self._latest = -1
        self._top = -1

    def place(self, delta: bytes) -> list[tuple[int, bytes]]:
        """Each object of a `tool` chunk with its call's index; the object always has a valid `index`."""
        placed = []
        for call in items(delta) or [delta]:
            found = members(call)
            if not found:
                continue
            told = _index(found.get("index"))
            index = self._find(found.get("id")) if told is None else told
            if kind_of(found.get("id")):
                self._by_id[bytes(found["id"])] = index
            self._latest = index
            self._top = max(self._top, index)
            placed.append((index, call if told is not None else with_index(index, found)))
        return placed

    def _find(self, call_id: Raw | None) -> int:
        if kind_of(call_id):
            return self._by_id.get(bytes(call_id or b""), self._top + 1)
        return max(self._latest, 0)


class ToolCalls:
    """The tool calls of one choice, built up from deltas."""

    def __init__(self) -> None:
        self._index = ToolIndex()
        self._calls: dict[int, _ToolCall] = {}

    def add(self, delta: bytes) -> None:
        for index, call in self._index.place(delta):
            self._calls.setdefault(index, _ToolCall()).add(members(call) or {})

    def finished(self) -> list[bytes]:
        """Whole tool call objects as a message holds them, in the order of their indices."""
        return [call.finished(index) for index, call in sorted(self._calls.items())]


class _ToolCall:
    def __init__(self) -> None:
        self._id: bytes | None = None
        self._type: bytes | None = None
        self._name: list[bytes] = []
        self._arguments: list[bytes] = []
        self._others: dict[str, Any] = {}

    def add(self, found: dict[str, Raw]) -> None:
        for name, value in found.items():
            if name == "index" or not kind_of(value):
                continue
            if name == "id":
                self._id = as_text(value)
            elif name == "type":
                self._type = as_text(value)
            elif name == "function":
                self._add_function(members(value) or {})
            else:
                self._others = merge(self._others, {name: decoded(value)}, join=True)

    def _add_function(self, found: dict[str, Raw]) -> None:
        name = found.get("name")
        if name is not None and kind_of(name) and _inside(name) != b"".join(self._name):
            self._name.append(_inside(name))
        arguments = found.get("arguments")
        if arguments is not None and kind_of(arguments):
            self._arguments.append(_inside(arguments))

    def finished(self, index: int) -> bytes:
        pairs = [("id", self._id or b'"call_%d"' % index), ("type", self._type or b'"function"')]
        if self._name or self._arguments or not self._others:
            function = [("name", join_strings(self._name)), ("arguments", join_strings(self._arguments))]
            pairs.append(("function", join_object(function)))
        pairs += [(name, msgspec.json.encode(value)) for name, value in self._others.items()]
        return join_object(pairs)


def merge(old: Any, new: Any, *, join: bool, depth: int = _MAX_DEPTH) -> Any:
    """`new` added to `old`: objects member by member, lists one after the other, null changes nothing.

    With `join`, strings go on (as in a choice's delta), except members that name the thing; without, and for
    everything else, the newer value counts. Lists and objects in `old` may be changed and become part of what
    is returned.
    """
    if new is None or old is None or depth == 0:
        return old if new is None else new
    if isinstance(old, dict) and isinstance(new, dict):
        for name, value in new.items():
            goes_on = join and name not in _REPEATED
            old[name] = merge(old.get(name), value, join=goes_on, depth=depth - 1)
        return old
    if isinstance(old, list) and isinstance(new, list):
        old.extend(new)
        return old
    if join and isinstance(old, str) and isinstance(new, str):
        return old + new
    return new


def decoded(raw: bytes) -> Any:
    """The value of JSON text; None for what cannot be represented (numbers out of range, absurd nesting)."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def with_index(index: int, found: dict[str, Raw]) -> bytes:
    """The object with these members and this `index`."""
    others = [(name, bytes(value)) for name, value in found.items() if name != "index"]
    return join_object([("index", b"%d" % index), *others])


def _inside(raw: bytes) -> bytes:
    """What stands between the quotes of `raw` as text."""
    return as_text(raw)[1:-1]


def _index(raw: Raw | None) -> int | None:
    try:
        index = msgspec.json.decode(raw or b"null", type=int)
    except msgspec.MsgspecError:
        return None
    return index if 0 <= index <= _MAX_INDEX else None
