"""A line in the log for what may happen very often: one at once, then at most one a minute, with the sum."""

import time
from collections.abc import Callable


class SummedLine:
    """`write` is called with what was added up since it was called last, at most every `every_s` seconds."""

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
