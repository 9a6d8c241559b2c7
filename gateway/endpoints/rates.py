"""What an endpoint takes: windows, and Q = C / T. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


class Window(NamedTuple):
    """At most so many requests within any such time, ms."""

    most: int
    ms: int

    @property
    def per_second(self) -> float:
        """What it lets through in the long run."""
        return self.most * 1000 / self.ms


def read_window(text: str) -> Window:
    """The window of a text such as `50/1s`. Raises ValueError."""
    most, slash, time = text.partition("/")
    digits = time.rstrip("msh")
    unit = _UNITS.get(time[len(digits) :])
    if not slash or not most.isdecimal() or not digits.isdecimal() or unit is None or not int(digits):
        raise ValueError(f"{text[:40]!r} is no window such as 50/1s")
    return Window(int(most), int(digits) * unit)


def per_second(slots: int, mean_ms: float | None, windows: Sequence[str]) -> float | None:
    """Q: requests a second that an endpoint takes in the long run: C / T of `slots` that take `mean_ms` each, or what its
    narrowest window lets through, whichever is less. None: neither is known."""
    found = [read_window(text).per_second for text in windows]
    if slots and mean_ms:
        found.append(slots * 1000 / mean_ms)
    return min(found, default=None)
