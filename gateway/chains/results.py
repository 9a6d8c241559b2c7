"""Results of stages, as texts of later stages and as clients read them. Pure."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fairlane.gateway.prompts.engine import Budget
from fairlane.gateway.prompts.errors import TemplateError
from fairlane.gateway.prompts.templates import MAX_VALUES_BYTES
from fairlane.queues.tasks import Used
from fairlane.streaming.views.choice import choices_of_result

MAX_JSON_BYTES = 4 * MAX_VALUES_BYTES
"""Of all results that the texts of one stage read as values, and not as texts."""
PARTED = "\n\n"
"""Stands between the texts of parts."""


def room_for_values(size: int = MAX_JSON_BYTES) -> Budget:
    """Return the bytes of results that the texts of one stage may read as values."""
    return Budget(size, "results that are read as values, and not by their texts (`content`),")


class Outcome:
    """A stage that is done, or was skipped, as texts of later ones read it; or a part of it."""

    def __init__(self, name: str, results: Sequence[bytes], room: Budget, *, each: bool = False) -> None:
        """`each`: it has a list of parts, however many."""
        self.skipped = not results
        self._name = name
        self._results = results
        self._room = room
        self._each = each

    @property
    def parts(self) -> list["Outcome"]:
        """Its parts."""
        return [Outcome(self._name, [raw], self._room) for raw in self._results]

    @functools.cached_property
    def content(self) -> str:
        """Its text; the texts of its parts one after the other."""
        return PARTED.join(map(text_of, self._results))

    @functools.cached_property
    def result(self) -> Any:
        """Its answer, or the list of all answers; None if it was skipped. Raise TemplateError."""
        return self._values("result", self._results)

    @functools.cached_property
    def json(self) -> Any:
        """Its text, which must be JSON, as a value, or the list of all. Raise TemplateError."""
        return self._values("json", [text_of(raw) for raw in self._results])

    def _values(self, member: str, texts: Sequence[bytes | str]) -> Any:
        values = []
        for text in texts:
            self._room.count(len(text))
            try:
                values.append(msgspec.json.decode(text))
            except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
                raise TemplateError(f"stages.{self._name}.{member} is no valid JSON: {error}") from None
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
