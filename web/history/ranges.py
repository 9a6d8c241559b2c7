"""How far back one can look, and how finely."""

from dataclasses import dataclass

SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

BUCKET_MS = 10 * SECOND_MS
"""What each replica counts in one piece."""
FINE_MS = HOUR_MS
"""How long those pieces are kept."""


@dataclass(frozen=True, slots=True)
class Range:
    """So long, in buckets so wide: at most 360 of them."""

    span_ms: int
    step_ms: int

    def times(self, until: int) -> range:
        """When its buckets began, as told until then. The newest one may not be over."""
        end = -(-until // self.step_ms) * self.step_ms
        return range(end - self.span_ms, end, self.step_ms)


RANGES = {
    "15m": Range(15 * MINUTE_MS, BUCKET_MS),
    "1h": Range(FINE_MS, BUCKET_MS),
    "6h": Range(6 * HOUR_MS, MINUTE_MS),
    "24h": Range(DAY_MS, 10 * MINUTE_MS),
    "7d": Range(7 * DAY_MS, HOUR_MS),
}
ROLLED = {kept.step_ms: kept.span_ms for kept in RANGES.values() if kept.step_ms > BUCKET_MS}
"""Width of the buckets that are rolled up -> how long they are kept."""
