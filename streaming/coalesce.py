"""When a worker's output becomes an event: immediately at first, then in pieces of a useful size.

Pure: the time is handed in, in ms of any clock that does not go back, and a coalescer's owner asks it
when to flush.
"""

import math
from typing import NamedTuple

from fairlane.streaming.events import CHUNK_KINDS, TEXT_KINDS
from fairlane.streaming.jsontext import json_string, one_line

_MAY_WAIT = TEXT_KINDS | {"tool"}


class Piece(NamedTuple):
    """What becomes one chunk event: `n` deltas of choice `index`, joined; `delta_json` is one line."""

    index: int  # type: ignore[assignment]  # the choice; `index` is not called as a method
    kind: str
    delta_json: bytes
    n: int


class _TextRun:
    """Adjacent text of one choice and kind."""

    __slots__ = ("index", "kind", "parts")

    def __init__(self, index: int, kind: str, delta: str) -> None:
        self.index = index
        self.kind = kind
        self.parts = [delta]

    def piece(self) -> Piece:
        return Piece(self.index, self.kind, json_string("".join(self.parts)), len(self.parts))


class _RawRun:
    """Adjacent lists of tool call deltas of one choice, or one other JSON value."""

    __slots__ = ("index", "kind", "parts")

    def __init__(self, index: int, kind: str, delta: bytes) -> None:
        self.index = index
        self.kind = kind
        self.parts = [delta]

    def piece(self) -> Piece:
        if len(self.parts) == 1:
            return Piece(self.index, self.kind, self.parts[0], 1)
        insides = (part[1:-1].strip() for part in self.parts)
        joined = b"[%b]" % b",".join(inside for inside in insides if inside)
        return Piece(self.index, self.kind, joined, len(self.parts))


class Coalescer:
    """Holds the output of one task until it is worth an event, never longer than `interval_ms`.

    Due immediately: the first output, output after `interval_ms` without a flush, `max_chunks` deltas or
    `max_chars` characters, and everything that is not text, reasoning, refusal or tool calls. Order is kept;
    only neighbours of the same choice and kind are joined, and tool call objects are never merged.
    """

    def __init__(self, interval_ms: float = 40, max_chunks: int = 8, max_chars: int = 1024) -> None:
        self._interval_ms = interval_ms
        self._max_chunks = max_chunks
        self._max_chars = max_chars
        self.runs: list[_TextRun | _RawRun] = []
        """What waits, in order: a piece each."""
        self._chunks = 0
        self._chars = 0
        self._due_at = 0.0
        self._flushed_at = -math.inf
        self.begun = 0
        """Pieces so far, those included that wait."""

    @property
    def size(self) -> int:
        """What waits: its characters, and one for each delta."""
        return self._chars + self._chunks

    def add(self, index: int, kind: str, delta: str | bytes, now: float) -> None:
        """Take one delta of choice `index`: text, or for `tool` and `extra` JSON.

        A delta of the other sort or an unknown kind raises ValueError and changes nothing.
        """
        if self.runs:
            last: _TextRun | _RawRun | None = self.runs[-1]
        else:
            last = None
            self._due_at = max(now, self._flushed_at + self._interval_ms)
        if kind in TEXT_KINDS or kind == "finish":
            if not isinstance(delta, str):
                raise ValueError(f"a {kind} delta is text")
            if isinstance(last, _TextRun) and last.kind == kind and last.index == index and kind != "finish":
                last.parts.append(delta)
            else:
                self.runs.append(_TextRun(index, kind, delta))
                self.begun += 1
        else:
            if isinstance(delta, str) or kind not in CHUNK_KINDS:
                raise ValueError(f"unknown kind of chunk, or text where JSON belongs: {kind}")
            value = one_line(delta).strip()
            if (
                isinstance(last, _RawRun)
                and last.kind == kind == "tool"
                and last.index == index
                and last.parts[0].startswith(b"[")
                and value.startswith(b"[")
            ):
                last.parts.append(value)
            else:
                self.runs.append(_RawRun(index, kind, value))
                self.begun += 1
        self._chunks += 1
        self._chars += len(delta)
        if self._due_at > now and (
            kind not in _MAY_WAIT or self._chunks >= self._max_chunks or self._chars >= self._max_chars
        ):
            self._due_at = now

    def due(self, now: float) -> float | None:
        """When to flush: None while nothing is pending; an instant not after `now` means now."""
        if not self.runs:
            return None
        return min(self._due_at, now + self._interval_ms)

    def take(self, now: float) -> list[Piece]:
        """Everything pending, in order, in as few pieces as possible; `now` counts as a flush."""
        if not self.runs:
            return []
        pieces = []
        for run in self.runs:
            pieces.append(run.piece())
        self.runs = []
        self._chunks = 0
        self._chars = 0
        self._flushed_at = now
        return pieces
