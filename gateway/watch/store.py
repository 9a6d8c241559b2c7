"""Monitors the connection to Redis and its writes: in the log, and for calls that ask."""

import time
from collections.abc import Callable
from typing import Any

import structlog

from fairlane.queues.errors import StoreError
from fairlane.queues.keys import Keys
from fairlane.queues.loops import Periodic
from fairlane.queues.store.link import RedisLink

log = structlog.get_logger("fairlane.gateway")

CHECK_S = 1.0
FIRST_CHECK_S = 0.25
"""Until there was a first connection: an operator waits for the start."""
LOG_INTERVAL_S = 60.0
"""How often the log repeats a lasting problem."""
QUIET_S = 2.0
"""How long no write may have been rejected before Redis counts as accepting writes again."""
MAX_REASONS = 10


class StoreMonitor(Periodic):
    """Checks Redis once a second. The link calls `changed`."""

    name = "store-monitor"
    interval_s, delay_s = CHECK_S, FIRST_CHECK_S
    expected = (StoreError,)

    def __init__(self, link: RedisLink, address: str, keys: Keys, replica: str) -> None:
        """`address`: where Redis is, for operators."""
        self._link = link
        self._probe = keys("probe")
        self._replica = replica
        self._logged_at = 0.0
        self._reasons: set[str] = set()
        self.address = address
        self._starting = True
        self.down_since: float | None = None
        """When the connection was lost, s since 1970; None while there is one."""

    def start(self) -> None:
        """Start before the link does."""
        self.down_since = time.time()
        super().start()

    @property
    def rejects_writes(self) -> bool:
        """Whether Redis is connected and rejects writes."""
        return self._link.up and self._link.write_errors.since is not None

    @property
    def trouble(self) -> str:
        """Return the present problem, for an operator; '' if there is none."""
        if self.down_since is not None:
            down = time.time() - self.down_since
            return f"no connection to Redis ({self.address}) for {down:.0f} s: {self._link.last_error}"
        return f"Redis rejects writes: {self._link.write_errors.why}" if self.rejects_writes else ""

    @property
    def down_ms(self) -> int:
        """Return for how long Redis has been unavailable, or has rejected writes; 0 if it accepts them."""
        since = self.down_since or self._link.write_errors.since
        return 0 if since is None else max(int((time.time() - since) * 1000), 0)

    def state(self) -> dict[str, Any]:
        """Return the address, the connection, whether it accepts writes, since when not (ms), and why, for operators."""
        since, why = self.down_since, self._link.last_error
        if self._link.up:
            since, why = self._link.write_errors.since, self._link.write_errors.why
        return {
            "address": self.address,
            "up": self._link.up,
            "rejectsWrites": self.rejects_writes,
            "since": None if since is None else int(since * 1000),
            "reason": None if since is None else why,
        }

    def changed(self, up: bool, *, stopping: bool) -> None:
        """Note that the connection was made or lost. `stopping`: this gateway closes it."""
        if up:
            since = self.down_since
            quiet = since is None or self._starting
            down = {} if quiet else {"away_s": round(time.time() - (since or 0), 1)}
            self._starting = False
            log.info("connected to Redis", replica=self._replica, address=self.address, **down)
            self.down_since = None
            return
        self.down_since = time.time()
        self._reasons.clear()
        if not stopping:
            self._log(log.warning, "lost the connection to Redis", self._link.last_error)

    def _log(self, write: Callable[..., Any], event: str, reason: str, **more: Any) -> None:
        """Log a problem for the first time with this reason, and again at intervals: Redis may be back, and unusable."""
        news = reason not in self._reasons and len(self._reasons) < MAX_REASONS
        if news or time.time() - self._logged_at >= LOG_INTERVAL_S:
            self._reasons.add(reason)
            self._logged_at = time.time()
            write(event, replica=self._replica, address=self.address, **more, reason=reason)

    async def step(self) -> float:
        if self.down_since is None:
            await self._check_writes()
        elif self._link.last_error or not self._starting:
            event = "no connection to Redis yet" if self._starting else "still no connection to Redis"
            self._log(
                log.warning, event, self._link.last_error, away_s=round(time.time() - self.down_since, 1)
            )
        return FIRST_CHECK_S if self._starting else CHECK_S

    async def _check_writes(self) -> None:
        rejections = self._link.write_errors
        if rejections.since is None:
            return
        for_s = round(time.time() - rejections.since, 1)
        self._log(log.error, "Redis rejects writes", rejections.why, for_s=for_s)
        await self._link.command("SET", self._probe, "1", "PX", 1000)
        if time.time() - rejections.latest >= QUIET_S:
            log.info("Redis accepts writes again", replica=self._replica, address=self.address, for_s=for_s)
            self._reasons.clear()
            rejections.clear()
