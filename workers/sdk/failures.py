"""Lines in the worker's log that say why tasks failed: few where they are many, and without what may quote the request."""

import logging
import time
from collections.abc import Callable

from fairlane.queues.logs.rate_limited import RateLimit
from fairlane.queues.logs.redaction import unquoted
from fairlane.workers.sdk.errors import TaskError


class FailureLines:
    """Logs as many failures as a `RateLimit` allows; the next line has the number of those left out. `now` in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._limit = RateLimit(now)
        self._untold = 0

    def tell(self, log: logging.Logger | logging.LoggerAdapter[logging.Logger], error: TaskError) -> None:
        """Write that a task failed with `error`; `log` names the task."""
        if not self._limit.take():
            self._untold += 1
            return
        others = f" ({self._untold} others failed before it)" if self._untold else ""
        self._untold = 0
        log.info("failed with %s: %s%s", error.code, unquoted(error.message), others)
