"""Results of stages: as texts of later stages read them, and as clients see them. Pure."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from fairlane.gateway.prompts.errors import TemplateError
from fairlane.gateway.prompts.templates import MAX_VALUES_BYTES
from fairlane.queues.tasks import Used
from fairlane.streaming.views.choice import choices_of_result

MAX_JSON_BYTES = 4 * MAX_VALUES_BYTES
"""Of all results that the texts of one stage read as values, and not as texts."""
PARTED = "\n\n"
"""Stands between the texts of parts."""
_NOT_READ = object()


class Room:
    """How much of results may still become values."""

    def __init__(self, most: int = MAX_JSON_BYTES) -> None:
        self._left = most

    def take(self, size: int, what: str) -> None:
        """Count this many bytes. Raise TemplateError."""
        self._left -= size
        if self._left < 0:
            raise TemplateError(
                f"{what} is too large: results that are read as values may have {MAX_JSON_BYTES} bytes together; "
                "read `content`, which is a text"
            )


class Answer:
    """The answer of a stage, or of a part of one, as texts read it."""

    __slots__ = ("_content", "_json", "_name", "_raw", "_result", "_room")

    def __init__(self, name: str, raw: bytes, room: Room) -> None:
        self._raw = raw
        self._name = name
        self._room = room
        self._content: str | None = None
        self._result: Any = _NOT_READ
        self._json: Any = _NOT_READ

    @property
    def content(self) -> str:
        """The text of the answer."""
        if self._content is None:
            self._content = text_of(self._raw)
        return self._content

    @property
    def result(self) -> Any:
        """All of the answer, as a value. Raises TemplateError."""
        if self._result is _NOT_READ:
            self._room.take(len(self._raw), f"stages.{self._name}.result")
            try:
                self._result = msgspec.json.decode(self._raw)
            except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
                raise TemplateError(f"the answer of the stage {self._name} cannot be read: {error}") from None
        return self._result

    @property
    def json(self) -> Any:
        """The text of the answer, which must be JSON, as a value. Raises TemplateError."""
        if self._json is _NOT_READ:
            text = self.content
            self._room.take(len(text), f"stages.{self._name}.json")
            try:
                self._json = msgspec.json.decode(text)
            except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
                raise TemplateError(f"the answer of the stage {self._name} is no JSON: {error}") from None
        return self._json

    def __str__(self) -> str:
        return self.content


class Outcome:
    """A stage that is done, or was skipped, as texts of later ones read it."""

    __slots__ = ("_each", "_read", "parts", "skipped")

    def __init__(self, name: str, results: Sequence[bytes], room: Room, *, each: bool = False) -> None:
        """`each`: it has a list of parts, however many."""
        self.skipped = not results
        self.parts = [Answer(name, raw, room) for raw in results]
        self._each = each
        self._read: dict[str, Any] = {}

    @property
    def content(self) -> str:
        """Its text; those of its parts one after the other."""
        text: str = self._once("content", lambda: PARTED.join(part.content for part in self.parts))
        return text

    @property
    def result(self) -> Any:
        """All of its answer, or the list of all; none of one that was skipped. Raises TemplateError."""
        return self._once("result", lambda: self._of([part.result for part in self.parts]))

    @property
    def json(self) -> Any:
        """The same of its text as JSON. Raises TemplateError."""
        return self._once("json", lambda: self._of([part.json for part in self.parts]))

    def _once(self, name: str, read: Callable[[], Any]) -> Any:
        """The same object however often it is read, as texts may read it a thousand times."""
        if name not in self._read:
            self._read[name] = read()
        return self._read[name]

    def _of(self, values: list[Any]) -> Any:
        if self._each:
            return values
        return values[0] if values else None

    def __str__(self) -> str:
        return self.content


def text_of(result: bytes) -> str:
    """The text of an answer: of its first choice."""
    content = choices_of_result(result)[0].content
    return "" if content is None else str(msgspec.json.decode(content))


def whole(results: Sequence[bytes], *, each: bool) -> bytes:
    """The result of a stage: its own, or the list of those of its parts."""
    return b"[%b]" % b",".join(results) if each else results[0]


def of_stage(results: Mapping[tuple[int, int], bytes], index: int) -> list[bytes]:
    """The results of a stage, in the order of its parts; [] where there is none."""
    return [results[key] for key in sorted(key for key in results if key[0] == index)]


def used_by(used: Mapping[tuple[int, int], Used], index: int | None = None) -> Used | None:
    """What a stage used, or all of them; None where nothing is known."""
    of_it = [one for (stage, _), one in used.items() if index in (None, stage)]
    return functools.reduce(Used.plus, of_it) if of_it else None


def told_usage(used: Used | None) -> dict[str, Any] | None:
    """Return usage as clients see it; None if nothing is known."""
    if used is None:
        return None
    names = ("inputTokens", "outputTokens", "cachedTokens", "reasoningTokens")
    told: dict[str, Any] = {name: count for name, count in zip(names, used[:4], strict=True) if count >= 0}
    return {**told, **({"estimated": True} if used.estimated else {})} or None
