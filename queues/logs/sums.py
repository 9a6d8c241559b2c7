"""Few lines in the log for what may happen very often."""

import time
from collections.abc import Callable
from typing import Any

AT_ONCE = 20
PER_SECOND = 2.0
EVERY_S = 60.0


class SummedLine:
    """A line at once, then at most one a minute: `write` is called with what was added up since it was called last."""

    def __init__(self, write: Callable[[int], None], now: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._now = now
        self._sum = 0
        self._written_at: float | None = None

    def add(self, number: int) -> None:
        self._sum += number
        now = self._now()
        if self._written_at is None or now - self._written_at >= EVERY_S:
            self._write(self._sum)
            self._sum, self._written_at = 0, now


class Allowance:
    """Lines of one kind: at most `at_once` at once and PER_SECOND after them. `now` in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic, at_once: int = AT_ONCE) -> None:
        self._now = now
        self._at_once = at_once
        self._left = float(at_once)
        self._at = now()

    def take(self) -> bool:
        """Whether another line may be written now; it counts as written."""
        now = self._now()
        self._left = min(self._left + (now - self._at) * PER_SECOND, self._at_once)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class FewLines:
    """Lines of one kind, as many as an `Allowance` lets through; the next one says how many were left out before it."""

    def __init__(self, now: Callable[[], float] = time.monotonic, at_once: int = AT_ONCE) -> None:
        self._allowance = Allowance(now, at_once)
        self._untold = 0

    def tell(self, write: Callable[..., Any], event: str, **facts: object) -> None:
        """Write a line with `write`, a logger's method, or count it."""
        if not self._allowance.take():
            self._untold += 1
            return
        if self._untold:
            facts["and_others_before"] = self._untold
            self._untold = 0
        write(event, **facts)
