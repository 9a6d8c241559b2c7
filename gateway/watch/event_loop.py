"""Monitors the event loop: its lag, and its stalls.

While the loop is blocked, no client is served: no token, no keep-alive, no health check. Either the gateway itself computes for
too long, because of a request or a setting, or the process does not get the processor.
"""

import asyncio
import time
from collections.abc import Callable

import structlog

from fairlane.queues.logs.rate_limited import RateLimitedLogger
from fairlane.queues.metrics import LOOP_STALLS, Recorder

log = structlog.get_logger("fairlane.gateway")

TICK_S = 0.05
"""The time between two checks. A stall can be longer than its lag by this."""
STALL_S = 0.25
"""A longer lag is a stall: it is counted and logged."""
WINDOW_S = 30.0
"""The longest lag is reported for one to two windows: longer than the time between two scrapes."""


class EventLoopMonitor:
    """Checks in short intervals how late its own timer is. `start` and `close` it in the loop."""

    def __init__(
        self,
        metrics: Recorder,
        replica: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        computed: Callable[[], float] = time.thread_time,
    ) -> None:
        self._metrics = metrics
        self._replica = replica
        self._clock = clock
        self._computed = computed
        self._logger = RateLimitedLogger(clock, burst=1, per_second=0.1)
        self._timer: asyncio.TimerHandle | None = None
        self._due = self._computed_before = 0.0
        self._window_began = clock()
        self._longest = self._longest_before = 0.0

    @property
    def longest_s(self) -> float:
        """The longest lag of this window and the one before, in seconds."""
        return max(self._longest, self._longest_before)

    def start(self) -> None:
        self._due = self._clock() + TICK_S
        self._computed_before = self._computed()
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def close(self) -> None:
        """Stop. A second call does nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        now = self._clock()
        self.check(now, now - self._due, self._computed() - self._computed_before)
        self.start()

    def check(self, now: float, late_s: float, computed_s: float) -> None:
        """Record a lag, and the processor time of the loop's thread within it."""
        if now - self._window_began >= WINDOW_S:
            self._longest, self._longest_before = 0.0, self._longest
            self._window_began = now
        self._longest = max(self._longest, late_s)
        if late_s > STALL_S:
            self._metrics.count(LOOP_STALLS, "computing" if computed_s > STALL_S else "waiting")
            late_ms = round(late_s * 1000)
            self._logger.log(
                log.warning,
                "the event loop stalled",
                replica=self._replica,
                late_ms=late_ms,
                computing_ms=min(round(computed_s * 1000), late_ms),
            )
