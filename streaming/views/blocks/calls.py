"""Tool calls, one open at a time, out of deltas that may take turns. Pure."""

import bisect
import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from msgspec import Raw

from fairlane.streaming.jsontext import as_text, kind_of, members, one_line, string_or_none
from fairlane.streaming.views.accumulate import ToolIndex

_SIGNS = re.compile(r'\\(?:.|$)|["{}\[\]]', re.DOTALL)
_string = msgspec.json.Decoder(str).decode


class Begin(NamedTuple):
    """A call begins; both are JSON strings."""

    id: bytes
    name: bytes


class More(NamedTuple):
    """More of its arguments; a JSON string."""

    arguments: bytes


class End(NamedTuple):
    """It is whole."""


Step = Begin | More | End


class _Whole:
    """Whether a JSON object that comes in pieces has ended."""

    __slots__ = ("_begun", "_depth", "_escaped", "_in_string")

    def __init__(self) -> None:
        self._depth = 0
        self._begun = self._in_string = self._escaped = False

    def add(self, text: str) -> None:
        if self._escaped and text:
            text, self._escaped = text[1:], False
        for found in _SIGNS.finditer(text):
            sign = found[0]
            if sign[0] == "\\":
                self._escaped = len(sign) == 1
            elif sign == '"':
                self._in_string = not self._in_string
            elif not self._in_string:
                self._begun = True
                self._depth += 1 if sign in "{[" else -1

    def __bool__(self) -> bool:
        return self._begun and self._depth <= 0 and not self._in_string


class _Call:
    __slots__ = ("ended", "held", "id", "index", "name", "shown", "whole")

    def __init__(self, index: int) -> None:
        self.index = index
        self.id: bytes | None = None
        self.name = b""
        self.held: list[bytes] = []
        """Insides of JSON strings that wait for the calls before."""
        self.shown = self.ended = False
        self.whole = _Whole()


class CallBlocks:
    """The calls of one answer, each whole before the next one begins.

    What belongs to a later call waits while an earlier one has no whole object as its arguments. A call begins with its
    arguments, when its name is known; one that has none begins at the end.
    """

    def __init__(self) -> None:
        self._index = ToolIndex()
        self._calls: dict[int, _Call] = {}
        self._left: list[int] = []
        """The indices of those that have not ended, in order."""
        self._open: _Call | None = None

    def add(self, delta: bytes) -> Iterator[Step]:
        """What a `tool` chunk adds."""
        for index, raw in self._index.place(delta):
            call = self._calls.get(index)
            if call is None:
                call = self._calls[index] = _Call(index)
                bisect.insort(self._left, index)
            if not call.ended:
                _learn(call, members(raw) or {})
                yield from self._advance()

    @property
    def busy(self) -> bool:
        """Whether a call has begun that is not whole."""
        return self._open is not None and not self._open.whole

    def leave(self) -> Iterator[Step]:
        """The end of the call that has begun: something else comes."""
        if self._open is not None:
            yield self._end(self._open)

    def end(self) -> Iterator[Step]:
        """What is left: no more comes."""
        for call in [self._open, *(self._calls[index] for index in self._left)]:
            if call is not None and not call.ended:
                yield from self._show(call)
                yield self._end(call)

    def _advance(self) -> Iterator[Step]:
        """Show what may be shown: of the call that has begun, or else of the first, and of the next one once that is whole."""
        while self._left:
            call, left = self._open, self._left
            following = left[1] if call is self._calls[left[0]] and len(left) > 1 else left[0]
            if call is None:
                call = self._calls[following]
            if call.held:
                yield from self._show(call)
            if self._calls[following] is call or not call.whole or not self._calls[following].held:
                return
            yield self._end(call)

    def _show(self, call: _Call) -> Iterator[Step]:
        if not call.shown:
            call.shown = True
            self._open = call
            yield Begin(call.id or b'"call_%d"' % call.index, b'"%b"' % call.name)
        if call.held:
            yield More(b'"%b"' % b"".join(call.held))
            call.held.clear()

    def _end(self, call: _Call) -> End:
        call.ended, self._open = True, None
        self._left.remove(call.index)
        return End()


def _learn(call: _Call, found: dict[str, Raw]) -> None:
    call_id = string_or_none(found.get("id"))
    if call_id is not None and not call.shown:
        call.id = one_line(call_id)
    function = members(found.get("function")) or {}
    name = function.get("name")
    if name is not None and kind_of(name) and not call.shown:
        inside = as_text(name)[1:-1]
        if inside != call.name:
            call.name += inside
    arguments = function.get("arguments")
    if arguments is not None and kind_of(arguments):
        text = as_text(arguments)
        if text != b'""':
            call.held.append(text[1:-1])
            call.whole.add(_string(text))
