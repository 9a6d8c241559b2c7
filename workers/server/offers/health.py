"""Workers that cannot work: they rest while others are well, and the tasks that they fail cost no try.

A worker is unhealthy when it says so itself (`unhealthy` in `register`: its upstream is gone), or after FAILURES_TO_REST failures
in a row. It rests while other workers that are well, here or at other replicas, offer all of its models: one that says that it
cannot work until it says that it can; one that was found out for a time that doubles, REST_S to MAX_REST_S, after which it gets
one task at a time until one completes. If no other worker is healthy it continues as if it were: its clients learn what is
wrong by their own failures, and in time.

Of failures of one endpoint in a row only the first counts: the other endpoints are not to go without their worker for one that
fails, which has breakers of its own.
"""

import asyncio
from functools import partial

import structlog

from fairlane.queues.errors import StoreError
from fairlane.queues.keys import is_reserved
from fairlane.queues.logs.rate_limited import RateLimitedLogger
from fairlane.queues.logs.sentences import for_operators
from fairlane.queues.tasks import Grant, State
from fairlane.workers.server.background import Background
from fairlane.workers.server.offers.elsewhere import Elsewhere
from fairlane.workers.server.offers.offers import Offers
from fairlane.workers.server.pool import Worker
from fairlane.workers.server.slots import Slots

log = structlog.get_logger("fairlane.workers")

FAILURES_TO_REST = 3
REST_S = 0.5
MAX_REST_S = 30.0
FAILS_ALL = 10
"""Failures in a row, without one task that completed between them, that are reported."""
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

    def __init__(self, slots: Slots, offers: Offers, elsewhere: Elsewhere, background: Background) -> None:
        self._slots = slots
        self._pool = slots.pool
        self._offers = offers
        self._elsewhere = elsewhere
        self._background = background
        self._loop = asyncio.get_running_loop()
        self._lines = RateLimitedLogger()
        self._reviews = False
        self._due = False
        """Another review is wanted."""

    # ---- what is heard of workers ----------

    def says(self, worker: Worker, unhealthy: str) -> None:
        """A worker says why it cannot work; '' when it can: what failed while it could not does not count then."""
        was, was_unhealthy, worker.reported = worker.reported, bool(worker.ailment), unhealthy
        if was == unhealthy:
            return
        if not unhealthy:
            worker.failing, worker.failures, worker.rests = "", 0, 0
            worker.failed_endpoint = ""
        self._changed(worker, was_unhealthy)

    def ended(self, worker: Worker, model: str, state: State, code: str, sentence: str) -> None:
        """A task of `model` ended through a worker, or goes back because of it; `sentence`: with what, where it failed."""
        if state is State.COMPLETED or code in PROOFS:
            if worker.failures >= FAILS_ALL:
                self._lines.log(
                    log.info, "worker completes tasks again", worker_id=worker.id, name=worker.name
                )
            worker.failures = worker.rests = 0
            worker.failed_endpoint = ""
            if worker.failing:
                worker.failing = ""
                self._changed(worker, was_unhealthy=True)
        elif state is State.FAILED and code not in OTHERS_FAULTS:
            again = is_reserved(model) and worker.failed_endpoint == model
            worker.failed_endpoint = model if is_reserved(model) else ""
            if again and not worker.failing:
                return
            worker.failures += 1
            if worker.failures in (FAILS_ALL, 10 * FAILS_ALL) or worker.failures % (100 * FAILS_ALL) == 0:
                self._lines.log(
                    log.warning,
                    "worker fails everything",
                    worker_id=worker.id,
                    name=worker.name,
                    models=worker.told_models,
                    in_a_row=worker.failures,
                    code=code,
                )
            if worker.failing:
                if worker.cap == 1:
                    self._rest(worker)  # its probe has failed
            elif worker.failures >= FAILURES_TO_REST:
                said = for_operators(code, sentence)[:MAX_CHARS]
                worker.failing = "".join(c if c.isprintable() else " " for c in said).strip() or code
                if not worker.reported:
                    self._changed(worker, was_unhealthy=False)

    async def is_to_blame(self, worker: Worker, grant: Grant) -> bool:
        """Whether a failed task has used no try: its worker is unhealthy, and one that is well takes it. Raises StoreError."""
        return bool(worker.ailment) and await self._others_do((grant.model,), frozenset({grant.task_type}), 1)

    # ---- who rests ----------

    def review_soon(self) -> None:
        """Look again who of the unhealthy rests: others may have come, gone, or be unhealthy themselves."""
        if not self._pool.unhealthy:
            return
        self._due = True
        if not self._reviews:
            self._reviews = True
            self._background.spawn(self._review())

    async def _review(self) -> None:
        try:
            while self._due:
                self._due = False
                for worker in list(self._pool.unhealthy.values()):
                    others = await self._others_do(worker.models, worker.task_types, worker.version)
                    if worker not in self._pool or not worker.ailment:
                        continue
                    if not others:
                        self._work(worker)
                    elif worker.cap is None:
                        self._rest(worker)
        except StoreError:
            return  # the next review is soon
        finally:
            self._reviews = False

    async def _others_do(
        self, models: tuple[str, ...], task_types: frozenset[str] | None, version: int
    ) -> bool:
        return self._pool.others_do(models, task_types, version) or await self._elsewhere.others_do(
            models, task_types, version
        )

    def _changed(self, worker: Worker, was_unhealthy: bool) -> None:
        """A worker is unhealthy, or healthy, or for another reason than before: notify watchers; it backs off, or works."""
        if worker not in self._pool:
            return
        self._pool.mark(worker)
        self._offers.offer(worker)
        if not worker.ailment:
            self._lines.log(log.info, "worker is well again", worker_id=worker.id, name=worker.name)
            self._work(worker)
        else:
            self._rest(worker)
            if not was_unhealthy:
                self._lines.log(
                    log.warning,
                    "worker is unhealthy",
                    worker_id=worker.id,
                    name=worker.name,
                    in_a_row=worker.failures,
                    says=worker.ailment,
                )
        self.review_soon()

    def _work(self, worker: Worker) -> None:
        if worker.cap is not None:
            worker.cap = None
            self._slots.fill(worker)

    def _rest(self, worker: Worker) -> None:
        """Give it nothing: until it says that it can work, or for a while."""
        worker.cap = 0
        if worker.reported:
            return
        pause_s = min(REST_S * 2.0 ** min(worker.rests, 10), MAX_REST_S)
        worker.rests += 1
        worker.probe_at = self._pool.time() + pause_s
        self._loop.call_later(pause_s, partial(self._probe, worker))

    def _probe(self, worker: Worker) -> None:
        """A rest is over."""
        due = self._pool.time() >= worker.probe_at - 0.001  # no later rest has begun
        if due and worker.cap == 0 and worker.failing and not worker.reported and worker in self._pool:
            worker.cap = 1
            self._slots.fill(worker)
