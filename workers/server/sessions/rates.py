"""How much a worker may send: a token bucket, and a count of events per minute. Pure: the time is handed in, in seconds."""

MAX_SLOTS = 16
MIN_PAUSE_S = 0.05
"""Shorter pauses are saved up: each costs a wake-up."""


LOOKS = 32
"""The buckets are looked at each time when such a part of a second's worth has come."""


class Bucket:
    """A token bucket: `rate` a second, with a burst of one second's worth."""

    __slots__ = ("_at", "_left", "rate")

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._left = rate
        self._at = now

    def take(self, amount: float, now: float) -> float:
        """Take; returns the seconds to wait until the bucket is no more overdrawn."""
        self._left = min(self._left + (now - self._at) * self.rate, self.rate) - amount
        self._at = now
        return max(-self._left / self.rate, 0.0)

    def change(self, rate: float, now: float) -> None:
        """Continue at another rate, as full or overdrawn as it is."""
        self.take(0, now)
        self._left *= rate / self.rate
        self.rate = rate


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
    """Watches one socket: at most `frames` frames and `volume` bytes a second for each slot, sustained.

    What is above that pauses the reading; after `patience_s` of pauses without a rest between, it is a flood.

    `count` frames of `size` bytes have come since the buckets were looked at: a caller that counts by itself calls `look` as soon
    as one of them reaches its part, `few` or `little`.
    """

    __slots__ = (
        "_buckets",
        "_frames",
        "_overdrawn",
        "_patience_s",
        "_slots",
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
        self.count = self.size = 0.0
        self._buckets = Bucket(frames, now), Bucket(volume, now)
        self._fit(1, now)

    def set_slots(self, slots: int, now: float) -> None:
        """Allow more frames for more slots; bytes only up to MAX_SLOTS, as only the worker says how many it has."""
        if slots != self._slots:
            self._fit(slots, now)

    def _fit(self, slots: int, now: float) -> None:
        few = min(slots, MAX_SLOTS)
        rates = self._frames * slots, self._volume * few
        self._slots = slots
        for bucket, rate in zip(self._buckets, rates, strict=True):
            bucket.change(rate, now)
        self.few, self.little = (rate / LOOKS for rate in rates)

    def look(self, now: float) -> float | None:
        """Take what was counted. Return the seconds to pause before the next frame is read; None: it is a flood."""
        frames, volume = self._buckets
        wait = max(frames.take(self.count, now), volume.take(self.size, now))
        self.count = self.size = 0.0
        if wait == 0:
            self._overdrawn = 0.0
        elif wait > MIN_PAUSE_S:
            self._overdrawn += wait
            if self._overdrawn > self._patience_s:
                return None
            return wait
        return 0.0
