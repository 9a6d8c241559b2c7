"""Lines of a batch that cannot be submitted now, by what blocks them: a model, or everything. Pure: times are handed in, s."""

from collections import deque
from typing import Final

from fairlane.gateway.batches.lines import Line
from fairlane.gateway.batches.models import BlockedOn

MIN_RETRY_S, MAX_RETRY_S = 1.0, 60.0
MAX_LINES, MAX_BYTES = 5000, 4 << 20
"""A fuller backlog keeps further lines from being read."""
MAX_MODELS_SHOWN = 10
EVERYTHING: Final = ""
"""The model of what blocks all lines."""


class Backlog:
    """The backlog of one batch."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[Line]] = {}
        self._blocked: dict[str, tuple[float, str]] = {}
        """By model: until when, and the error code."""
        self._bytes = 0

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    @property
    def full(self) -> bool:
        """Whether no further lines are read."""
        return self._bytes > MAX_BYTES or len(self) >= MAX_LINES

    @property
    def blocked_on(self) -> BlockedOn:
        """Error codes, with the models whose lines they block."""
        found: dict[str, list[str]] = {}
        for model, (_, code) in self._blocked.items():
            if model == EVERYTHING or model in self._lines:
                models = found.setdefault(code, [])
                if model and len(models) < MAX_MODELS_SHOWN:
                    models.append(model)
        return {code: sorted(found[code]) for code in sorted(found)}

    def add(self, line: Line, model: str = EVERYTHING) -> None:
        """Keep a line until its model is not blocked."""
        self._lines.setdefault(model, deque()).append(line)
        self._bytes += len(line.text)

    def block(self, model: str, seconds: float, code: str, now: float) -> None:
        """Hand out no lines of a model for a while."""
        self._blocked[model] = now + min(max(seconds, MIN_RETRY_S), MAX_RETRY_S), code

    def unblock(self, model: str) -> None:
        """A line of this model was submitted."""
        self._blocked.pop(model, None)

    def is_blocked(self, model: str, now: float) -> bool:
        """Return whether lines of a model wait."""
        return self._blocked[model][0] > now if model in self._blocked else False

    def take(self, most: int, now: float) -> list[Line]:
        """Return lines that can be submitted, at most `most`."""
        found: list[Line] = []
        for model in [model for model in self._lines if not self.is_blocked(model, now)]:
            lines = self._lines[model]
            while lines and len(found) < most:
                found.append(lines.popleft())
                self._bytes -= len(found[-1].text)
            if not lines:
                del self._lines[model]
        return found

    def clear(self) -> None:
        """Drop all lines."""
        self._lines, self._blocked, self._bytes = {}, {}, 0
