"""Windows of a model: how many requests its target may see within a time. Pure: how they are written, and what they mean.

`50/1s, 1000/1m` is two windows: 50 within any second, 1,000 within any minute. The scripts read the same text
(pacing.lua) and keep the promise.
"""

import re
from dataclasses import dataclass

MAX_WINDOWS = 3
MAX_REQUESTS = 10_000
"""Within one window: each that counts is remembered by itself."""
MIN_MS, MAX_MS = 10, 86_400_000

UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_WINDOW = re.compile(r"\s*([0-9]{1,9})\s*/\s*([0-9]{1,9})\s*(ms|s|m|h)\s*")


@dataclass(frozen=True, slots=True)
class Window:
    """At most `requests` within any time of `ms`."""

    requests: int
    ms: int


def read_windows(text: str) -> tuple[Window, ...]:
    """The windows of a text. Raises ValueError: what the text should be."""
    found: list[Window] = []
    for part in text.split(","):
        match = _WINDOW.fullmatch(part)
        if match is None:
            raise ValueError("should be like `50/1s` or `50/1s, 1000/1m` (ms, s, m or h)")
        window = Window(int(match[1]), int(match[2]) * UNITS[match[3]])
        if not 1 <= window.requests <= MAX_REQUESTS:
            raise ValueError(f"should hold 1 to {MAX_REQUESTS:,} requests in each window")
        if not MIN_MS <= window.ms <= MAX_MS:
            raise ValueError("should have windows of 10ms to 24h")
        if window.ms in [other.ms for other in found]:
            raise ValueError("should have one window of each length")
        found.append(window)
    if len(found) > MAX_WINDOWS:
        raise ValueError(f"should have at most {MAX_WINDOWS} windows")
    return tuple(found)
