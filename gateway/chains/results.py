"""Results of stages, as texts of later stages and as clients read them. Pure."""

import functools
from collections.abc import Mapping, Sequence
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


class Room:
    """Bounds the bytes of results that become values."""

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

    def __init__(self, name: str, raw: bytes, room: Room) -> None:
        self._raw = raw
        self._name = name
        self._room = room

    @functools.cached_property
    def content(self) -> str:
        """The text of the answer."""
        return text_of(self._raw)

    @functools.cached_property
    def result(self) -> Any:
        """The answer as a value. Raise TemplateError."""
        return self._decoded("result", self._raw)

    @functools.cached_property
    def json(self) -> Any:
        """The text of the answer, which must be JSON, as a value. Raise TemplateError."""
        return self._decoded("json", self.content)

    def _decoded(self, member: str, text: bytes | str) -> Any:
        self._room.take(len(text), f"stages.{self._name}.{member}")
        try:
            return msgspec.json.decode(text)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            raise TemplateError(f"stages.{self._name}.{member} is no valid JSON: {error}") from None

    def __str__(self) -> str:
        return self.content


class Outcome:
    """A stage that is done, or was skipped, as texts of later ones read it."""

    def __init__(self, name: str, results: Sequence[bytes], room: Room, *, each: bool = False) -> None:
        """`each`: it has a list of parts, however many."""
        self.skipped = not results
        self.parts = [Answer(name, raw, room) for raw in results]
        self._each = each

    @functools.cached_property
    def content(self) -> str:
        """Its text; the texts of its parts one after the other."""
        return PARTED.join(part.content for part in self.parts)

    @functools.cached_property
    def result(self) -> Any:
        """Its answer, or the list of all answers; None if it was skipped. Raise TemplateError."""
        return self._of([part.result for part in self.parts])

    @functools.cached_property
    def json(self) -> Any:
        """Its text as JSON, or the list of all. Raise TemplateError."""
        return self._of([part.json for part in self.parts])

    def _of(self, values: list[Any]) -> Any:
        if self._each:
            return values
        return values[0] if values else None

    def __str__(self) -> str:
        return self.content


def text_of(result: bytes) -> str:
    """Return the text of the first choice of an answer."""
    content = choices_of_result(result, "")[0].content
    return "" if content is None else str(msgspec.json.decode(content))


def whole(results: Sequence[bytes], *, each: bool) -> bytes:
    """Return the result of a stage, or the list of the results of its parts."""
    return b"[%b]" % b",".join(results) if each else results[0]


def of_stage(results: Mapping[tuple[int, int], bytes], index: int) -> list[bytes]:
    """Return the results of a stage, in the order of its parts."""
    return [results[key] for key in sorted(key for key in results if key[0] == index)]


def used_by(used: Mapping[tuple[int, int], Used], index: int | None = None) -> Used | None:
    """Return the usage of a stage, or of all; None if it is unknown."""
    of_it = [one for (stage, _), one in used.items() if index in (None, stage)]
    return functools.reduce(Used.plus, of_it) if of_it else None


def usage_fields(used: Used | None) -> dict[str, Any] | None:
    """Return usage as clients see it; None if nothing is known."""
    if used is None:
        return None
    names = ("inputTokens", "outputTokens", "cachedTokens", "reasoningTokens")
    shown: dict[str, Any] = {name: count for name, count in zip(names, used[:4], strict=True) if count >= 0}
    return {**shown, **({"estimated": True} if used.estimated else {})} or None
