"""What one replica counted, rolled up over a minute, ten minutes and an hour, until the store has it. Pure."""

from dataclasses import dataclass, field

from fairlane.web.history.buckets import Bucket
from fairlane.web.history.ranges import MINUTE_MS, ROLLED

MOST_ROLLED = 100
"""Models, queues or workers that keep their names in one bucket of one replica: so it takes some 40 kB at most."""


@dataclass(slots=True)
class Roll:
    """A replica's part of a longer bucket."""

    step: int
    at: int
    source: str
    """Names this part. A part is told as a whole, again and again as it grows: the last telling holds."""
    bucket: Bucket = field(default_factory=Bucket)
    told: bool = False


class Rolls:
    """The parts of one replica that may still grow, or are not told yet.

    They grow by whole minutes, so that each is told once a minute.
    """

    def __init__(self, replica: str) -> None:
        self._replica = replica
        self._minute = Bucket()
        self._minute_at = 0
        self._open: dict[tuple[int, int], Roll] = {}
        self._opened = 0

    def add(self, at: int, bucket: Bucket) -> None:
        """Count what happened from `at` on, for less than a minute."""
        at -= at % MINUTE_MS
        if at != self._minute_at:
            self._close_minute()
            self._minute_at = at
        self._minute.merge(bucket, MOST_ROLLED)

    def due(self, now: int, *, ending: bool = False) -> list[Roll]:
        """What is to be told, oldest first; the minute that is not over only when the replica ends."""
        if ending or self._minute_at + MINUTE_MS <= now:
            self._close_minute()
        for (step, at), roll in list(self._open.items()):
            if (roll.told and at + step <= now) or at + ROLLED[step] <= now:
                del self._open[step, at]
        return sorted((roll for roll in self._open.values() if not roll.told), key=lambda roll: roll.at)

    def untold(self, step: int, at: int) -> Roll | None:
        """The part of the bucket that began at `at`, as far as the store may not have it."""
        roll = self._open.get((step, at))
        return None if roll is None or roll.told else roll

    def _close_minute(self) -> None:
        """Add the minute to each longer bucket that it belongs to."""
        minute, self._minute = self._minute, Bucket()
        minute.users = {}  # who it was is known for an hour
        if minute.empty:
            return
        for step in ROLLED:
            key = step, self._minute_at - self._minute_at % step
            roll = self._open.get(key)
            if roll is None:
                self._opened += (
                    1  # never the same name again: the clock may go back to a bucket that was over
                )
                roll = self._open[key] = Roll(*key, f"{self._replica}.{self._opened}")
            roll.bucket.merge(minute, MOST_ROLLED)
            roll.told = False
