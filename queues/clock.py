"""The time of day, as records, events and answers have it."""

import time


def now_ms() -> int:
    """Since 1970, by the clock of this host. Redis's clock decides whatever replicas must agree on."""
    return time.time_ns() // 1_000_000
