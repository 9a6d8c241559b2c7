"""Fills the slots of the workers here: requests tasks whenever a slot is free, and when a wake-up reports one.

A slot is free, reserved for a request under way, or taken by an attempt. Grants are handled in callbacks of the scheduler's
replies, so that a grant is never lost with the client request that happened to receive it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fairlane.queues.chains import ChainStart
from fairlane.queues.errors import StoreError, StoreUnavailable
from fairlane.queues.scheduler import MAX_TAKEN, Scheduler
from fairlane.queues.tasks import (
    ClosedUpstreams,
    ExistingTask,
    Grant,
    Rejection,
    RetryAt,
    Submitted,
    TaskSpec,
)
from fairlane.workers.server.cancel import Cancels
from fairlane.workers.server.payloads import PayloadCache
from fairlane.workers.server.pool import ANY, Pool, Worker
from fairlane.workers.server.timers import ModelTimers

MAX_FILLED = 50
FILL_PAUSE_S = 0.02
MAX_MISSED_WAKEUPS = 1000
"""Models remembered whose wake-up found no free slot here; the sweep repeats wake-ups anyway."""
MAX_SHUT_MS = 5000
"""For how long no task of a model is requested through a closed upstream: the message that it is open may be lost."""
MISMATCH_REST_S = 1.0
"""How long no task is requested for a worker after one that only others take: it would get the same one again."""


class Slots:
    """See the module. `close` forgets the timers."""

    start: Callable[[Grant, Worker], None]
    """Begins a task that was granted for a slot of this worker. Set once, before the first question: see `Dispatcher`."""

    def __init__(self, scheduler: Scheduler, pool: Pool, payloads: PayloadCache, cancels: Cancels) -> None:
        self.pool = pool
        self._scheduler = scheduler
        self._payloads = payloads
        self._cancels = cancels
        self._loop = asyncio.get_running_loop()
        self._missed_wakeups: set[str] = set()
        self._timers = ModelTimers(self._loop, partial(self.on_wake, targeted=True))
        self.ask_later = self._timers.set
        """Set timers for models that may start a task in a while."""

    def close(self) -> None:
        """Forget the timers, and those to come."""
        self._timers.close()

    # ---- asking ----------

    def submit(
        self, task: TaskSpec, chain: ChainStart | None = None, follow: bool = False
    ) -> Awaitable[Submitted | ExistingTask | Rejection]:
        """Queue a task, the first stage of a `chain` if there is one, unless its idempotency key names a task. `follow`: as
        `Scheduler.submit` has it. Raise StoreUnavailable. The task does not run later then, unless it has an idempotency key, so
        that its client can repeat the request, or is submitted again by its id."""
        done: asyncio.Future[Submitted | ExistingTask | Rejection] = self._loop.create_future()
        if self._scheduler.outbox_full:
            done.set_result(Rejection("outbox_full"))
            return done
        worker, want = self.pool.reserve(task.model, 1, task.task_type) or (None, 0)
        if chain is None:
            self._payloads.put(task.id, task.payload)
        try:
            reply = self._submit(task, worker, want, chain=chain, follow=follow)
        except StoreUnavailable:
            self._payloads.pop(task.id)
            if worker:
                worker.give_back(want)
            raise
        task.payload = b""  # its caller may wait for long; the store and the cache have it
        reply.add_done_callback(partial(self._on_submitted, task.id, task.again, worker, want, done))
        return done

    def _submit(self, task: TaskSpec, worker: Worker | None, want: int, **more: Any) -> asyncio.Future[Any]:
        nonce, scheduler = self._scheduler.nonce(), self._scheduler
        if worker is None:
            return scheduler.submit(task, want, nonce, **more)
        named = worker.models != (ANY,)
        return scheduler.submit(task, want, nonce, worker.id, named=named, upstream=worker.upstream, **more)

    def _on_submitted(
        self,
        task_id: str,
        repeatable: bool,
        worker: Worker | None,
        want: int,
        done: asyncio.Future[Submitted | ExistingTask | Rejection],
        reply: asyncio.Future[Any],
    ) -> None:
        if worker:
            worker.give_back(want)
        error = reply.exception()
        if error is not None:
            self._payloads.pop(task_id)
            if isinstance(error, StoreError) and error.sent and not repeatable:
                self._cancels.cancel_soon(task_id, "gateway")
            if not done.done():
                done.set_exception(error)
                done.exception()
            return
        answer = self._scheduler.parse_submit(reply.result())
        if not isinstance(answer, Submitted):
            self._payloads.pop(task_id)
            if worker and isinstance(answer, ExistingTask):  # many arrive at the same time
                self._on_no_grant(worker)
        elif worker:
            self.assign_grants(worker, answer.grants, answer.retry_at, answer.closed_upstreams)
        else:
            self.ask_later(answer.retry_at)
        if not done.done():
            done.set_result(answer)

    def on_wake(self, model: str, *, targeted: bool) -> None:
        """A task of `model` may start. A wake-up meant for this replica alone is handed on if nothing is free here.

        So is the one of its own timer: an idle replica may not know that there is something to wait for.
        """
        reserved = self.pool.reserve(model, MAX_TAKEN)
        if reserved is not None:
            self._take(*reserved, woken=model)
            return
        if len(self._missed_wakeups) < MAX_MISSED_WAKEUPS:
            self._missed_wakeups.add(model)
        if targeted:
            with contextlib.suppress(StoreUnavailable):  # the sweep repeats the wake-up
                reply = self._scheduler.take([model], 0, self._scheduler.nonce())
                reply.add_done_callback(self._on_handed_on)

    def _on_handed_on(self, reply: asyncio.Future[Any]) -> None:
        if not reply.cancelled() and reply.exception() is None:
            self.ask_later(self._scheduler.parse_take(reply.result()).retry_at)

    def fill(self, worker: Worker) -> None:
        """Ask for tasks for all free slots of a worker: at most MAX_TAKEN at a time, and again while all are granted."""
        free = worker.free(self.pool.time()) if worker in self.pool else 0
        if free > 0:
            want = min(free, MAX_TAKEN)
            worker.reserve(want)
            self._take(worker, want)

    def fill_changed(self, worker: Worker) -> None:
        """Fill a worker whose offer has changed, and again when a slot stays empty that was asked for with its old offer."""
        worker.changed = worker.free(self.pool.time()) < worker.usable
        self.fill(worker)

    async def fill_all(self) -> None:
        """Fill what stayed empty; of many workers a few at a time, so that nothing else waits for all of them."""
        for number, worker in enumerate(self.pool, 1):
            self.fill(worker)
            if number % MAX_FILLED == 0:
                await asyncio.sleep(FILL_PAUSE_S)

    def _take(self, worker: Worker, want: int, woken: str | None = None) -> None:
        try:
            nonce = self._scheduler.nonce()
            reply = self._scheduler.take(worker.models, want, nonce, worker.id, worker.upstream)
        except StoreUnavailable:
            worker.give_back(want)
            return  # filled again when the connection is back
        reply.add_done_callback(partial(self._on_taken, worker, want, woken))

    def _on_taken(self, worker: Worker, want: int, woken: str | None, reply: asyncio.Future[Any]) -> None:
        worker.give_back(want)
        if reply.cancelled() or reply.exception() is not None:
            return  # grants that no replica knows of are free again after a few seconds; the sweep wakes
        grants, later, shut = self._scheduler.parse_take(reply.result())
        self.ask_later(later)
        self._shut(worker, shut)
        self._start_all(grants, worker)
        if len(grants) < want:
            self._on_no_grant(worker)
            if woken is not None and any(model == woken for model, _ in shut):
                self.on_wake(woken, targeted=True)  # through another upstream
        elif woken is not None:
            self.on_wake(woken, targeted=False)
        elif want == MAX_TAKEN:
            self.fill(worker)

    def assign_grants(
        self, worker: Worker, grants: list[Grant], later: RetryAt, shut: ClosedUpstreams
    ) -> None:
        """Begin the tasks that were granted for a free slot, or request again if a wake-up was missed."""
        if later:
            self.ask_later(later)
        if shut:
            self._shut(worker, shut)
        self._start_all(grants, worker)
        if not grants:
            self._on_no_grant(worker)

    def _start_all(self, grants: list[Grant], worker: Worker) -> None:
        """Begin granted tasks, suspects first: they have to run alone."""
        for grant in grants if len(grants) < 2 else sorted(grants, key=lambda grant: not grant.last_lost):
            self.start(grant, worker)

    def _shut(self, worker: Worker, shut: ClosedUpstreams) -> None:
        """Request nothing of these models through the worker's upstream until a timer fires; other upstreams are tried first."""
        for model, ms in shut:
            self.pool.shut(model, worker.upstream, min(ms, MAX_SHUT_MS))
        self.ask_later([(model, min(ms, MAX_SHUT_MS) + 1) for model, ms in shut])

    def on_upstream_open(self, model: str, upstream: str) -> None:
        """Something of a model may start through an upstream again."""
        self.pool.reopen(model, upstream)
        self.on_wake(model, targeted=False)

    def _on_no_grant(self, worker: Worker) -> None:
        """A slot was not filled. A wake-up that overtook this answer found the slot still reserved: ask again."""
        if self._missed_wakeups:
            heard = {model for model in self._missed_wakeups if worker.serves(model)}
            if heard:
                self._missed_wakeups -= heard
                self.fill(worker)
        if worker.changed:
            worker.changed = False
            self.fill(worker)

    # ---- asking for nothing ----------

    def hold(self, worker: Worker, ms: int) -> None:
        """Give a worker that reports itself full no task for a while."""
        seconds = min(ms, 60_000) / 1000
        worker.hold_until = max(worker.hold_until, self.pool.time() + seconds)
        self._loop.call_later(seconds + 0.001, self.fill, worker)

    def rest(self, worker: Worker) -> None:
        """Request no task for a worker for a while: it would get the same one again. A task at hand may still be given."""
        worker.rest_until = self.pool.time() + MISMATCH_REST_S
        self._loop.call_later(MISMATCH_REST_S + 0.001, self.fill, worker)
