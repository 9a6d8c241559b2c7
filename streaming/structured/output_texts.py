"""The text of a running answer, kept until it is finished. Pure."""

from typing import Any

from fairlane.streaming.jsontext import json_string
from fairlane.streaming.structured.requirements import MAX_TEXT_BYTES
from fairlane.streaming.views.choice import Choice


class Collected:
    """What each choice has come to, as far as it must be known to look at its text: no more of that than is looked at."""

    def __init__(self) -> None:
        self._texts: dict[int, bytearray] = {}
        self._ends: dict[int, bytes] = {}
        self._others: set[int] = set()
        """Choices that refuse, or call tools."""
        self._bytes = 0

    def add(self, index: int, kind: str, value: Any) -> None:
        """A piece of output: a text, but for tool calls and extra members."""
        if kind == "text":
            if self._bytes <= MAX_TEXT_BYTES:  # what is beyond is too long in any case
                text = value.encode(errors="replace")
                self._bytes += len(text)
                self._texts.setdefault(index, bytearray()).extend(text)
        elif kind == "finish":
            self._ends[index] = json_string(value)
        elif kind in ("refusal", "tool") and value not in ("", b"[]"):
            self._others.add(index)

    def choices(self) -> list[Choice]:
        """The choices so far; the first one also where nothing has come."""
        found = []
        for index in sorted({0, *self._texts, *self._ends, *self._others}):
            choice = Choice(index, finish=self._ends.get(index))
            choice.content = json_string(self._texts.get(index, b"").decode())
            choice.refusal = b'""' if index in self._others else None
            found.append(choice)
        return found
