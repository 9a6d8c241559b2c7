"""Splits a file of lines as its pieces come. Pure."""

import re
from collections.abc import Iterator
from typing import NamedTuple

BOM = b"\xef\xbb\xbf"
_NOT_BLANK = re.compile(rb"\S")


class Line(NamedTuple):
    """One line of a file."""

    number: int
    """From 1; blank lines count."""
    offset: int
    """Where it begins, bytes."""
    text: bytes
    """Without its end."""


class LineTooLong(Exception):
    """A line that is longer than may be; nothing behind it is read."""

    def __init__(self, number: int, most: int) -> None:
        super().__init__(f"line {number} is longer than {most} bytes")
        self.number = number
        self.most = most


class Splitter:
    """Feed it the pieces of a file in order: it gives the lines that are not blank, and keeps of the others what has no end yet.

    `number`, `offset`: where it begins in the file.
    """

    def __init__(self, most: int, number: int = 1, offset: int = 0) -> None:
        self._most = most
        self._parts: list[bytes] = []
        self._size = 0
        self.number = number
        """Of the next line."""
        self.offset = offset
        """Where that begins."""

    def feed(self, piece: bytes) -> Iterator[Line]:
        """The lines that end in this piece. Raises LineTooLong."""
        at = 0
        while (end := piece.find(b"\n", at := self._behind_blank(piece, at))) >= 0:
            yield from self._line(piece[at:end], ended=True)
            at = end + 1
        rest = piece[at:]
        if rest:
            self._keep(rest)

    def end(self) -> Iterator[Line]:
        """The last line, where the file does not end with a line's end. Raises LineTooLong."""
        if self._parts:
            yield from self._line(b"", ended=False)

    def _behind_blank(self, piece: bytes, at: int) -> int:
        """Where the blank lines end that begin here: a file may hold millions, which cost no step each."""
        if self._parts:
            return at
        found = _NOT_BLANK.search(piece, at)
        behind = piece.rfind(b"\n", at, found.start() if found else len(piece)) + 1
        if not behind:
            return at
        self.number += piece.count(b"\n", at, behind)
        self.offset += behind - at
        return behind

    def _keep(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)
        if self._size > self._most:
            raise LineTooLong(self.number, self._most)

    def _line(self, last: bytes, *, ended: bool) -> Iterator[Line]:
        self._keep(last)
        text = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        number, offset = self.number, self.offset
        self.number += 1
        self.offset += len(text) + ended
        self._parts, self._size = [], 0
        if offset == 0:
            text = text.removeprefix(BOM)
        if text.strip():
            yield Line(number, offset, text)
