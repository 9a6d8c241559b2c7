"""The slots of a replica's workers: requests tasks whenever one is free, and when a wake-up reports one.

A slot is free, reserved for a request under way, or taken by an attempt. Grants are handled in callbacks of the scheduler's
replies, so that a grant is never lost with the client request that happened to receive it.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from functools import partial
from typing import Any

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
from fairlane.streaming.hub import Hub
from fairlane.workers.server.background import Background
from fairlane.workers.server.cancel import Cancels
from fairlane.workers.server.payloads import PayloadCache
from fairlane.workers.server.pool.offers import Offers
from fairlane.workers.server.pool.pool import Pool
from fairlane.workers.server.pool.worker import ANY, Worker
from fairlane.workers.server.settings import DispatchSettings
from fairlane.workers.server.timers import ModelTimers

STOPS_EARLIER_S = 10.0
"""A worker has this much less time to stop than the sweep gives the task, so its replica ends the task first, and reports its
usage."""
MAX_FILLED = 50
FILL_PAUSE_S = 0.02
MAX_MISSED_WAKEUPS = 1000
"""Models remembered whose wake-up found no free slot here; the sweep repeats wake-ups anyway."""
MAX_SHUT_MS = 5000
"""For how long no task of a model is requested through a closed upstream: the message that it is open may be lost."""

SubmitAnswer = Submitted | ExistingTask | Rejection


class Slots(ABC):
    """See the module. The base of `Dispatcher`, which begins the tasks; and what its parts share."""

    def __init__(self, scheduler: Scheduler, hub: Hub, settings: DispatchSettings) -> None:
        self.scheduler = scheduler
        self.hub = hub
        self.settings = settings
        self.loop = loop = asyncio.get_running_loop()
        self.time = loop.time
        self.pool = Pool(loop.time)
        self.payloads = PayloadCache(settings.payload_cache_bytes, loop.time)
        self.background = Background()
        self.cancels = Cancels(scheduler, hub.deliver, self.background)
        self.offers = Offers(scheduler, self.pool, settings)
        self._timers = ModelTimers(loop, partial(self.on_wake, targeted=True))
        self.ask_later = self._timers.set
        """Set timers for models that may start a task in a while."""
        self._missed_wakeups: set[str] = set()

    @abstractmethod
    def assign_task(self, grant: Grant, worker: Worker) -> None:
        """Begin a task that was granted for a slot of this worker."""

    @property
    def stop_grace_s(self) -> float:
        """How long a worker may take to stop a task before its connection is closed."""
        grace_s = self.scheduler.limits.stop_grace_ms / 1000
        return grace_s - min(STOPS_EARLIER_S, grace_s / 4)

    def submit(self, task: TaskSpec, follow: bool = False) -> Awaitable[SubmitAnswer]:
        """Queue a task, unless its idempotency key names one. `follow`: as `Scheduler.submit` has it. Raise StoreUnavailable. The
        task does not run later then, unless it has an idempotency key, so that its client can repeat the request, or is submitted
        again by its id."""
        done: asyncio.Future[SubmitAnswer] = self.loop.create_future()
        scheduler = self.scheduler
        if scheduler.outbox_full:
            done.set_result(Rejection("outbox_full"))
            return done
        worker, want = self.pool.reserve(task.model, 1, task.task_type) or (None, 0)
        if not task.blobs:  # a feature may give its worker another payload
            self.payloads.put(task.id, task.payload)
        try:
            reply = scheduler.submit(
                *(task, want, scheduler.nonce(), worker.id if worker else ""),
                follow=follow,
                named=worker is not None and worker.models != (ANY,),
                upstream=worker.upstream if worker else "",
            )
        except StoreUnavailable:
            self.payloads.pop(task.id)
            if worker:
                worker.reserve(-want)
            raise
        task.payload, task.blobs = b"", ()  # its caller may wait for long; the store and the cache have it
        reply.add_done_callback(partial(self._on_submitted, task.id, task.again, worker, want, done))
        return done

    def _on_submitted(
        self,
        task_id: str,
        repeatable: bool,
        worker: Worker | None,
        want: int,
        done: asyncio.Future[SubmitAnswer],
        reply: asyncio.Future[Any],
    ) -> None:
        error = reply.exception()
        if error is not None:
            if worker:
                worker.reserve(-want)
            self.payloads.pop(task_id)
            if isinstance(error, StoreError) and error.sent and not repeatable:
                self.cancels.cancel_soon(task_id, "gateway")
            if not done.done():
                done.set_exception(error)
                done.exception()
            return
        answer = self.scheduler.parse_submit(reply.result())
        if isinstance(answer, Submitted):
            if worker:
                self.assign(worker, answer.grants, answer.retry_at, answer.closed_upstreams, want)
            else:
                self.ask_later(answer.retry_at)
        else:
            self.payloads.pop(task_id)
            if worker:
                worker.reserve(-want)
                if isinstance(answer, ExistingTask):  # many arrive at the same time
                    self._on_no_grant(worker)
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
                reply = self.scheduler.take([model], 0, self.scheduler.nonce())
                reply.add_done_callback(self._on_handed_on)

    def _on_handed_on(self, reply: asyncio.Future[Any]) -> None:
        if not reply.cancelled() and reply.exception() is None:
            self.ask_later(self.scheduler.parse_take(reply.result()).retry_at)

    def on_upstream_open(self, model: str, upstream: str) -> None:
        """Something of a model may start through an upstream again."""
        self.pool.reopen(model, upstream)
        self.on_wake(model, targeted=False)

    def fill(self, worker: Worker) -> None:
        """Request tasks for all free slots of a worker: at most MAX_TAKEN at a time, and again while all are granted."""
        free = worker.free(self.time()) if worker in self.pool else 0
        if free > 0:
            want = min(free, MAX_TAKEN)
            worker.reserve(want)
            self._take(worker, want)

    async def fill_all(self) -> None:
        """Fill what stayed empty; of many workers a few at a time, so that nothing else waits for all of them."""
        for number, worker in enumerate(self.pool, 1):
            self.fill(worker)
            if number % MAX_FILLED == 0:
                await asyncio.sleep(FILL_PAUSE_S)

    def _take(self, worker: Worker, want: int, woken: str | None = None) -> None:
        try:
            nonce = self.scheduler.nonce()
            reply = self.scheduler.take(worker.models, want, nonce, worker.id, worker.upstream)
        except StoreUnavailable:
            worker.reserve(-want)
            return  # filled again when the connection is back
        reply.add_done_callback(partial(self._on_taken, worker, want, woken))

    def _on_taken(self, worker: Worker, want: int, woken: str | None, reply: asyncio.Future[Any]) -> None:
        if reply.cancelled() or reply.exception() is not None:
            worker.reserve(-want)
            return  # grants that no replica knows of are free again after a few seconds; the sweep wakes
        grants, later, shut = self.scheduler.parse_take(reply.result())
        self.assign(worker, grants, later, shut, want)
        if grants and len(grants) < want:
            self._on_no_grant(worker)
        if len(grants) < want:
            if woken is not None and any(model == woken for model, _ in shut):
                self.on_wake(woken, targeted=True)  # through another upstream
        elif woken is not None:
            self.on_wake(woken, targeted=False)
        elif want == MAX_TAKEN:
            self.fill(worker)

    def _shut(self, worker: Worker, shut: ClosedUpstreams) -> None:
        """Request nothing of these models through the worker's upstream until a timer fires; other upstreams are tried first."""
        for model, ms in shut:
            self.pool.shut(model, worker.upstream, min(ms, MAX_SHUT_MS))
        self.ask_later([(model, min(ms, MAX_SHUT_MS) + 1) for model, ms in shut])

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

    def assign(
        self, worker: Worker, grants: list[Grant], later: RetryAt, shut: ClosedUpstreams, reserved: int = 0
    ) -> None:
        """Begin the tasks that were granted for free slots of a worker, or request again if a wake-up was missed.

        `reserved`: slots that were reserved for them. Suspects begin first: they have to run alone.
        """
        if reserved:
            worker.reserved -= reserved
            if worker.line is None:
                self.pool.place(worker)
        if later:
            self.ask_later(later)
        if shut:
            self._shut(worker, shut)
        if len(grants) > 1:
            grants.sort(key=lambda grant: not grant.last_lost)
        for grant in grants:
            self.assign_task(grant, worker)
        if not grants and (self._missed_wakeups or worker.changed):
            self._on_no_grant(worker)
        if not reserved and self.scheduler.spans(worker.models):
            self.fill(worker)

    def hold(self, worker: Worker, ms: int) -> None:
        """Give a worker no task for a while."""
        seconds = min(ms, 60_000) / 1000
        worker.hold_until = max(worker.hold_until, self.time() + seconds)
        self.loop.call_later(seconds + 0.001, self.fill, worker)
