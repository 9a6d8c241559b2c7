"""Monitors the connection to Redis and its writes: in the log, and for calls that ask."""

import time
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
        self._rejected_since: float | None = None
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
            self._log("lost the connection to Redis")

    def _log(self, event: str, **more: Any) -> None:
        reason = self._link.last_error
        log.warning(event, replica=self._replica, address=self.address, **more, reason=reason)
        self._logged_at = time.time()
        if len(self._reasons) < MAX_REASONS:
            self._reasons.add(reason)

    async def step(self) -> float:
        if self.down_since is not None:
            self._check_connection(self.down_since)
        else:
            await self._check_writes()
        return FIRST_CHECK_S if self._starting else CHECK_S

    def _check_connection(self, since: float) -> None:
        """Log a lost connection again at intervals, and immediately for a new reason: Redis may be back, and unusable."""
        if self._starting and not self._link.last_error:
            return
        now = time.time()
        news = self._link.last_error not in self._reasons and len(self._reasons) < MAX_REASONS
        if news or now - self._logged_at >= LOG_INTERVAL_S:
            event = "no connection to Redis yet" if self._starting else "still no connection to Redis"
            self._log(event, away_s=round(now - since, 1))

    async def _check_writes(self) -> None:
        rejections, now = self._link.write_errors, time.time()
        if rejections.since is None:
            return
        facts = {"replica": self._replica, "address": self.address, "for_s": round(now - rejections.since, 1)}
        if self._rejected_since is None or now - self._logged_at >= LOG_INTERVAL_S:
            self._rejected_since, self._logged_at = rejections.since, now
            log.error("Redis rejects writes", **facts, reason=rejections.why)
        await self._link.command("SET", self._probe, "1", "PX", 1000)
        if now - rejections.latest >= QUIET_S:
            log.info("Redis accepts writes again", **facts)
            self._rejected_since = None
            rejections.clear()
