"""What a replica does again and again: says what its workers offer, keeps leases, sweeps, and looks at the time limits."""

import asyncio
import random
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from fairlane.queues.errors import StoreError, StoreUnavailable
from fairlane.streaming.hub import Hub
from fairlane.workers.server.attempt import Attempt, Phase
from fairlane.workers.server.pool import RETRY_REST_MS

if TYPE_CHECKING:
    from fairlane.workers.server.dispatch import Dispatcher

log = structlog.get_logger("fairlane.workers")

RENEW_S = 5.0
TICK_S = 1.0
OFFER_S = 5.0
OFFER_HOLD_MS = 15_000
MISSED_ACKS = 3


class Upkeep:
    """See the module. `start` begins it, `close` ends it; a round that fails is tried again."""

    def __init__(self, dispatcher: "Dispatcher", hub: Hub) -> None:
        self._dispatcher = dispatcher
        self._hub = hub
        self._scheduler = dispatcher.scheduler
        self._task: asyncio.Task[None] | None = None
        self._nudge = asyncio.Event()
        self._rng = random.Random()  # noqa: S311 - spreads load only
        self._offered: set[str] = set()
        self._offer_due = 0.0
        limits = self._scheduler.limits
        self._renew_s = min(RENEW_S, limits.lease_ms / 3000)
        self._tick_s = min(TICK_S, self._renew_s / 2, limits.grant_ms / 3000)

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._keep_up(), name="dispatch-upkeep")

    async def close(self) -> None:
        """End."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # ---- offers ----------

    def offer_soon(self) -> None:
        """Tell the other replicas at the next opportunity what is offered here."""
        self._offer_due = 0.0
        self._nudge.set()

    def offer(self) -> None:
        """Say what is offered, in order before whatever is asked next."""
        try:
            self._tell().add_done_callback(observe)
        except StoreUnavailable:
            self.offer_soon()

    def _tell(self) -> asyncio.Future[Any]:
        dispatcher = self._dispatcher
        models = set() if dispatcher.draining else dispatcher.pool.models()
        withdrawn = self._offered - models
        workers = msgspec.json.encode(dispatcher.presence())
        reply = self._scheduler.offer(
            sorted(models), sorted(withdrawn), workers, OFFER_HOLD_MS, dispatcher.settings.no_worker_grace_ms
        )
        self._offered = models
        self._offer_due = dispatcher.time() + OFFER_S
        return reply

    # ---- rounds ----------

    async def _keep_up(self) -> None:
        """Offer, renew, sweep: in this order, so that what lives is not swept after an outage."""
        while True:
            wait = self._tick_s
            try:
                if self._dispatcher.time() >= self._offer_due:
                    await self._tell()
                await self._renew()
                next_ms, looked = await self._scheduler.sweep()
                wait = 0.0 if looked >= 100 else min(next_ms / 1000 + 0.002, self._tick_s)
            except StoreError:
                wait = 0.2  # again when it answers
            except Exception:  # upkeep must go on: what failed is tried again in a second
                log.exception("upkeep failed")
            try:
                self.check_limits()
            except Exception:  # the same: leases must be renewed whatever happens here
                log.exception("checking time limits failed")
            try:
                async with asyncio.timeout(wait * self._rng.uniform(0.95, 1.0)):
                    await self._nudge.wait()
            except TimeoutError:
                pass
            self._nudge.clear()

    async def _renew(self) -> None:
        now = self._dispatcher.time()
        held = [
            a for a in self._dispatcher.attempts.values() if a.held and now - a.renewed_at >= self._renew_s
        ]
        alive = self._hub.keeping_alive(now)
        for at in range(0, max(len(held), 1), 500):
            batch = held[at : at + 500]
            if not batch and not alive:
                return
            replies = await self._scheduler.renew(
                [(a.grant, a.worker.id, a.phase is not Phase.SENT, a.output_tokens) for a in batch],
                alive if at == 0 else (),
            )
            for attempt, reply in zip(batch, replies, strict=True):
                if reply == 1:
                    attempt.renewed_at = now
                elif attempt.held and attempt.phase is not Phase.FINISHING:
                    attempt.stop("client" if reply == 2 else "superseded")

    def check_limits(self) -> None:
        """Local time limits of attempts and workers."""
        dispatcher = self._dispatcher
        settings, now = dispatcher.settings, dispatcher.time()
        dead_after = settings.dead_after_ms / 1000
        for worker in dispatcher.pool:
            if worker.version >= 2 and now - worker.heard_at > dead_after:
                worker.close(1011, "silent for too long")
        for attempt in list(dispatcher.attempts.values()):
            worker = attempt.worker
            if attempt.phase is Phase.SENT and attempt.waits_for_ack(now, settings.ack_ms / 1000):
                worker.missed_acks += 1
                attempt.unacknowledged()
                dispatcher.hold(worker, RETRY_REST_MS)
                if worker.missed_acks >= MISSED_ACKS:
                    worker.close(4408, "three tasks in a row were not acknowledged")
            elif attempt.phase is Phase.RUNNING:
                self._check_output(attempt, now)
            elif attempt.phase is Phase.STOPPING:
                late = now - (attempt.stop_until - dispatcher.stop_grace_s)
                if now > attempt.stop_until:
                    worker.close(1011, "did not stop a cancelled task")
                elif worker.version >= 2 and late > settings.cancel_grace_ms / 1000 + 2:
                    worker.suspended = True

    def _check_output(self, attempt: Attempt, now: float) -> None:
        limits = self._dispatcher.settings.output_limits.get(attempt.grant.model)
        if limits is None:
            return
        if not attempt.writer.has_output:
            if limits.first_output_ms and now - attempt.started_at > limits.first_output_ms / 1000:
                text = "The model did not begin to answer in time"
                attempt.fail("FIRST_OUTPUT_TIMEOUT", text, retryable=False, stop="timeout")
        elif limits.silence_ms and now - attempt.output_at > limits.silence_ms / 1000:
            attempt.fail("SILENCE_TIMEOUT", "The model stopped answering", retryable=False, stop="timeout")


def observe(reply: asyncio.Future[Any]) -> None:
    """Take note of a reply that nobody waits for, so that it is not logged as never retrieved."""
    if not reply.cancelled():
        reply.exception()
