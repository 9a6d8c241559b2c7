"""How much a worker may send: a token bucket, and a count of events per minute. Pure: the time is handed in, in seconds."""

from collections import Counter

MOST_SLOTS = 16
EVENTS = 8
"""Events that a socket may send for each of its frames."""
MIN_PAUSE_S = 0.05
"""Shorter pauses are saved up: each costs a wake-up."""


LOOKS = 32
"""The buckets are looked at each time when such a part of a second's worth has come."""


class Bucket:
    """A token bucket: `rate` a second, a second's worth at once."""

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
        """Go on at another rate, as full or overdrawn as it is."""
        self.take(0, now)
        self._left *= rate / self.rate
        self.rate = rate


class NewNames:
    """How many names the workers of each token may bring that no worker here offers yet: so many a minute, a minute's worth at
    once. The store remembers each for as long.
    """

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._buckets: dict[str, Bucket] = {}

    def take(self, token: str, names: float, now: float) -> bool:
        """Count them; False, and nothing is counted, when they are too many."""
        if not names:
            return True
        minutes = now / 60
        bucket = self._buckets.get(token)
        if bucket is None:
            bucket = self._buckets[token] = Bucket(self._per_minute, minutes)
        if bucket.take(names, minutes) > 0:
            bucket.take(-names, minutes)
            return False
        return True


class Unfinished:
    """Bytes of messages that are not whole yet, which all connections of a token may have on their way here together."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: Counter[str] = Counter()

    def change(self, token: str, more: int) -> bool:
        """Count so many more, or fewer; False: there is no room for more, and they are not counted."""
        if more > 0 and self._held[token] + more > self._most:
            return False
        self._held[token] += more
        return True


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

    What is above that pauses the reading; after `patience_s` of pauses without a rest between, it is a flood. Events are what
    output becomes in the store; more than EVENTS times the frames pause the reading, too, but are no flood: callers ask for them.

    `count` frames of `size` bytes, and `pieces` events, have come since the buckets were looked at: whoever counts by himself
    calls `pause` as soon as one of them reaches its part, `few`, `little` or `least`.
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
        "least",
        "little",
        "pieces",
        "size",
    )

    def __init__(self, frames: float, volume: float, patience_s: float, now: float) -> None:
        self._frames = frames
        self._volume = volume
        self._patience_s = patience_s
        self._overdrawn = 0.0
        self.count = self.size = self.pieces = 0.0
        self._buckets = Bucket(frames, now), Bucket(volume, now), Bucket(frames * EVENTS, now)
        self._fit(1, now)

    def set_slots(self, slots: int, now: float) -> None:
        """More slots may send more frames; bytes and events only up to MOST_SLOTS, as the worker alone says how many it has."""
        if slots != self._slots:
            self._fit(slots, now)

    def _fit(self, slots: int, now: float) -> None:
        few = min(slots, MOST_SLOTS)
        rates = self._frames * slots, self._volume * few, self._frames * few * EVENTS
        self._slots = slots
        for bucket, rate in zip(self._buckets, rates, strict=True):
            bucket.change(rate, now)
        self.few, self.little, self.least = (rate / LOOKS for rate in rates)

    def pause(self, size: int, now: float, count: float = 1) -> float | None:
        """Count a frame of `size` bytes. The seconds to pause before the next one is read; None: it is a flood."""
        self.count += count
        self.size += size
        if self.count < self.few and self.size < self.little and self.pieces < self.least:
            return 0.0  # to be looked at with what follows
        return self.look(now)

    def look(self, now: float) -> float | None:
        """The same for what was counted."""
        frames, volume, pieces = self._buckets
        rest = pieces.take(self.pieces, now)
        rest = rest if rest > MIN_PAUSE_S else 0.0
        wait = max(frames.take(self.count, now), volume.take(self.size, now))
        self.count = self.size = self.pieces = 0.0
        if wait == 0:
            self._overdrawn = 0.0
        elif wait > MIN_PAUSE_S:
            self._overdrawn += wait
            if self._overdrawn > self._patience_s:
                return None
            return max(wait, rest)
        return rest
