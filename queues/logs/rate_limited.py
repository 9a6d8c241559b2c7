"""Log lines that could come in thousands: the first ones are written, then a few per second."""

import time
from collections.abc import Callable
from typing import Any

BURST = 20
PER_SECOND = 2.0


class RateLimit:
    """A token bucket: a burst of `burst` events, and `per_second` after them. `now` in seconds."""

    def __init__(
        self, now: Callable[[], float] = time.monotonic, burst: int = BURST, per_second: float = PER_SECOND
    ) -> None:
        self._now = now
        self._burst = burst
        self._per_second = per_second
        self._left = float(burst)
        self._at = now()

    def take(self) -> bool:
        """Return whether another event is allowed now, and count it."""
        now = self._now()
        self._left = min(self._left + (now - self._at) * self._per_second, self._burst)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class RateLimitedLogger:
    """Writes lines of one kind within a `RateLimit`; a line has the number of those that were left out before it."""

    def __init__(
        self, now: Callable[[], float] = time.monotonic, burst: int = BURST, per_second: float = PER_SECOND
    ) -> None:
        self._limit = RateLimit(now, burst, per_second)
        self._left_out = 0

    def log(self, write: Callable[..., Any], event: str, **facts: object) -> None:
        """Write a line with `write`, a logger's method, or count it."""
        if not self._limit.take():
            self._left_out += 1
            return
        if self._left_out:
            facts["and_others_before"] = self._left_out
            self._left_out = 0
        write(event, **facts)
