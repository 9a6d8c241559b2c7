"""Begins granted tasks: a grant becomes an attempt on a worker here, or moves to a replica that takes it."""

from fairlane.queues.scheduler import Scheduler
from fairlane.queues.tasks import Grant
from fairlane.streaming.append_batcher import AppendBatcher
from fairlane.streaming.coalesce import Coalescer
from fairlane.streaming.events import Event
from fairlane.streaming.writer import TaskWriter
from fairlane.workers.server.background import Background
from fairlane.workers.server.offers.remote_workers import RemoteWorkers
from fairlane.workers.server.payloads import PayloadCache
from fairlane.workers.server.pool import Mismatch, Recent, Worker
from fairlane.workers.server.settings import DispatchSettings
from fairlane.workers.server.slots import Slots
from fairlane.workers.server.tasks.attempt import Attempt, key_of
from fairlane.workers.server.tasks.effects import AttemptEffects
from fairlane.workers.server.tasks.output_timeouts import OutputTimeouts
from fairlane.workers.server.tasks.spans import trace_attempt, trace_wait
from fairlane.workers.server.tasks.steps import Phase
from fairlane.workers.tasktypes import MEDIA
from fairlane.workers.tracing import Tracer

MAX_SENT_AWAY = 1000
"""Tasks remembered that no worker here could run, with how often they arrived."""
MAX_REFUSALS = 5
"""Times that a task is brought to other replicas because no worker here supports it; then that is assumed of all."""
UNTAKEN = {
    Mismatch.TYPE: "No connected worker takes tasks of type {}",
    Mismatch.SIZE: "The task is too large for the connected workers",
    Mismatch.REJECTED: "No connected worker can run this task",
}


