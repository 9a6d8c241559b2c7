"""Points in time as people write them in commands."""

import datetime
import re

from fairlane.gateway.process.asking import stop
from fairlane.queues.clock import now_ms

UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
DURATION = re.compile(r"(\d{1,6})(s|m|h|d)")


def read_time(name: str, text: str, *, otherwise: str = "") -> int:
    """A point in time, ms; a sentence ends the command where `text` is none. `otherwise`: what it may be besides, for that."""
    if duration := DURATION.fullmatch(text):
        return now_ms() + int(duration[1]) * UNITS_MS[duration[2]]
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        stop(
            f"{name} must be a time from now such as 12h or 30d, or a date or time such as 2027-01-31 or 2027-01-31T22:00 "
            f"(UTC){otherwise}; got {text!r}"
        )
    return int((found if found.tzinfo else found.replace(tzinfo=datetime.UTC)).timestamp() * 1000)
