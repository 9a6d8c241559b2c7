"""What an endpoint takes: Q = C / T, or what its windows let through. Pure."""

from fairlane.queues.windows import read_windows


def per_second(slots: int, mean_ms: float | None, windows: str) -> float | None:
    """Q: requests a second that an endpoint takes in the long run: C / T of `slots` that take `mean_ms` each, or what its
    narrowest window lets through, whichever is less. None: neither is known."""
    found = [window.requests * 1000 / window.ms for window in read_windows(windows)] if windows else []
    if slots and mean_ms:
        found.append(slots * 1000 / mean_ms)
    return min(found, default=None)
