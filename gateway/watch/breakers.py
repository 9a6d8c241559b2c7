"""Logs and counts each change of a circuit breaker, at one replica."""

import structlog

from fairlane.queues.logs.rate_limited import RateLimitedLogger
from fairlane.queues.metrics import BREAKER_CHANGES, Recorder

log = structlog.get_logger("fairlane.tasks")

PROBES = "probing"


class Breakers:
    """See the module. `me`: this replica; the scripts choose the one that logs a change: the owner of the task that caused it."""

    def __init__(self, me: str, metrics: Recorder) -> None:
        self._me = me
        self._metrics = metrics
        self._lines = RateLimitedLogger()

    def became(self, model: str, upstream: str, what: str, why: str, ms: int, by: str) -> None:
        """Log and count that a breaker is `open` for `ms`, `closed`, or lets a task probe its upstream (`probing`)."""
        if by != self._me:
            return
        self._metrics.count(BREAKER_CHANGES, model, upstream, what)
        about = {"model": model, "upstream": upstream}
        if what == "open":
            self._lines.log(log.warning, "breaker opened", **about, reason=why, open_ms=ms)
        elif what == PROBES:
            self._lines.log(log.info, "breaker probes its upstream", **about)
        else:
            self._lines.log(log.info, "breaker closed", **about, **({"reason": why} if why else {}))
