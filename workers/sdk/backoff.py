"""When to try again."""

import math
import random
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from fairlane.workers.protocol import MAX_PAUSE_MS

BASE_S = 0.2
CEILING_S = 30.0
UNREACHABLE_CEILING_S = 2.0
"""If nothing answers: the network or the gateway may be back at any time."""
HEALTHY_S = 30.0


class Backoff:
    """Delays with full jitter: each is uniform between 0 and a bound that doubles from 0.2 s to 30 s, or 2 s if nothing answers.

    The bound falls back only after a connection that was registered for 30 s: one that is accepted and closed
    immediately counts as a failure.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._failures = 0

    def after(
        self, registered_s: float, retry_after_s: float | None = None, ceiling_s: float = CEILING_S
    ) -> float:
        """Return the seconds to wait after a connection that was registered for this time; not less than was requested."""
        if registered_s >= HEALTHY_S:
            self._failures = 0
        bound = min(ceiling_s, BASE_S * 2.0 ** min(self._failures, 10))
        self._failures += 1
        delay = self._rng.uniform(0, bound)
        return delay if retry_after_s is None else retry_after_s + delay

    def after_handover(self, registered_s: float) -> float:
        """The same when the gateway has asked for another connection: immediately, unless that repeats itself."""
        if self._failures == 0 or registered_s >= HEALTHY_S:
            self._failures = 1
            return 0.0
        return self.after(registered_s)


def requested_pause(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds that an answer asks to wait before the next try, from 0 to 3600; None when it does not say.

    `retry-after-ms` (OpenAI, Azure) is the more exact one and counts before `Retry-After`, a number of seconds or a
    date. `headers` finds names in any case.
    """
    exact = _number(headers.get("retry-after-ms"))
    if exact is not None:
        return _bounded(exact / 1000)
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is None and value:
        try:
            moment = parsedate_to_datetime(value)
        except ValueError:
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        seconds = (moment - (now or datetime.now(UTC))).total_seconds()
    return None if seconds is None else _bounded(seconds)


def _number(value: str | None) -> float | None:
    try:
        number = float(value or "nan")
    except ValueError:
        return None
    return None if math.isnan(number) else number


def _bounded(seconds: float) -> float:
    return min(max(seconds, 0.0), MAX_PAUSE_MS / 1000)
