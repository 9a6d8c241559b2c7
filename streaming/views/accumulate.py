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
