"""Periodic work of a replica: reports offers, renews leases, sweeps, and checks time limits."""

import random

from fairlane.queues.errors import StoreError
from fairlane.queues.inspect.presence import MAX_PER_MESSAGE
from fairlane.queues.loops import Periodic
from fairlane.workers.protocol import CLOSE_NO_ACK
from fairlane.workers.server.health import Health
from fairlane.workers.server.hooks.silence import Silence
from fairlane.workers.server.pool.suspects import Loss, suspects
from fairlane.workers.server.runner import RETRY_REST_MS
from fairlane.workers.server.slots import Slots
from fairlane.workers.server.tasks.attempt import Attempt
from fairlane.workers.server.tasks.attempts import Attempts

RENEW_S = 5.0
TICK_S = 1.0
RETRY_S = 0.2
SILENT_HOLD_MS = 1200
"""Somewhat more than a tick."""
MISSED_ACKS = 3


class Maintenance(Periodic):
    """See the module. `start` begins it, `close` ends it; a round that fails is tried again."""

    name = "dispatch-maintenance"
    interval_s = RETRY_S
    expected = (StoreError,)

    def __init__(self, slots: Slots, attempts: Attempts, health: Health, silence: Silence) -> None:
        self._slots = slots
        self._scheduler = slots.scheduler
        self._attempts = attempts
        self._health = health
        self._silence = silence
        self.wake = slots.offers.hurry
        self._rng = random.Random()  # noqa: S311 - spreads load only
        limits = slots.scheduler.limits
        self._renew_s = min(RENEW_S, limits.lease_ms / 3000)
        self._tick_s = min(TICK_S, self._renew_s / 2, limits.grant_ms / 3000)

    # ---- rounds ----------

    async def step(self) -> float:
        """Offer, renew, sweep: in this order, so that live tasks are not swept after an outage. Return the time to wait (s)."""
        try:
            self.check_limits()
            self._slots.payloads.expire()
            self._health.review_soon()
        finally:  # leases must be renewed whatever fails here
            await self._slots.offers.report_if_due()
            await self._renew()
            next_ms, looked = await self._scheduler.sweep()
        wait_s = 0.0 if looked >= 100 else min(next_ms / 1000 + 0.002, self._tick_s)
        return wait_s * self._rng.uniform(0.95, 1.0)

    async def _renew(self) -> None:
        now = self._slots.time()
        held = [a for a in self._attempts.values() if a.held and now - a.renewed_at >= self._renew_s]
        alive = self._slots.hub.keeping_alive(now)
        for at in range(0, max(len(held), len(alive)), MAX_PER_MESSAGE):
            some = held[at : at + MAX_PER_MESSAGE]
            replies = await self._scheduler.renew(
                [(a.grant, a.worker.id, a.phase != "sent", a.output_tokens) for a in some],
                alive[at : at + MAX_PER_MESSAGE],
            )
            for attempt, reply in zip(some, replies, strict=True):
                if reply == 1:
                    attempt.renewed_at = now
                elif attempt.held and attempt.phase != "finishing":
                    attempt.stop("client" if reply == 2 else "superseded")

    def check_limits(self) -> None:
        """Local time limits of attempts and workers."""
        slots, settings, now = self._slots, self._slots.settings, self._slots.time()
        dead_after, ack_s = settings.dead_after_ms / 1000, settings.ack_ms / 1000
        for worker in slots.pool:
            if worker.version >= 2 and now - worker.heard_at > dead_after:
                worker.close(1011, "silent for too long")
            elif worker.missed_acks and now - worker.heard_at > ack_s:
                slots.hold(worker, SILENT_HOLD_MS)  # it may hang: it gets nothing until it sends something
        for attempt in list(self._attempts.values()):
            worker = attempt.worker
            if attempt.phase == "sent" and attempt.sent_at is not None and now - attempt.sent_at > ack_s:
                worker.missed_acks += 1
                unacknowledged(attempt)
                slots.hold(worker, RETRY_REST_MS)
                if worker.missed_acks >= MISSED_ACKS:
                    worker.close(CLOSE_NO_ACK, "three tasks in a row were not acknowledged")
            elif attempt.phase == "running":
                if attempt.timer is None and settings.output_limits:  # its model may have a limit now
                    self._silence.check(attempt)
            elif attempt.phase == "stopping":
                late = now - attempt.stopping_since
                if now > attempt.stop_until:
                    worker.close(1011, "did not stop a cancelled task")
                elif worker.version >= 2 and late > settings.cancel_grace_ms / 1000 + 2:
                    worker.suspended = True


def unacknowledged(attempt: Attempt) -> None:
    """End an attempt whose worker did not say in time that it has begun.

    The worker reads its frames in their order, so the first task that it did not acknowledge may be the reason; the others cost
    no try, unless they have only one, as they may have begun all the same.
    """
    candidate = attempt.candidate
    if attempt.phase != "sent" or candidate is None:
        return
    attempt.cancel("superseded")
    sent = [c for a in attempt.worker.attempts.values() if (c := a.candidate) and not c.acknowledged]
    if candidate.sent_at <= min(c.sent_at for c in sent):
        loss = Loss(0, "not acknowledged", False, attempt.effects.time())
        attempt.lost(suspicion=suspects([candidate], attempt.worker.identity, loss)[attempt.key])
    elif attempt.grant.max_tries == 1:
        attempt.lost()
    else:
        attempt.decline("not acknowledged")
