"""Begins granted tasks: a grant becomes an attempt on a worker here, or moves to a replica that takes it."""

import asyncio
from typing import Any

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
from fairlane.workers.server.suspects import read_suspicion
from fairlane.workers.server.tasks.attempt import Attempt, key_of
from fairlane.workers.server.tasks.effects import AttemptEffects
from fairlane.workers.server.tasks.output_timeouts import OutputTimeouts
from fairlane.workers.server.tasks.spans import trace_attempt, trace_wait
from fairlane.workers.server.tasks.steps import BEFORE_THE_END
from fairlane.workers.tasktypes import MEDIA
from fairlane.workers.tracing import Tracer

MAX_SENT_AWAY = 1000
"""Tasks remembered that no worker here could run, with how often they arrived."""
MAX_REFUSALS = 5
"""Times that a task is brought to other replicas because no worker here supports it; then that is assumed of all."""
HELD_S = 2.0
"""How long a suspect waits until a worker is idle; meanwhile its worker gets nothing else."""
ASIDE_MS = 10_000
"""For how long it stands aside if none was: then it is granted again, as often as a task may be."""
LOOK_S = 1.0
UNTAKEN = {
    Mismatch.TYPE: "No connected worker takes tasks of type {type}",
    Mismatch.SIZE: "The task is too large for the connected workers: its message has {size} bytes, and they take at most {most}. "
    "Shorten the request, or raise what a worker takes (`limits.maxMessageBytes` in its `register`)",
    Mismatch.REJECTED: "No connected worker can run this task",
    Mismatch.CLOSED: "A worker closed its connection when it got this task ({why}), and no other connected worker can run it",
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
        self._loop = asyncio.get_running_loop()
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
        suspicion = read_suspicion(grant.last_lost)
        other = self._pool.pick(
            grant.model, grant.task_type, grant.task_id, worker.upstream, suspicion=suspicion
        )
        if other is worker and key_of(grant, worker) not in worker.attempts:  # 1, as it is with most
            self._begin(grant, worker)
            return
        mismatch = worker.mismatch(grant.task_type, grant.task_id)
        if suspicion is not None and suspicion.excludes(worker.identity):
            mismatch = Mismatch.CLOSED
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
        """Begin an attempt. It is held back while the worker runs a suspect, or if it is one and the worker runs anything."""
        attempt = self._new_attempt(grant, worker)
        if (
            worker.held
            or worker.alone is not None
            or (attempt.suspicion is not None and len(worker.attempts) > 1)
        ):
            worker.held.append(attempt)
            worker.hold_until = self._pool.time() + HELD_S
            if attempt.suspicion is not None:
                self._loop.call_later(LOOK_S, self._look_for_idle_worker, attempt)
        else:
            self._send(attempt)

    def release_held(self, worker: Worker) -> None:
        """Send what a worker holds back, in order: a suspect when nothing else runs there, others when no suspect runs alone."""
        alone = worker.alone
        if alone is not None and (alone.phase not in BEFORE_THE_END or alone.first_output_at):
            worker.alone = None
        worker.held = [attempt for attempt in worker.held if attempt.phase == "sent"]
        while worker.held and worker.alone is None:
            attempt = worker.held[0]
            if attempt.suspicion is not None and len(worker.attempts) > len(worker.held):
                return
            del worker.held[0]
            self._send(attempt)
        if worker.alone is None:
            worker.hold_until = 0.0
            self._slots.fill(worker)

    def _survived(self, attempt: Attempt) -> None:
        """A suspect has run alone for longer than when its worker was lost."""
        if attempt.worker.alone is attempt:
            attempt.worker.alone = None
            self.release_held(attempt.worker)

    def _look_for_idle_worker(self, attempt: Attempt) -> None:
        """Move a suspect that is held back to an idle worker, or let it stand aside if there was none."""
        grant, worker = attempt.grant, attempt.worker
        if attempt not in worker.held or attempt.phase != "sent":
            return
        other = self._pool.pick(
            grant.model, grant.task_type, grant.task_id, worker.upstream, suspicion=attempt.suspicion
        )
        if other is not None and other.suits(attempt.suspicion):
            self._effects.reassigned(attempt)
            self._begin(grant, other)
        elif self._pool.time() - attempt.granted_at > HELD_S:
            attempt.decline("no worker is idle", aside_ms=ASIDE_MS)
        else:
            self._loop.call_later(LOOK_S, self._look_for_idle_worker, attempt)

    def _send(self, attempt: Attempt) -> None:
        grant, worker = attempt.grant, attempt.worker
        if attempt.suspicion is not None:
            worker.alone = attempt
            worker.hold_until = self._pool.time() + attempt.suspicion.alone_s
            self._loop.call_later(attempt.suspicion.alone_s, self._survived, attempt)
        payload = self._payloads.pop(grant.task_id)
        others = grant.repaired is not None or grant.stage  # it has got another payload meanwhile
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
        if attempt.phase != "sent":
            return
        if payload is None:
            attempt.withdraw()  # it ended between the grant and this read
        else:
            attempt.send(payload)

    # ---- tasks that a worker cannot run ----------

    def move(self, attempt: Attempt, why: Mismatch, size: int = 0) -> None:
        """An attempt's worker cannot run it: bring it to a worker that can, here or elsewhere, or end it.

        `size`: of its frame, if that is the reason.

        The attempt was sent to no worker, or is rejected; from here on it is this method's.
        """
        grant, worker = attempt.grant, attempt.worker
        if why is not Mismatch.TYPE:
            worker.refused.put(grant.task_id, why)
        more: dict[str, Any] = {"size": size, "suspicion": attempt.suspicion}
        other = self._pool.pick(grant.model, grant.task_type, grant.task_id, worker.upstream, **more)
        if other is not None:
            self._effects.reassigned(attempt)
            self._begin(grant, other)
            self._slots.fill(worker)
            return
        self._slots.rest(worker)
        if self._pool.any_takes(grant.model, grant.task_type, grant.task_id, **more):
            attempt.decline(why.value)
        else:
            self._background.spawn(self._move_elsewhere(attempt, why, size))

    async def _move_elsewhere(self, attempt: Attempt, why: Mismatch, size: int) -> None:
        """Let another replica run the task, if one can, or end it: no worker here can."""
        grant = attempt.grant
        times = (self._sent_away.get(grant.task_id) or 0) + 1
        self._sent_away.put(grant.task_id, times)
        tired = why in (Mismatch.REJECTED, Mismatch.CLOSED) and times > MAX_REFUSALS
        if not tired and await self._background.until_answered(
            lambda: self._remote_workers.takes(grant, size)
        ):
            attempt.decline(why.value)
        else:
            code = "WORKER_LOST" if why is Mismatch.CLOSED else "NO_WORKER"
            if grant.task_type in MEDIA and why not in (Mismatch.SIZE, Mismatch.CLOSED):
                code, why = "TYPE_NOT_OFFERED", Mismatch.TYPE
            reason = attempt.suspicion.why if attempt.suspicion else ""
            most = self._pool.max_message_bytes(grant.model)
            text = UNTAKEN[why].format(type=grant.task_type, size=size, most=most, why=reason)
            attempt.fail(code, text, retryable=False)
