"""Workers that cannot work back off while others are healthy, and the tasks that they fail cost no try.

A worker is unhealthy when it reports so (`unhealthy` in `register`: its upstream is gone), or after FAILURES_TO_BACK_OFF
failures in a row. It backs off while healthy workers, here or at other replicas, offer all of its models. A worker that reported
itself unhealthy backs off until it reports healthy; another one for a time that doubles, BACKOFF_S to MAX_BACKOFF_S, after which
it gets one task at a time until one completes. If no other worker is healthy, it gets tasks like a healthy one, and its clients
see the failures.

Failures of one endpoint in a row count once: the worker's other endpoints must not wait for one that fails, which has a circuit
breaker of its own.
"""

from functools import partial

import structlog

from fairlane.queues.errors import StoreError
from fairlane.queues.keys import is_reserved
from fairlane.queues.logs.rate_limited import RateLimitedLogger
from fairlane.queues.logs.redaction import for_operators
from fairlane.queues.tasks import Grant, State
from fairlane.workers.server.pool.remote_workers import RemoteWorkers
from fairlane.workers.server.pool.worker import Worker
from fairlane.workers.server.slots import Slots

log = structlog.get_logger("fairlane.workers")

FAILURES_TO_BACK_OFF = 3
BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0
MAX_CHARS = 200
"""Of a task's failure, where it says what is wrong with its worker."""
PROOFS = frozenset(
    {*("BAD_REQUEST", "CONTEXT_LENGTH", "CONTENT_FILTERED"), *("ADDRESS_REFUSED", "RESPONSE_TOO_LARGE")}
)
"""Failures that say that the worker works: they are the callers', or the endpoint's."""
OTHERS_FAULTS = frozenset({"NO_WORKER", "STORE_LOST", "OUTPUT_TOO_LARGE", "WORKER_LOST"})
"""Failures that say nothing of how the worker works."""


class Health:
    """See the module."""

    def __init__(self, slots: Slots, remote_workers: RemoteWorkers) -> None:
        self._slots = slots
        self._pool = slots.pool
        self._remote_workers = remote_workers
        self._lines = RateLimitedLogger()
        self._unhealthy: dict[str, Worker] = {}
        self._reviews = False
        self._due = False
        """Another review is wanted."""

    # ---- reports and ends ----------

    def report(self, worker: Worker, unhealthy: str) -> None:
        """Record why a worker says that it cannot work; '' when it can: earlier failures do not count then."""
        was, was_unhealthy, worker.reported = worker.reported, bool(worker.unhealthy_reason), unhealthy
        if was == unhealthy:
            return
        if not unhealthy:
            worker.failure_reason, worker.failures, worker.backoffs = "", 0, 0
            worker.failed_endpoint = ""
        self._changed(worker, was_unhealthy)

    def ended(self, worker: Worker, model: str, state: State, code: str, sentence: str) -> None:
        """Record that a task of `model` ended through a worker, or is requeued because of it; `sentence` is its failure's
        message."""
        if state is State.COMPLETED or code in PROOFS:
            worker.failures = worker.backoffs = 0
            worker.failed_endpoint = ""
            if worker.failure_reason:
                worker.failure_reason = ""
                self._changed(worker, was_unhealthy=True)
        elif state is State.FAILED and code not in OTHERS_FAULTS:
            again = is_reserved(model) and worker.failed_endpoint == model
            worker.failed_endpoint = model if is_reserved(model) else ""
            if again and not worker.failure_reason:
                return
            worker.failures += 1
            if worker.failure_reason:
                if worker.cap == 1:
                    self._back_off(worker)  # its probe has failed
            elif worker.failures >= FAILURES_TO_BACK_OFF:
                said = for_operators(code, sentence)[:MAX_CHARS]
                worker.failure_reason = "".join(c if c.isprintable() else " " for c in said).strip() or code
                if not worker.reported:
                    self._changed(worker, was_unhealthy=False)

    async def is_to_blame(self, worker: Worker, grant: Grant) -> bool:
        """Return whether a failed task costs no try: its worker is unhealthy, and a healthy one takes it. Raise StoreError."""
        return bool(worker.unhealthy_reason) and await self._peers_support(
            (grant.model,), frozenset({grant.task_type}), 1
        )

    # ---- backing off ----------

    def review_soon(self) -> None:
        """Decide again which unhealthy workers back off: others may have connected, gone, or become unhealthy."""
        if not self._unhealthy:
            return
        self._due = True
        if not self._reviews:
            self._reviews = True
            self._slots.background.spawn(self._review())

    async def _review(self) -> None:
        try:
            while self._due:
                self._due = False
                for worker in list(self._unhealthy.values()):
                    others = await self._peers_support(worker.models, worker.task_types, worker.version)
                    if worker not in self._pool or not worker.unhealthy_reason:
                        self._unhealthy.pop(worker.id, None)
                    elif not others:
                        self._resume(worker)
                    elif worker.cap is None:
                        self._back_off(worker)
        except StoreError:
            return  # the next review is soon
        finally:
            self._reviews = False

    async def _peers_support(
        self, models: tuple[str, ...], task_types: frozenset[str] | None, version: int
    ) -> bool:
        return self._pool.peers_support(
            models, task_types, version
        ) or await self._remote_workers.peers_support(models, task_types, version)

    def _changed(self, worker: Worker, was_unhealthy: bool) -> None:
        """A worker is unhealthy, or healthy, or for another reason than before: notify watchers; it backs off, or works."""
        if worker not in self._pool:
            return
        self._slots.offers.offer(worker)
        if not worker.unhealthy_reason:
            self._unhealthy.pop(worker.id, None)
            self._lines.log(log.info, "worker is healthy again", worker_id=worker.id, name=worker.name)
            self._resume(worker)
        else:
            self._unhealthy[worker.id] = worker
            self._back_off(worker)
            if not was_unhealthy:
                self._lines.log(
                    log.warning,
                    "worker is unhealthy",
                    worker_id=worker.id,
                    name=worker.name,
                    in_a_row=worker.failures,
                    says=worker.unhealthy_reason,
                )
        self.review_soon()

    def _resume(self, worker: Worker) -> None:
        if worker.cap is not None:
            worker.cap = None
            self._slots.fill(worker)

    def _back_off(self, worker: Worker) -> None:
        """Give a worker no task: until it reports healthy, or for a while."""
        worker.cap = 0
        if worker.reported:
            return
        pause_s = min(BACKOFF_S * 2.0 ** min(worker.backoffs, 10), MAX_BACKOFF_S)
        worker.backoffs += 1
        worker.probe_at = self._pool.time() + pause_s
        self._slots.loop.call_later(pause_s, partial(self._probe, worker))

    def _probe(self, worker: Worker) -> None:
        """Give a worker one task after its pause."""
        due = self._pool.time() >= worker.probe_at - 0.001  # no later pause has begun
        if due and worker.cap == 0 and worker.failure_reason and not worker.reported and worker in self._pool:
            worker.cap = 1
            self._slots.fill(worker)
