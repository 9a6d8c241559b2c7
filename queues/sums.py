"""Few lines in the log for what may happen very often."""

import time
from collections.abc import Callable

AT_ONCE = 20
PER_SECOND = 2.0


class SummedLine:
    """A line at once, then at most one a minute, with the sum.

    `write` is called with what was added up since it was called last, at most every `every_s` seconds.
    """

    def __init__(
        self, write: Callable[[int], None], now: Callable[[], float] = time.monotonic, every_s: float = 60.0
    ) -> None:
        self._write = write
        self._now = now
        self._every_s = every_s
        self._sum = 0
        self._written_at: float | None = None

    def add(self, number: int) -> None:
        self._sum += number
        now = self._now()
        if self._written_at is None or now - self._written_at >= self._every_s:
            self._write(self._sum)
            self._sum, self._written_at = 0, now


class Allowance:
    """Lines of one kind: at most AT_ONCE at once and PER_SECOND after them. `now` in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._left = float(AT_ONCE)
        self._at = now()

    def take(self) -> bool:
        """Whether another line may be written now; it counts as written."""
        now = self._now()
        self._left = min(self._left + (now - self._at) * PER_SECOND, AT_ONCE)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
