"""Tool calls, one open at a time, out of deltas that may take turns. Pure."""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from fairlane.streaming.jsontext import one_line
from fairlane.streaming.tool_calls import Arguments, Piece, read_pieces

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


class _Call:
    __slots__ = ("arguments", "held", "id", "name", "shown")

    def __init__(self, piece: Piece) -> None:
        self.id, self.name = one_line(piece.id), one_line(piece.function.name)
        self.held: list[bytes] = []
        """Insides of JSON strings that wait for the calls before."""
        self.shown = False
        self.arguments = Arguments()


class CallBlocks:
    """The calls of one answer, each whole before the next one begins.

    What belongs to a later call waits while an earlier one has no whole object as its arguments. A call begins with its
    arguments; one that has none begins at the end.
    """

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._at = 0
        """Which call is shown, or comes next; those before it have ended."""

    def add(self, delta: bytes) -> Iterator[Step]:
        """What a `tool` chunk adds."""
        for piece in read_pieces(delta):
            if piece.index == len(self._calls):
                self._calls.append(_Call(piece))
            if piece.index >= self._at:
                call = self._calls[piece.index]
                if inside := bytes(piece.function.arguments)[1:-1]:
                    call.held.append(inside)
                    call.arguments.add(_string(piece.function.arguments))
                yield from self._advance()

    @property
    def _open(self) -> _Call | None:
        """The call that has begun and not ended."""
        return self._calls[self._at] if self._at < len(self._calls) and self._calls[self._at].shown else None

    @property
    def busy(self) -> bool:
        """Whether a call has begun that is not whole."""
        return self._open is not None and not self._open.arguments.whole

    def leave(self) -> Iterator[Step]:
        """The end of the call that has begun: something else comes."""
        if self._open is not None:
            yield self._end()

    def end(self) -> Iterator[Step]:
        """What is left: no more comes."""
        while self._at < len(self._calls):
            yield from self._show(self._calls[self._at])
            yield self._end()

    def _advance(self) -> Iterator[Step]:
        """Show what may be shown: of the first call that has not ended, and of the next one once that is whole."""
        while True:
            call, following = self._calls[self._at], self._calls[self._at + 1 : self._at + 2]
            if call.held:
                yield from self._show(call)
            if not call.arguments.whole or not following or not following[0].held:
                return
            yield self._end()

    def _show(self, call: _Call) -> Iterator[Step]:
        if not call.shown:
            call.shown = True
            yield Begin(call.id, call.name)
        if call.held:
            yield More(b'"%b"' % b"".join(call.held))
            call.held.clear()

    def _end(self) -> End:
        self._at += 1
        return End()
