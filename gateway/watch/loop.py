"""Watches the event loop: how late it comes to a timer, and how often it stood still for long.

While the loop stands still nobody is served: no token, no keep-alive, no health check. Either the gateway itself computes for too
long (then a request or a setting is at fault), or it does not get the processor (then the machine is).
"""

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

import structlog

from fairlane.queues.metrics import LOOP_STALLS, Recorder

log = structlog.get_logger("fairlane.gateway")

TICK_S = 0.05
"""The pause between two looks; a look costs a few microseconds. A standstill may be longer by this than what is seen of it."""
STALL_S = 0.25
"""Being late by more is a stall: it is counted and logged. A caller notices it."""
WINDOW_S = 30.0
"""The longest lag is told of at least so long, and at most twice: longer than the pause between two scrapes."""
LOG_EVERY_S = 10.0
"""Stalls that follow one that was logged are summed for so long."""


class Summary(NamedTuple):
    """The stalls of one log line. Durations in whole ms."""

    stalls: int
    longest_ms: int
    total_ms: int
    computing_ms: int
    """How much of the total the loop's thread was computing; the rest it waited, for the processor or for a system call."""


class Lag:
    """What is known of the loop's lag. Pure: time is an argument, in seconds of any clock that only grows."""

    def __init__(self, now: float) -> None:
        self._window_began = now
        self._longest = self._longest_before = 0.0
        self._untold = Summary(0, 0, 0, 0)
        self._told_at = now - LOG_EVERY_S

    @property
    def longest_s(self) -> float:
        """The longest lag of this window and the one before."""
        return max(self._longest, self._longest_before)

    def seen(self, now: float, late_s: float, computed_s: float) -> bool:
        """Take note that a look came so late, and how much was computed since the one before; whether that is a stall."""
        if now - self._window_began >= WINDOW_S:
            self._longest, self._longest_before = 0.0, self._longest
            self._window_began = now
        self._longest = max(self._longest, late_s)
        if late_s <= STALL_S:
            return False
        stalls, longest, total, computing = self._untold
        late_ms = round(late_s * 1000)
        computed_ms = min(round(computed_s * 1000), late_ms)
        self._untold = Summary(stalls + 1, max(longest, late_ms), total + late_ms, computing + computed_ms)
        return True

    def news(self, now: float, *, last: bool = False) -> Summary | None:
        """What a log line must say now, each stall once; None: nothing yet. `last`: no later line will say it."""
        if not self._untold.stalls or (now - self._told_at < LOG_EVERY_S and not last):
            return None
        told, self._untold = self._untold, Summary(0, 0, 0, 0)
        self._told_at = now
        return told


class LoopWatch:
    """The timer of one event loop. `start` it in the loop, `close` it there; whoever made it owns it."""

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
        self._lag = Lag(clock())
        self._timer: asyncio.TimerHandle | None = None
        self._due = self._computed_before = 0.0

    @property
    def longest_s(self) -> float:
        """The longest lag within the last half minute to minute, seconds."""
        return self._lag.longest_s

    def start(self) -> None:
        self._due = self._clock() + TICK_S
        self._computed_before = self._computed()
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def close(self) -> None:
        """Stop, and say what was not yet said. A second call does nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._say(self._lag.news(self._clock(), last=True))

    def _tick(self) -> None:
        now, computed_s = self._clock(), self._computed() - self._computed_before
        if self._lag.seen(now, now - self._due, computed_s):
            self._metrics.count(LOOP_STALLS, "computing" if computed_s > STALL_S else "waiting")
        self._say(self._lag.news(now))
        self.start()

    def _say(self, news: Summary | None) -> None:
        if news is not None:
            log.warning("the event loop stood still", replica=self._replica, **news._asdict())
