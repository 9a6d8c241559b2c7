"""Putting pieces of OpenAI stream choices together again: tool calls, and members that we do not know.

Everything stays text: values are joined as they came, and only objects are looked into. So what is put together takes about as
much memory as its pieces.
"""

import msgspec
from msgspec import Raw

from fairlane.streaming.jsontext import as_text, items, join_object, kind_of, members

_MAX_INDEX = 1023
"""Of a tool call; those beyond it are left out."""
_MAX_DEPTH = 16
_REPEATED = frozenset({"id", "type", "index", "role", "name", "format"})
"""Members that are the same in each piece instead of continuing."""


class ToolIndex:
    """Knows which call of a choice a tool call delta belongs to, for deltas that do not say it themselves.

    A delta with an id that was not seen begins the next call; one without id continues the latest.
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
            if index > _MAX_INDEX:
                continue
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
            known = self._calls.get(index)
            if known is None:
                known = self._calls[index] = _ToolCall()
            known.add(members(call) or {})

    def finished(self) -> list[bytes]:
        """Whole tool call objects as a message holds them, in the order of their indices."""
        return [call.finished(index) for index, call in sorted(self._calls.items())]


class _ToolCall:
    def __init__(self) -> None:
        self._id: bytes | None = None
        self._type: bytes | None = None
        self._name = bytearray()
        self._arguments = bytearray()
        self._others = Value(b"{}")

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
                self._others.add_member(name, value, join=True)

    def _add_function(self, found: dict[str, Raw]) -> None:
        name = found.get("name")
        if name is not None and kind_of(name) and _inside(name) != self._name:
            self._name += _inside(name)
        arguments = found.get("arguments")
        if arguments is not None and kind_of(arguments):
            self._arguments += _inside(arguments)

    def finished(self, index: int) -> bytes:
        others = self._others.members()
        pairs = [("id", self._id or b'"call_%d"' % index), ("type", self._type or b'"function"')]
        if self._name or self._arguments or not others:
            function = [("name", b'"' + self._name + b'"'), ("arguments", b'"' + self._arguments + b'"')]
            pairs.append(("function", join_object(function)))
        return join_object([*pairs, *others.items()])


class Value:
    """A JSON value that further pieces are added to: objects member by member, lists one after the other, null changes nothing.

    With `join`, strings grow (as in a choice's delta), except members that name the thing; without, and for everything else,
    the newer value counts.
    """

    __slots__ = ("_inside", "_kind", "_members", "_raw")

    def __init__(self, raw: bytes) -> None:
        self._set(raw)

    def _set(self, raw: bytes) -> None:
        self._raw = bytes(raw)
        self._kind = kind_of(raw)
        self._members: dict[str, Value] | None = None
        self._inside: bytearray | None = None

    def add(self, raw: bytes, *, join: bool, depth: int = _MAX_DEPTH) -> None:
        """Put a piece behind what there is."""
        kind = kind_of(raw)
        if not kind:
            return
        if kind != self._kind or not depth:
            self._set(raw)
        elif kind == "{" and self._opened():
            for name, value in (members(raw) or {}).items():
                self.add_member(name, value, join=join, depth=depth)
        elif kind == "[":
            self._append(_between(raw), b",")
        elif kind == '"' and join:
            self._append(_between(raw), b"")
        else:
            self._set(raw)

    def add_member(self, name: str, raw: bytes, *, join: bool, depth: int = _MAX_DEPTH) -> None:
        """Put a piece behind a member of an object."""
        if not self._opened() or self._members is None:
            return
        known = self._members.get(name)
        if known is None:
            self._members[name] = Value(raw)
        else:
            known.add(raw, join=join and name not in _REPEATED, depth=depth - 1)

    def _opened(self) -> bool:
        """Whether this is an object that can be added to, member by member."""
        if self._members is None and self._kind == "{":
            self._members = {name: Value(value) for name, value in (members(self._raw) or {}).items()}
            self._raw = b""
        return self._members is not None

    def _append(self, inside: bytes, between: bytes) -> None:
        if self._inside is None:
            self._inside, self._raw = bytearray(_between(self._raw)), b""
        if inside:
            if self._inside:
                self._inside += between
            self._inside += inside

    def members(self) -> dict[str, bytes]:
        """The members of an object, as JSON."""
        if not self._opened() or self._members is None:
            return {}
        return {name: value.json() for name, value in self._members.items()}

    def json(self) -> bytes:
        """All of it."""
        if self._members is not None:
            return join_object(self.members().items())
        if self._inside is not None:
            head, tail = (b'"', b'"') if self._kind == '"' else (b"[", b"]")
            return head + self._inside + tail
        return self._raw


def _between(raw: bytes) -> bytes:
    """What stands between the quotes of a string, or the brackets of a list."""
    return bytes(raw).strip()[1:-1].strip() if kind_of(raw) == "[" else bytes(raw).strip()[1:-1]


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
