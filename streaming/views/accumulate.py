"""Putting pieces of OpenAI stream choices together again: tool calls, and members that we do not know.

Everything stays text: values are joined as they came, and only objects are looked into. So what is put together takes about as
much memory as its pieces.
"""

from fairlane.streaming.jsontext import EMPTY_STRING, NO_ARGUMENTS, items, join_object, kind_of, members
from fairlane.streaming.tool_calls import read_place

_MAX_DEPTH = 16
_REPEATED = frozenset({"id", "type", "index", "role", "name", "format"})
"""Members that are the same in each piece instead of continuing."""


class ToolCalls:
    """The tool calls of one choice, built up from deltas."""

    def __init__(self) -> None:
        self._calls: dict[int, Value] = {}

    def add(self, deltas: bytes) -> None:
        """Put call deltas behind what there is."""
        for raw in items(deltas) or ():
            known = self._calls.setdefault(read_place(raw).index, call := Value(raw))
            if known is not call:
                known.add(raw, join=True)

    def finished(self) -> list[bytes]:
        """Whole tool call objects as a message holds them, in the order of their indices; arguments are JSON."""
        return [_finished(call) for call in self._calls.values()]


def _finished(call: "Value") -> bytes:
    found = {name: value for name, value in call.members().items() if name != "index"}
    function = members(found.get("function")) or {}
    if bytes(function.get("arguments", b"")) == EMPTY_STRING:
        found["function"] = join_object({**function, "arguments": NO_ARGUMENTS}.items())
    return join_object(found.items())


class Value:
    """A JSON value that further pieces are added to: objects member by member, lists one after the other, null changes nothing.

    With `join`, strings grow (as in a choice's delta), except members that name the thing; without, and for everything else,
    the newer value counts.
    """

    __slots__ = ("_held", "_kind")

    def __init__(self, raw: bytes) -> None:
        self._kind = kind_of(raw)
        self._held: bytes | bytearray | dict[str, Value] = bytes(raw)
        """As it came; once something was added, the inside of a string or a list, or the members."""

    def add(self, raw: bytes, *, join: bool, depth: int = _MAX_DEPTH) -> None:
        """Put a piece behind what there is."""
        kind = kind_of(raw)
        if not kind:
            return
        if kind != self._kind or not depth or kind not in ('{["' if join else "{["):
            self._kind, self._held = kind, bytes(raw)
        elif kind == "{":
            for name, value in (members(raw) or {}).items():
                self.add_member(name, value, join=join, depth=depth)
        else:
            if isinstance(self._held, bytes):
                self._held = bytearray(_between(self._held))
            assert isinstance(self._held, bytearray)
            if (inside := _between(raw)) and self._held and kind == "[":
                self._held += b","
            self._held += inside

    def add_member(self, name: str, raw: bytes, *, join: bool, depth: int = _MAX_DEPTH) -> None:
        """Put a piece behind a member of an object."""
        if isinstance(self._held, bytes):
            self._held = {name: Value(value) for name, value in (members(self._held) or {}).items()}
        assert isinstance(self._held, dict)
        known = self._held.setdefault(name, added := Value(raw))
        if known is not added:
            known.add(raw, join=join and name not in _REPEATED, depth=depth - 1)

    def members(self) -> dict[str, bytes]:
        """The members of an object, as JSON."""
        if isinstance(self._held, dict):
            return {name: value.json() for name, value in self._held.items()}
        return {name: bytes(value) for name, value in (members(bytes(self._held)) or {}).items()}

    def json(self) -> bytes:
        """All of it."""
        if isinstance(self._held, dict):
            return join_object(self.members().items())
        if isinstance(self._held, bytes):
            return self._held
        return (b'"%b"' if self._kind == '"' else b"[%b]") % bytes(self._held)


def _between(raw: bytes) -> bytes:
    """What stands between the quotes of a string, or the brackets of a list."""
    return bytes(raw).strip()[1:-1].strip() if kind_of(raw) == "[" else bytes(raw).strip()[1:-1]