class Assigner:
    """See the module. `tracer`: where traces are wanted."""

    def __init__(
        self,
        scheduler: Scheduler,
        slots: Slots,
        effects: AttemptEffects,
        payloads: PayloadCache,
        remote_workers: RemoteWorkers,
        background: Background,
        settings: DispatchSettings,
        batcher: AppendBatcher,
        timeouts: OutputTimeouts,
        tracer: Tracer | None,
    ) -> None:
        self._scheduler = scheduler
        self._slots = slots
        self._pool = slots.pool
        self._effects = effects
        self._attempts = effects.attempts
        self._payloads = payloads
        self._remote_workers = remote_workers
        self._background = background
        self._settings = settings
        self._batcher = batcher
        self._timeouts = timeouts
        self._tracer = tracer
        self._sent_away: Recent[str, int] = Recent(MAX_SENT_AWAY)

    def start(self, grant: Grant, asked_for: Worker) -> None:
        """Begin a granted task, on the worker it was asked for or a better one.

        0 An older attempt of the task that is held here has lost its lease: it is stopped, and its slot is free when its worker
        answers. 1 On the least recently used of those of the same upstream that are free for it. The slot that it was asked for
        stays free then; it is known to be, if the other one had asked for the same models in vain, else it asks again. 2 With no
        other: back to its place if the worker is gone, drains, may not offer the model any more, cannot distinguish the two
        attempts, or backs off; one that should rather not tries again. 3 A task that the worker does not take is brought to
        one that does, or ends.
        """
        known = self._attempts.newest(grant.task_id)
        if known is not None:
            if known.grant.token == grant.token:
                return  # a repeated reply
            known.worker.avoided.put(grant.task_id, True)
            known.stop("superseded")  # 0
        if grant.attempt == 1:
            waited_ms = grant.granted_ms - grant.enqueued_ms
            self._scheduler.metrics.granted(grant.queue, grant.model, waited_ms)
            if self._tracer is not None:
                trace_wait(self._tracer, grant)
        worker = asked_for
        other = self._pool.pick(grant.model, grant.task_type, grant.task_id, worker.upstream)
        if other is worker and key_of(grant, worker) not in worker.attempts:  # 1, as it is with most
            self._begin(grant, worker)
            return
        mismatch = worker.mismatch(grant.task_type, grant.task_id)
        if other is not None and other is not worker:  # 1
            known_free = other.models == worker.models and other.free(self._pool.time()) > 0
            self._begin(grant, other)
            if mismatch or not known_free:
                self._slots.fill(worker)
        elif (
            worker not in self._pool
            or worker.draining
            or not worker.serves(grant.model)
            or key_of(grant, worker) in worker.attempts
            or (worker.cap is not None and len(worker.attempts) >= worker.cap)
        ):  # 2
            self._effects.give_back_soon(grant)
            if not worker.serves(grant.model):
                self._slots.fill(worker)  # with what it offers by now
        elif mismatch:  # 3
            self.move(self._new_attempt(grant, worker), mismatch)
        else:
            self._begin(grant, worker)

    def _begin(self, grant: Grant, worker: Worker) -> None:
        attempt = self._new_attempt(grant, worker)
        payload = self._payloads.pop(grant.task_id)
        others = grant.repair not in ("", "1") or grant.stage  # it has got another payload meanwhile
        if payload is not None and not others:
            attempt.send(payload)
        else:
            self._background.spawn(self._fetch_payload(attempt))

    def _new_attempt(self, grant: Grant, worker: Worker) -> Attempt:
        settings, effects = self._settings, self._effects
        coalescer = Coalescer(settings.flush_interval_ms, settings.flush_chunks, settings.flush_chars)
        max_bytes = settings.max_output_bytes
        writer = TaskWriter(self._scheduler, effects, grant, coalescer, self._batcher, max_bytes=max_bytes)
        span = None if self._tracer is None else trace_attempt(self._tracer, grant, worker)
        attempt = Attempt(effects, grant, worker, writer, span)
        worker.attempts[attempt.key] = attempt
        self._attempts.add(attempt)
        self._timeouts.check(attempt)
        self._pool.touch(worker)
        effects.deliver(grant.task_id, [Event(grant.epoch, grant.start_seq, "start", grant.start.encode())])
        return attempt

    async def _fetch_payload(self, attempt: Attempt) -> None:
        task_id = attempt.grant.task_id
        try:
            payload = await self._background.until_answered(lambda: self._scheduler.payload(task_id))
        except BaseException:  # whatever it was, the task must not stay with a worker that never hears of it
            attempt.decline("its payload could not be read")
            raise
        if attempt.phase is not Phase.SENT:
            return
        if payload is None:
            attempt.withdraw()  # it ended between the grant and this read
        else:
            attempt.send(payload)

    # ---- tasks that a worker cannot run ----------

    def move(self, attempt: Attempt, why: Mismatch) -> None:
        """An attempt's worker cannot run it: bring it to a worker that can, here or elsewhere, or end it.

        The attempt was sent to no worker, or is rejected; from here on it is this method's.
        """
        grant, worker = attempt.grant, attempt.worker
        if why is not Mismatch.TYPE:
            worker.refused.put(grant.task_id, why)
        other = self._pool.pick(grant.model, grant.task_type, grant.task_id, worker.upstream)
        if other is not None:
            self._effects.reassigned(attempt)
            self._begin(grant, other)
            self._slots.fill(worker)
            return
        self._slots.rest(worker)
        if self._pool.any_takes(grant.model, grant.task_type, grant.task_id):
            attempt.decline(why.value)
        else:
            self._background.spawn(self._move_elsewhere(attempt, why))

    async def _move_elsewhere(self, attempt: Attempt, why: Mismatch) -> None:
        """Let another replica run the task, if one can, or end it: no worker here can."""
        grant = attempt.grant
        times = (self._sent_away.get(grant.task_id) or 0) + 1
        self._sent_away.put(grant.task_id, times)
        tired = why is Mismatch.REJECTED and times > MAX_REFUSALS
        if not tired and await self._background.until_answered(
            lambda: self._remote_workers.takes(grant, why)
        ):
            attempt.decline(why.value)
        else:
            code = "NO_WORKER"
            if grant.task_type in MEDIA and why is not Mismatch.SIZE:
                code, why = "TYPE_NOT_OFFERED", Mismatch.TYPE
            attempt.fail(code, UNTAKEN[why].format(grant.task_type), retryable=False)
