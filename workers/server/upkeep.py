"""What a replica does again and again: says what its workers offer, keeps leases, sweeps, and looks at the time limits."""

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import structlog

from fairlane.queues.errors import StoreError, StoreUnavailable
from fairlane.queues.presence import AT_ONCE, Presence, Row
from fairlane.queues.scheduler import Scheduler
from fairlane.streaming.hub import Hub
from fairlane.workers.server.attempt import Attempt, Attempts, Phase
from fairlane.workers.server.background import observe
from fairlane.workers.server.payloads import PayloadCache
from fairlane.workers.server.pool import RETRY_REST_MS, Pool, Worker
from fairlane.workers.server.settings import DispatchSettings

log = structlog.get_logger("fairlane.workers")

RENEW_S = 5.0
TICK_S = 1.0
OFFER_S = 5.0
OFFER_HOLD_MS = 15_000
PRESENT_S = 0.25
"""At most one message about who the workers are in such a time."""
LOOK_S = 5
"""Each worker is looked at so often whether it has fallen silent, a part of them in each round; a few always."""
FEW = 50
MISSED_ACKS = 3


class Dispatch(Protocol):
    """The dispatcher, as far as its upkeep knows it."""

    pool: Pool
    attempts: Attempts
    payloads: PayloadCache
    scheduler: Scheduler
    settings: DispatchSettings
    stop_grace_s: float
    time: Callable[[], float]

    @property
    def draining(self) -> bool: ...
    def describe(self, worker_id: str) -> Row | None: ...
    def silent_ms(self, worker: Worker) -> int: ...
    def hold(self, worker: Worker, ms: int) -> None: ...


class Upkeep:
    """See the module. `start` begins it, `close` ends it; a round that fails is tried again."""

    def __init__(self, dispatcher: Dispatch, hub: Hub) -> None:
        self._dispatcher = dispatcher
        self._hub = hub
        self._scheduler = dispatcher.scheduler
        self._task: asyncio.Task[None] | None = None
        self._nudge = asyncio.Event()
        self._rng = random.Random()  # noqa: S311 - spreads load only
        self._offered: set[str] = set()
        self._offer_due = 0.0
        self._presence = Presence()
        self._present_timer: asyncio.TimerHandle | None = None
        self._looking: Iterator[Worker] = iter(())
        limits = self._scheduler.limits
        self._renew_s = min(RENEW_S, limits.lease_ms / 3000)
        self._tick_s = min(TICK_S, self._renew_s / 2, limits.grant_ms / 3000)

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._keep_up(), name="dispatch-upkeep")

    async def close(self) -> None:
        """End."""
        if self._present_timer is not None:
            self._present_timer.cancel()
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # ---- offers and presence ----------

    def offer_soon(self) -> None:
        """Tell everything again at the next opportunity: what is offered here, and who the workers are."""
        self._offer_due = 0.0
        self._nudge.set()

    def offer(self, worker: Worker) -> None:
        """A worker has come, changed or gone: say what that changes in what is offered, in order before whatever is asked next.

        Who the workers are is told at once too, unless that was done a moment ago and others of its kind are known: thousands
        who come together are a few messages.
        """
        pool = self._dispatcher.pool
        self._presence.changed(worker.id)
        try:
            news = pool.take_news()
            if news and not self._dispatcher.draining:
                self._tell([m for m, yes in news.items() if yes], [m for m, yes in news.items() if not yes])
            if self._present_timer is None or pool.kinds_changed:
                self._present()
        except StoreUnavailable:
            self.offer_soon()

    def _tell(self, models: list[str], withdrawn: list[str]) -> asyncio.Future[Any]:
        grace_ms = self._dispatcher.settings.no_worker_grace_ms
        self._offered.difference_update(withdrawn)
        self._offered.update(models)
        reply = self._scheduler.offer(models, withdrawn, OFFER_HOLD_MS, grace_ms)
        reply.add_done_callback(_on_offered)
        return reply

    async def _tell_all(self) -> None:
        """Say again what is offered: it holds for OFFER_HOLD_MS."""
        dispatcher = self._dispatcher
        dispatcher.pool.take_news()
        models = set() if dispatcher.draining else dispatcher.pool.models()
        withdrawn = sorted(self._offered - models)
        offered = sorted(models)
        self._offer_due = dispatcher.time() + OFFER_S
        for at in range(0, max(len(offered), len(withdrawn), 1), AT_ONCE):
            await self._tell(offered[at : at + AT_ONCE], withdrawn[at : at + AT_ONCE])
        moving = {w.id: (len(w.attempts), dispatcher.silent_ms(w)) for w in dispatcher.pool}
        news = self._presence.live(moving)
        expected = self._presence.fields
        if await self._scheduler.present(news, OFFER_HOLD_MS) != expected:
            self._forget_presence()
        if self._present_timer is None:
            self._present()

    def changed(self, worker: Worker) -> None:
        """A worker has changed: to be told with the next message."""
        self._presence.changed(worker.id)

    def _present(self) -> None:
        """Tell what is new of the workers, and no more for a moment."""
        if self._present_timer is not None:
            self._present_timer.cancel()
            self._present_timer = None
        self._dispatcher.pool.kinds_changed = False
        if not self._presence:
            return
        try:
            news = self._presence.news(self._dispatcher.describe)
            self._scheduler.present(news, OFFER_HOLD_MS).add_done_callback(self._on_presented)
        except StoreUnavailable:
            self._forget_presence()
            self.offer_soon()
        self._present_timer = asyncio.get_running_loop().call_later(PRESENT_S, self._present)

    def _on_presented(self, reply: asyncio.Future[Any]) -> None:
        if reply.cancelled() or reply.exception() is not None:
            self._forget_presence()

    def _forget_presence(self) -> None:
        """The store does not know what it was told: all of it again, with the next renewal."""
        self._presence.forget([worker.id for worker in self._dispatcher.pool])

    # ---- rounds ----------

    async def _keep_up(self) -> None:
        """Offer, renew, sweep: in this order, so that what lives is not swept after an outage."""
        while True:
            wait = self._tick_s
            try:
                if self._dispatcher.time() >= self._offer_due:
                    await self._tell_all()
                await self._renew()
                next_ms, looked = await self._scheduler.sweep()
                wait = 0.0 if looked >= 100 else min(next_ms / 1000 + 0.002, self._tick_s)
            except StoreError:
                wait = 0.2  # again when it answers
            except Exception:  # upkeep must go on: what failed is tried again in a second
                log.exception("upkeep failed")
            try:
                self.check_limits()
                self._dispatcher.payloads.expire()
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
        for at in range(0, max(len(held), len(alive)), AT_ONCE):
            batch = held[at : at + AT_ONCE]
            replies = await self._scheduler.renew(
                [(a.grant, a.worker.id, a.phase is not Phase.SENT, a.output_tokens) for a in batch],
                alive[at : at + AT_ONCE],
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
        for worker in self._some_workers():
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

    def _some_workers(self) -> list[Worker]:
        """A part of the workers, each of them once in LOOK_S rounds."""
        pool = self._dispatcher.pool
        some = list(itertools.islice(self._looking, max(FEW, len(pool) // LOOK_S)))
        if len(some) < FEW:
            self._looking = iter(pool)
        return some

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


def _on_offered(reply: asyncio.Future[Any]) -> None:
    observe(reply)
    if not reply.cancelled() and reply.exception() is None and reply.result():
        log.warning("too many model names: the store takes no more of them for now", refused=reply.result())
