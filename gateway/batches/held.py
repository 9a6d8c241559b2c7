"""Lines that cannot be submitted now, and of which models nothing is, for a while. Pure: times are handed in, in seconds."""

from collections.abc import Iterator

from fairlane.gateway.batches.splitting import Line

LEAST_REST_S, MOST_REST_S = 1.0, 60.0
"""A limit may be raised meanwhile."""
MOST_RESTS = 1000


class Held:
    """Of one batch."""

    def __init__(self) -> None:
        self._lines: list[tuple[str, Line]] = []
        """Each with its model; '' where that is not known."""
        self._rests: dict[str, float] = {}
        """Until when nothing of a model is submitted; '' of any."""
        self.whys: dict[str, str] = {}
        """Why, by code."""

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def bytes(self) -> int:
        return sum(len(line.text) for _, line in self._lines)

    @property
    def places(self) -> Iterator[tuple[int, int]]:
        """The numbers of the lines, and where they begin."""
        return ((line.number, line.offset) for _, line in self._lines)

    def add(self, line: Line, model: str = "", *, first: bool = False) -> None:
        """Hold a line."""
        self._lines.insert(0 if first else len(self._lines), (model, line))

    def rest(self, model: str, seconds: float, code: str, now: float) -> None:
        """Submit nothing of a model ('': of any) for a while."""
        if len(self._rests) > MOST_RESTS:
            self._rests = {name: until for name, until in self._rests.items() if until > now}
            self.whys = {name: why for name, why in self.whys.items() if name in self._rests}
        self._rests[model] = now + min(max(seconds, LEAST_REST_S), MOST_REST_S)
        self.whys[model] = code

    def rests(self, model: str, now: float) -> bool:
        """Whether nothing of a model is submitted now."""
        return self._rests.get(model, 0.0) > now

    def take(self, most: int, most_bytes: int, now: float) -> list[Line]:
        """Lines that may be submitted, at most so many, and of so many bytes, about."""
        found, kept, size = list[Line](), list[tuple[str, Line]](), 0
        for model, line in self._lines:
            if len(found) < most and size <= most_bytes and not self.rests(model, now):
                found.append(line)
                size += len(line.text)
            else:
                kept.append((model, line))
        self._lines = kept
        return found

    def clear(self) -> list[tuple[int, int]]:
        """Hold nothing any more; the places of what was held."""
        places = [*self.places]
        self._lines = []
        return places
