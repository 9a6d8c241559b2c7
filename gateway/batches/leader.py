"""Leads batches: takes those that no replica leads, runs them, and renews its leases."""

import asyncio
import contextlib
import time
from collections import Counter

import structlog

from fairlane.gateway.batches.context import Tools
from fairlane.gateway.batches.models import Status
from fairlane.gateway.batches.runner import Runner
from fairlane.gateway.batches.store import Candidate, Overtaken
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.lifecycle import Lifecycle
from fairlane.queues.clock import now_ms
from fairlane.queues.loops import Periodic, cancel_and_wait
from fairlane.queues.metrics import BATCH_ERRORS

log = structlog.get_logger("fairlane.gateway")

LOOK_S = 1.0
MAX_LED_PER_CALLER = 2
"""Batches of one caller that run at the same time; further ones stay `validating` until one has ended."""
MIN_LEASE_MS = 1000
RENEWALS = 4
"""Renewals within one lease. A leader does not rely on the last part of it."""
MAX_LED, MAX_OF_KEY = 50, 25
"""Batches that one process leads, and those of one key among them; the oldest first."""
RELEASE_S = 2.0
REST_S = 10.0
"""A batch that failed unexpectedly is left alone for this time."""


class Leader(Periodic):
    """The batches that one replica leads."""

    name = "batches"
    interval_s = LOOK_S
    expected = (DatabaseUnavailable,)  # which the outbox logs

    def __init__(self, tools: Tools, replica: str, lifecycle: Lifecycle) -> None:
        self._tools = tools
        self._replica = replica
        self._lifecycle = lifecycle
        self._runs: dict[str, Runner] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._rests: dict[str, float] = {}
        self._until = self._renew_at = 0.0
        """Until when the leases hold for sure, and when they are renewed, by the clock of this process."""
        self.wake: asyncio.Event = asyncio.Event()

    async def close(self) -> None:
        """Stop. Submitted lines continue, and another replica takes the batches."""
        await super().close()
        await self._leave()

    def hurry(self) -> None:
        """Look for changes now."""
        self.wake.set()

    async def _leave(self) -> None:
        led = bool(self._tasks)
        await cancel_and_wait(*self._tasks.values())
        if led:
            with contextlib.suppress(DatabaseUnavailable, TimeoutError):
                async with asyncio.timeout(RELEASE_S):
                    await self._tools.store.release(self._replica)

    async def step(self) -> float | None:
        """Renew the leases, learn of cancellations, and take batches that no replica leads."""
        if self._lifecycle.draining:
            await self._leave()
            return None
        began, lease_ms = time.monotonic(), max(self._tools.current.settings.lease_ms, MIN_LEASE_MS)
        if self._runs and began >= self._renew_at:
            await self._renew(began, lease_ms)
        of_key = Counter(run.batch.key_id for run in self._runs.values())
        for one in await self._tools.store.unended(MAX_LED_PER_CALLER, now_ms()):
            run = self._runs.get(one.id)
            if run is not None:
                run.cancelled |= one.status == Status.CANCELLING
            elif len(self._runs) < MAX_LED and of_key[one.key_id] < MAX_OF_KEY and self._may_take(one):
                of_key[one.key_id] += 1
                await self._take(one, lease_ms)
        return min(LOOK_S, lease_ms / 1000 / RENEWALS)

    def _may_take(self, one: Candidate) -> bool:
        if self._rests.get(one.id, 0.0) > time.monotonic():
            return False
        # its own: a run that failed
        return not one.leader or one.leader == self._replica or one.lease < now_ms()

    async def _take(self, one: Candidate, lease_ms: int) -> None:
        began = time.monotonic()
        batch = await self._tools.store.take(one, self._replica, now_ms() + lease_ms)
        if batch is None:
            return
        if not self._runs:  # the first to be renewed sets the time for all
            self._set_lease(began, lease_ms)
        if one.leader:
            log.info("batch taken over", batch=batch.id, replica=self._replica, times=batch.epoch - 1)
        run = self._runs[batch.id] = Runner(self._tools, batch, self._holds)
        self._tasks[batch.id] = asyncio.create_task(self._run(run), name=f"batch {batch.id}")

    def _holds(self) -> bool:
        return time.monotonic() < self._until

    def _set_lease(self, began: float, lease_ms: int) -> None:
        part = lease_ms / 1000 / RENEWALS
        self._until, self._renew_at = began + lease_ms / 1000 - part, began + part

    async def _renew(self, began: float, lease_ms: int) -> None:
        still = await self._tools.store.renew(self._replica, [*self._runs], now_ms() + lease_ms)
        self._set_lease(began, lease_ms)
        for batch_id, run in [*self._runs.items()]:
            if batch_id not in still and not run.batch.ended:
                self._tasks[batch_id].cancel()

    async def _run(self, run: Runner) -> None:
        batch_id = run.batch.id
        try:
            await run()
        except Overtaken:
            pass  # another replica continues
        except Exception:  # its results are kept, and it is taken again
            log.exception("a batch failed and will be retried", batch=batch_id, replica=self._replica)
            self._tools.metrics.count(BATCH_ERRORS)
            self._rests[batch_id] = time.monotonic() + REST_S
        else:
            self._rests.pop(batch_id, None)
            self.hurry()
        finally:
            del self._runs[batch_id], self._tasks[batch_id]
