"""Whether Redis rejects writes: it answers, but its memory or its disk is full, or too few replicas follow it."""

import time
from collections.abc import Callable

from redis.exceptions import OutOfMemoryError

_PREFIXES = ("OOM", "MISCONF", "NOREPLICAS")


class WriteErrors:
    """The errors with which Redis rejects writes; `since` and `why` hold until `clear`."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self.since: float | None = None
        """The first write that was refused, s since 1970; None: Redis takes writes, as far as is known."""
        self.latest = 0.0
        """The last one, s since 1970."""
        self.why = ""
        """What Redis answered."""

    def add(self, error: Exception) -> None:
        """A command was answered with this error. Others than refused writes are passed over."""
        text = f"OOM {error}" if isinstance(error, OutOfMemoryError) else str(error)  # redis-py takes it off
        if not text.startswith(_PREFIXES):
            return
        self.latest = self._now()
        if self.since is None:
            self.since = self.latest
        self.why = text.partition(" script: ")[0]

    def clear(self) -> None:
        """Redis takes writes."""
        self.since = None
