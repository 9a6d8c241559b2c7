"""Says what is wrong with Redis for as long as it is: in the log, and to whoever asks."""

import asyncio
import time
from typing import Any

import structlog

from fairlane.gateway.errors import ApiError, store_unavailable
from fairlane.queues.errors import StoreError
from fairlane.queues.keys import Keys
from fairlane.queues.loops import cancel_and_wait, run_periodically
from fairlane.queues.store.link import RedisLink

log = structlog.get_logger("fairlane.gateway")

LOOK_S = 1.0
FIRST_LOOK_S = 0.25
"""Until there was a first connection: who starts a gateway waits for a word."""
AGAIN_S = 60.0
"""How often the log repeats what lasts."""
QUIET_S = 2.0
"""No write was refused for so long, and one was taken: it is over."""
MAX_REASONS = 10


class StoreWatch:
    """Looks once a second. `start` begins it, `close` ends it; the link tells `changed`."""

    def __init__(self, link: RedisLink, address: str, keys: Keys, replica: str) -> None:
        """`address`: where Redis is, for operators."""
        self._link = link
        self._probe = keys("probe")
        self._replica = replica
        self._task: asyncio.Task[None] | None = None
        self._refused_since: float | None = None
        self._told_at = 0.0
        self._reasons: set[str] = set()
        self.address = address
        self._starting = True
        self.down_since: float | None = None
        """When the connection was lost, s since 1970; None while there is one."""

    def start(self) -> None:
        """Begin, before the link does."""
        self.down_since = time.time()
        self._task = run_periodically(
            "store-watch", LOOK_S, self._watch, expected=(StoreError,), delay_s=FIRST_LOOK_S
        )

    async def close(self) -> None:
        """End."""
        await cancel_and_wait(self._task)

    @property
    def refuses(self) -> bool:
        """Whether Redis is there, and takes no writes."""
        return self._link.up and self._link.write_errors.since is not None

    @property
    def refusal(self) -> str:
        """What Redis last said when it took no write; '' when it has taken all."""
        return self._link.write_errors.why

    @property
    def trouble(self) -> str:
        """What is wrong now, for an operator; '' when nothing is."""
        if self.down_since is not None:
            away = time.time() - self.down_since
            return f"no connection to Redis ({self.address}) for {away:.0f} s: {self._link.last_error}"
        return f"Redis refuses writes: {self._link.write_errors.why}" if self.refuses else ""

    @property
    def down_ms(self) -> int:
        """How long Redis has been away; 0 when it is there."""
        return 0 if self.down_since is None else max(int((time.time() - self.down_since) * 1000), 0)

    def unavailable(self) -> ApiError:
        """The answer while Redis is away."""
        return store_unavailable(self.down_ms)

    def changed(self, up: bool, *, stopping: bool) -> None:
        """The connection is there, or lost. `stopping`: this gateway closes it."""
        if up:
            since = self.down_since
            quiet = since is None or self._starting
            away = {} if quiet else {"away_s": round(time.time() - (since or 0), 1)}
            self._starting = False
            log.info("connected to Redis", replica=self._replica, address=self.address, **away)
            self.down_since = None
            return
        self.down_since = time.time()
        self._reasons.clear()
        if not stopping:
            self._tell("lost the connection to Redis")

    def _tell(self, event: str, **more: Any) -> None:
        why = self._link.last_error
        log.warning(event, replica=self._replica, address=self.address, **more, reason=why)
        self._told_at = time.time()
        if len(self._reasons) < MAX_REASONS:
            self._reasons.add(why)

    async def _watch(self) -> float:
        if self.down_since is not None:
            self._look_at_connection(self.down_since)
        else:
            await self._look_at_writes()
        return FIRST_LOOK_S if self._starting else LOOK_S

    def _look_at_connection(self, since: float) -> None:
        """Say it again now and then, and at once when the reason is a new one: Redis may be back, and unfit."""
        if self._starting and not self._link.last_error:
            return
        now = time.time()
        news = self._link.last_error not in self._reasons and len(self._reasons) < MAX_REASONS
        if news or now - self._told_at >= AGAIN_S:
            event = "no connection to Redis yet" if self._starting else "still no connection to Redis"
            self._tell(event, away_s=round(now - since, 1))

    async def _look_at_writes(self) -> None:
        refusals, now = self._link.write_errors, time.time()
        if refusals.since is not None:
            lasts = {
                "replica": self._replica,
                "address": self.address,
                "for_s": round(now - refusals.since, 1),
            }
            if self._refused_since is None or now - self._told_at >= AGAIN_S:
                self._refused_since, self._told_at = refusals.since, now
                log.error("Redis refuses writes", **lasts, reason=refusals.why)
            await self._link.command("SET", self._probe, "1", "PX", 1000)
            if now - refusals.latest >= QUIET_S:
                log.info("Redis takes writes again", **lasts)
                self._refused_since = None
                refusals.clear()
