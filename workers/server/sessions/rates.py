"""How much a worker may send: a token bucket, and a count of events per minute. Pure: the time is handed in, in seconds."""

MAX_SLOTS = 16
MIN_PAUSE_S = 0.05
"""Shorter pauses are saved up: each costs a wake-up."""


class PerMinute:
    """Counts events of the last minute."""

    __slots__ = ("_at", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._at: list[float] = []

    def exceeded(self, now: float) -> bool:
        """Count one more; True when there are too many."""
        self._at.append(now)
        del self._at[: -(self._limit + 1)]
        return len(self._at) > self._limit and now - self._at[0] <= 60


class FrameRate:
    """Watches one socket: at most `frames` frames and `volume` bytes a second for each slot, sustained, with a burst of one
    second's worth. A token bucket holds the time that is left.

    What is above that pauses the reading; after `patience_s` of pauses without a rest between, it is a flood.

    `count` frames of `size` bytes have come since `look` was called: a caller that counts by itself calls it as soon as one of
    them reaches its part, `few` or `little`, which is a 32nd of a second's worth.
    """

    __slots__ = (
        "_at",
        "_frames",
        "_left_s",
        "_overdrawn",
        "_patience_s",
        "_volume",
        "count",
        "few",
        "little",
        "size",
    )

    def __init__(self, frames: float, volume: float, patience_s: float, now: float) -> None:
        self._frames = frames
        self._volume = volume
        self._patience_s = patience_s
        self._overdrawn = 0.0
        self._left_s = 1.0
        self._at = now
        self.count = self.size = 0.0
        self.set_slots(1)

    def set_slots(self, slots: int) -> None:
        """Allow more frames for more slots; bytes only up to MAX_SLOTS, as only the worker says how many it has."""
        self.few = self._frames * slots / 32
        self.little = self._volume * min(slots, MAX_SLOTS) / 32

    def look(self, now: float) -> float | None:
        """Take what was counted. Return the seconds to pause before the next frame is read; None: it is a flood."""
        cost_s = max(self.count / self.few, self.size / self.little) / 32
        self._left_s = min(self._left_s + now - self._at, 1.0) - cost_s
        self._at = now
        self.count = self.size = 0.0
        if self._left_s >= 0:
            self._overdrawn = 0.0
        elif self._left_s < -MIN_PAUSE_S:
            self._overdrawn -= self._left_s
            return None if self._overdrawn > self._patience_s else -self._left_s
        return 0.0
