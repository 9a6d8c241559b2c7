"""Lines that cannot be submitted now, and of what nothing is, for a while. Pure: times are handed in, in seconds.

Lines are held by what they wait for: a model, what their caller can pay, or anything. Behind a rest one line of them tries it
first; the others follow when it was taken.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from fairlane.gateway.batches.batch import Whys
from fairlane.gateway.batches.splitting import Line

LEAST_REST_S, MOST_REST_S = 1.0, 60.0
"""A limit may be raised meanwhile."""
MOST_RESTS = 1000
MOST_HELD = 5000
"""Lines that wait for a model that cannot be had, or for money, before those behind them wait, too."""
HELD_BYTES = 4 << 20
"""Of lines that wait to be submitted again, or are to be submitted at the same time: then no further ones are read."""
MODELS_TOLD = 10


class For(NamedTuple):
    """What lines wait for."""

    model: str = ""
    """'' = it is not for a model."""
    money: bool = False


ANYTHING: Final = For()
"""While that rests nothing is submitted at all."""
MONEY: Final = For(money=True)
"""What a line would cost is more than there is. Another one may cost less."""


class Held:
    """Of one batch."""

    def __init__(self) -> None:
        self._lines: dict[For, deque[Line]] = {}
        self._rests: dict[For, float] = {}
        """Until when nothing is submitted that waits for it."""
        self._codes: dict[For, str] = {}
        """Why, until something was taken of it."""
        self._number = 0
        self.bytes = 0

    def __len__(self) -> int:
        return self._number

    @property
    def places(self) -> Iterator[tuple[int, int]]:
        """The numbers of the lines, and where they begin."""
        return ((line.number, line.offset) for lines in self._lines.values() for line in lines)

    @property
    def whys(self) -> Whys:
        """Why lines are held: codes, with their models."""
        found: dict[str, list[str]] = {}
        for of, code in self._codes.items():
            if of == ANYTHING or of in self._lines:
                models = found.setdefault(code, [])
                if of.model and len(models) < MODELS_TOLD:
                    models.append(of.model)
        return {code: sorted(found[code]) for code in sorted(found)}

    def add(self, line: Line, of: For = ANYTHING, *, first: bool = False) -> None:
        """Hold a line."""
        lines = self._lines.setdefault(of, deque())
        if first:
            lines.appendleft(line)
        else:
            lines.append(line)
        self._number += 1
        self.bytes += len(line.text)

    def rest(self, of: For, seconds: float, code: str, now: float) -> None:
        """Submit nothing that waits for it, for a while."""
        if len(self._rests) > MOST_RESTS:
            self._rests = {one: until for one, until in self._rests.items() if until > now}
            self._codes = {one: code for one, code in self._codes.items() if one in self._rests}
        self._rests[of] = now + min(max(seconds, LEAST_REST_S), MOST_REST_S)
        self._codes[of] = code

    def rests(self, of: For, now: float) -> bool:
        """Whether nothing that waits for it is submitted now."""
        return self._rests.get(of, 0.0) > now

    def goes_on(self, of: For, now: float) -> None:
        """Something that may have waited for it was taken."""
        if not self.rests(of, now):
            self._codes.pop(of, None)

    @property
    def doubtful(self) -> bool:
        """Whether anything is taken at all is not known: it is tried with one line."""
        return ANYTHING in self._codes

    def take(self, most: int, most_bytes: int, now: float) -> list[tuple[For, Line]]:
        """Lines that may be submitted, with what they waited for, at most so many, and of so many bytes, about: of all that they
        wait for in turns."""
        found, size = list[tuple[For, Line]](), 0
        open_ones = [of for of in self._lines if not self.rests(of, now)]
        while open_ones and len(found) < most and size <= most_bytes:
            of = open_ones.pop(0)
            lines = self._lines[of]
            line = lines.popleft()
            found.append((of, line))
            size += len(line.text)
            self._number -= 1
            self.bytes -= len(line.text)
            if not lines:
                del self._lines[of]
            elif of not in self._codes:  # else it is tried with one
                open_ones.append(of)
        return found

    def clear(self) -> list[tuple[int, int]]:
        """Hold nothing any more; the places of what was held."""
        places = [*self.places]
        self._lines, self._codes, self._number, self.bytes = {}, {}, 0, 0
        return places
