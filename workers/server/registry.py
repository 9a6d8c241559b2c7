"""Follows workers that connect, change or disconnect: their offers, the slots to fill, and the ends of their attempts."""

from fairlane.queues.logs.rate_limited import RateLimitedLogger
from fairlane.workers.server.offers.health import Health
from fairlane.workers.server.offers.offers import Offers
from fairlane.workers.server.pool import Worker
from fairlane.workers.server.settings import DispatchSettings
from fairlane.workers.server.slots import Slots
from fairlane.workers.server.suspects import Loss, suspects
from fairlane.workers.server.tasks.attempt import LOST
from fairlane.workers.server.tasks.attempts import attempts_on

LOST_V1 = "Worker disconnected"
LOG_BURST = 200
"""Workers that connect, or disconnect, with a log line each."""


class Registry:
    """What sessions report about their workers."""

    def __init__(self, slots: Slots, offers: Offers, health: Health, settings: DispatchSettings) -> None:
        self.pool = slots.pool
        self.health = health
        self.settings = settings
        self.connects = RateLimitedLogger(burst=LOG_BURST)
        self.disconnects = RateLimitedLogger(burst=LOG_BURST)
        self.losses = RateLimitedLogger(burst=LOG_BURST)
        """Of workers that had tasks, so that others which reconnect do not hide them."""
        self.complaints = RateLimitedLogger()
        self._slots = slots
        self._offers = offers

    def connected(self, worker: Worker, unhealthy: str = "") -> None:
        """Offer a new worker's models and fill its slots. `unhealthy`: why it says that it cannot work."""
        worker.heard_at = self.pool.time()
        self.pool.add(worker)
        self._offers.offer(worker)
        self.health.report(worker, unhealthy)
        self._slots.fill(worker)
        self.health.review_soon()

    def changed(self, worker: Worker) -> None:
        """A worker changed its models or slots, or drains."""
        self._offers.offer(worker)
        if not worker.draining:
            self._slots.fill_changed(worker)

    def disconnected(self, worker: Worker, loss: Loss) -> None:
        """A worker is gone: its tasks are tried elsewhere or end."""
        if not self.pool.remove(worker):
            return
        self._offers.offer(worker)
        attempts = attempts_on(worker)
        if any(attempt.held for attempt in attempts):
            self.pool.count_loss(worker)
        candidates = [candidate for attempt in attempts if (candidate := attempt.candidate)]
        found = suspects(candidates, worker.identity, loss)
        sentence = LOST if worker.version >= 2 else LOST_V1
        for attempt in attempts:
            suspicion = found.get(attempt.key)
            attempt.lost(sentence, blameless=self.pool.draining, suspicion=suspicion)

    def drain(self) -> None:
        """No worker gets another task, new ones included; running tasks continue. Other replicas are notified."""
        self.pool.draining = True
        for worker in self.pool:
            worker.draining = True
            self._offers.changed(worker)
        self._offers.offer_soon()
