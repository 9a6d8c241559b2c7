"""Runs the attempts of a replica: begins them, carries out their ends until the store has answered, and frees their slots.

Every end comes to `_leave`, once. The store's answer (next tasks, timers) goes to the slot that has become free.
"""

import contextlib
from typing import Any

import structlog

from fairlane.queues.chains import Advanced
from fairlane.queues.chains import Step as Advance
from fairlane.queues.clock import now_ms
from fairlane.queues.errors import StoreUnavailable
from fairlane.queues.failures import CANCELLED
from fairlane.queues.keys import is_reserved
from fairlane.queues.logs.rate_limited import RateLimitedLogger
from fairlane.queues.metrics import error_message_of
from fairlane.queues.tasks import ClosedUpstreams, End, Finished, Grant, RetryAt, State, Used
from fairlane.streaming.append_batcher import AppendBatcher
from fairlane.streaming.coalesce import Coalescer
from fairlane.streaming.events import Event, cancelled_end, compose, terminal_event
from fairlane.streaming.writer import TaskWriter
from fairlane.workers.protocol import ResultAck, encoder
from fairlane.workers.server.background import observe
from fairlane.workers.server.health import Health
from fairlane.workers.server.hooks.features import Features
from fairlane.workers.server.hooks.silence import Silence
from fairlane.workers.server.pool.remote_workers import RemoteWorkers
from fairlane.workers.server.pool.suspects import read_suspicion
from fairlane.workers.server.pool.worker import Mismatch, Recent, Worker
from fairlane.workers.server.slots import Slots
from fairlane.workers.server.tasks.accounts import Accounts
from fairlane.workers.server.tasks.attempt import Attempt
from fairlane.workers.server.tasks.attempts import Attempts
from fairlane.workers.server.tasks.effects import Finish, Requeue
from fairlane.workers.server.tasks.sender import Sender
from fairlane.workers.tasktypes import MEDIA

RETRY_REST_MS = 100
"""After a failure that a retry can fix, the worker pauses long enough that an idle one, here or elsewhere, is first."""
MAX_SENT_AWAY = 1000
"""Tasks remembered that no worker here could run, with how often they arrived."""
MAX_REFUSALS = 5
"""Times that a task is brought to other replicas because no worker here supports it; then that is assumed of all."""
MISMATCH_REST_S = 1.0
"""How long no task is requested for a worker after one that only others take: it would get the same one again."""
UNTAKEN = {
    Mismatch.TYPE: "No connected worker takes tasks of type {type}",
    Mismatch.SIZE: "The task is too large for the connected workers: its message has {size} bytes, and they take at most {most}. "
    "Shorten the request, or raise what a worker takes (`limits.maxMessageBytes` in its `register`)",
    Mismatch.REJECTED: "No connected worker can run this task",
    Mismatch.CLOSED: "A worker closed its connection when it got this task ({why}), and no other connected worker can run it",
}
ACK_STATUS = {"ok": "accepted", "late": "stale", "stale": "stale", "duplicate": "duplicate"}

log = structlog.get_logger("fairlane.workers")


class Runner:
    """See the module. The effects of every attempt, and the owner of every writer, of one replica."""

    def __init__(
        self,
        slots: Slots,
        health: Health,
        accounts: Accounts,
        features: Features,
        silence: Silence,
        remote_workers: RemoteWorkers,
    ) -> None:
        self._slots = slots
        self._scheduler = slots.scheduler
        self._pool = slots.pool
        self._background = slots.background
        self._health = health
        self._accounts = accounts
        self._features = features
        self._silence = silence
        self._remote_workers = remote_workers
        self._sender = Sender(slots)
        self._batcher = AppendBatcher(slots.scheduler, slots.loop)
        self._lines = RateLimitedLogger()
        self._sent_away: Recent[str, int] = Recent(MAX_SENT_AWAY)
        self.attempts = Attempts()
        self.settings = slots.settings
        self.time = slots.time
        self.hold = slots.hold
        self.deliver = slots.hub.deliver

    @property
    def stop_grace_s(self) -> float:
        return self._slots.stop_grace_s

    def close(self) -> None:
        """Forget every attempt: leases end by themselves."""
        for attempt in list(self.attempts.values()):
            attempt.over()
            self._leave(attempt)

    # ---- beginning ----------

    def begin(self, grant: Grant, worker: Worker) -> None:
        """Begin an attempt on this worker, and send the task to it as soon as that may be."""
        self._sender.begin(self.new_attempt(grant, worker))

    def new_attempt(self, grant: Grant, worker: Worker) -> Attempt:
        """Return a new attempt, which takes a slot of its worker."""
        settings, suspicion = self.settings, None
        if grant.last_lost:
            suspicion = read_suspicion(grant.last_lost)
            suspicion = suspicion if suspicion and suspicion.isolates(worker.identity) else None
        coalescer = Coalescer(settings.flush_interval_ms, settings.flush_chunks, settings.flush_chars)
        most = settings.max_output_bytes
        writer = TaskWriter(self._scheduler, self, grant, coalescer, self._batcher, max_bytes=most)
        hooks = self._features.hooks_of(grant, worker)
        attempt = Attempt(self, grant, worker, writer, hooks, suspicion)
        self.attempts.add(attempt)
        self._pool.begin(worker, attempt.key, attempt)
        if settings.output_limits:
            self._silence.check(attempt)
        start = Event(grant.epoch, grant.start_seq, "start", grant.start.encode())
        self.deliver(grant.task_id, [start])
        return attempt

    def began_output(self, attempt: Attempt) -> None:
        """Silence counts from now on."""
        if self.settings.output_limits:
            self._silence.check(attempt)
        if attempt.worker.alone is attempt:
            self._sender.release(attempt.worker)
        self._accounts.began_output(attempt)

    def show(self, grant: Grant, event: Event) -> None:
        """Bring an event that is not logged to the readers here and elsewhere."""
        self._slots.hub.show(grant.task_id, event)
        with contextlib.suppress(StoreUnavailable):  # what is not logged is not kept
            self._scheduler.publish_progress(grant, event.type, event.data).add_done_callback(observe)

    # ---- the task ends ----------

    def finish(self, attempt: Attempt, end: Finish) -> None:
        """Write the end of a task behind its output."""
        worker, fragment = attempt.worker, end.fragment
        if end.state is State.FAILED:
            for hook in attempt.hooks:
                fragment = hook.failure(fragment)
        attempt.writer.finish(
            end.state,
            end.code,
            fragment,
            used=end.used,
            want=0 if end.keep_slot else self._pool.wanted(worker, leaving=1),
            models=worker.models,
            worker=worker.id,
            keep_ms=self._scheduler.limits.stop_grace_ms if end.keep_slot else 0,
            upstream=worker.upstream,
        )

    def on_written(self, grant: Grant, finished: Finished) -> None:
        """A writer's end was answered."""
        attempt = self.attempts.of(grant)
        if attempt is None or attempt.end is None:
            return
        end = attempt.end
        if finished.outcome == "ok":
            self._accounts.ended(attempt, end.state, end.code, end.used)
        if end.keep_slot:
            attempt.wait_for_stop()
            if attempt.worker not in self._pool:
                attempt.lost()
            return
        self.freed(
            *(attempt, finished.outcome, finished.grants, finished.retry_at, finished.closed_upstreams)
        )

    def freed(
        self, attempt: Attempt, outcome: str, grants: list[Grant], retry_at: RetryAt, closed: ClosedUpstreams
    ) -> None:
        """The attempt is over, and the store has answered its end: its slot takes what was granted for it."""
        attempt.phase = "over"
        worker = self._leave(attempt)
        _acknowledge(attempt, outcome)
        self._slots.assign(worker, grants, retry_at, closed)

    def on_advanced(self, grant: Grant, step: Advance, advanced: Advanced) -> None:
        """The end of a stage, or of a part, was answered."""
        attempt = self.attempts.of(grant)
        for hook in attempt.hooks if attempt is not None else ():
            assert attempt is not None
            hook.advanced(attempt, step, advanced)

    def on_unwritable(self, grant: Grant, why: str) -> None:
        """A writer cannot continue."""
        attempt = self.attempts.of(grant)
        if attempt is not None:
            attempt.cannot_write(why)

    def release(self, attempt: Attempt, used: Used) -> None:
        """Free the slot of a task that was ended elsewhere, whose worker has stopped, and settle what it used."""
        self._background.spawn(self._release(attempt, self._leave(attempt), used))

    async def _release(self, attempt: Attempt, worker: Worker, used: Used) -> None:
        grant = attempt.grant
        want = self._pool.wanted(worker)
        worker.reserve(want)
        # if the store lost the real end
        terminal = "cancelled", compose(grant.task_id, now_ms(), cancelled_end("gateway").rest)
        end = End(
            *(State.CANCELLED, CANCELLED, terminal, used, self._scheduler.nonce()),
            *(want, worker.models, worker.id),
            upstream=worker.upstream,
        )
        try:
            reply: Any = await self._background.until_answered(
                lambda: self._scheduler.finish(grant, 0, [], end)
            )
        finally:
            worker.reserve(-want)
        finished = self._scheduler.parse_finish(reply)
        if finished.outcome == "ok":
            self._accounts.ended(attempt, State.CANCELLED, CANCELLED, used)
        _acknowledge(attempt, finished.outcome)
        self._slots.assign(worker, finished.grants, finished.retry_at, finished.closed_upstreams)

    # ---- the task returns to its queue ----------

    def requeue(self, attempt: Attempt, step: Requeue) -> None:
        """Return a task to its queue; its slot is free."""
        for hook in attempt.hooks:
            hook.stopped(attempt, step.why)
        grant, worker = attempt.grant, self._leave(attempt)
        if not step.hold_ms and not step.repair:  # then the worker was not the reason
            worker.avoided.put(grant.task_id, True)
        if step.blameless:
            self._health.ended(worker, grant.model, State.COMPLETED, "", "")
        elif step.cause in ("failed", "falls"):
            sentence = error_message_of(b"{%b}" % step.end.rest) if step.end else ""
            self._health.ended(worker, grant.model, State.FAILED, step.why, sentence)
            if not is_reserved(grant.model):  # other endpoints are not to wait for one that fails
                self._slots.hold(worker, RETRY_REST_MS)
        self._lines.log(
            log.info,
            "task requeued",
            task_id=grant.task_id,
            request_id=grant.request_id,
            model=grant.asked,
            worker_id=worker.id,
            reason=step.why,
            hold_ms=step.hold_ms,
        )
        self._background.spawn(self._put_back(attempt, step))

    async def _put_back(self, attempt: Attempt, step: Requeue) -> None:
        # (how often an endpoint is called is said by its `retries`, by any client)
        if (
            step.cause == "failed"
            and not is_reserved(attempt.grant.model)
            and await self._background.until_answered(
                lambda: self._health.is_to_blame(attempt.worker, attempt.grant)
            )
        ):
            step = step._replace(cause="declined")
        outcome = await self._give_back(attempt.grant, step, attempt.worker)
        _acknowledge(attempt, "stale" if outcome == "stale" else "ok")
        self._slots.fill(attempt.worker)

    def give_back_soon(self, grant: Grant) -> None:
        """Return a task that was granted and that no worker here can take: it has not begun."""
        step = Requeue("no worker any more", "declined", unsent=True)
        self._background.spawn(self._give_back(grant, step))

    async def _give_back(self, grant: Grant, step: Requeue, worker: Worker | None = None) -> str:
        how = step._asdict()
        why, by = how.pop("why"), f"{worker.name}, token {worker.key_id}" if worker else ""
        how.pop("blameless")
        ended = await self._background.until_answered(
            lambda: self._scheduler.requeue(grant, why, **how, by=by)
        )
        self._slots.ask_later(ended.retry_at)
        if ended.outcome == "ended":
            self.deliver(grant.task_id, [terminal_event(ended)])
        return ended.outcome

    # ---- the slot is free ----------

    def _leave(self, attempt: Attempt) -> Worker:
        """The only place where an attempt leaves its worker's slot. Return the worker."""
        worker = attempt.worker
        if worker.attempts.get(attempt.key) is attempt:
            self._pool.end(worker, attempt.key)
        self.attempts.remove(attempt)
        if attempt.timer is not None:
            attempt.timer.cancel()
            attempt.timer = None
        if attempt.usage.corrected is not None:
            self._accounts.corrected(attempt)
        late_until = 0.0 if attempt.answered else self._slots.time() + self._slots.stop_grace_s
        worker.finished_attempts.put(attempt.key, late_until)
        for hook in attempt.hooks:
            hook.left(attempt)
        if worker.held or worker.alone is attempt:
            self._slots.loop.call_soon(self._sender.release, worker)
        if worker._suspended and not any(a.phase == "stopping" for a in worker.attempts.values()):
            worker.suspended = False
            self._slots.loop.call_soon(self._slots.fill, worker)
        return worker

    def drain(self, worker: Worker) -> None:
        """Give a worker no task any more."""
        worker.draining = True
        self._slots.offers.offer(worker)

    # ---- tasks that a worker cannot run ----------

    def reassign(self, attempt: Attempt, worker: Worker) -> None:
        """Begin again on another worker: the grant stays."""
        attempt.over()
        self._leave(attempt)
        self.begin(attempt.grant, worker)

    def move(self, attempt: Attempt, why: Mismatch, size: int = 0, payload: bytes = b"") -> None:
        """An attempt's worker cannot run it: bring it to a worker that can, here or elsewhere, or end it.

        The attempt was sent to no worker, or is rejected; from here on it is this method's.
        """
        grant, worker = attempt.grant, attempt.worker
        if payload:
            self._slots.payloads.put(grant.task_id, payload)
        if why is not Mismatch.TYPE:
            worker.refused.put(grant.task_id, why)
        other = self._pool.pick(
            *(grant.model, grant.task_type, grant.task_id, worker.upstream),
            size=size,
            suspicion=attempt.suspicion,
        )
        if other is not None:
            self.reassign(attempt, other)
            self._slots.fill(worker)
            return
        worker.rest_until = self.time() + MISMATCH_REST_S
        self._slots.loop.call_later(MISMATCH_REST_S + 0.001, self._slots.fill, worker)
        if self._pool.any_takes(grant.model, grant.task_type, grant.task_id, size, attempt.suspicion):
            attempt.decline(why.value)
        else:
            self._background.spawn(self._move_elsewhere(attempt, why, size))

    async def _move_elsewhere(self, attempt: Attempt, why: Mismatch, size: int) -> None:
        """Let another replica run the task, if one can, or end it: no worker here can."""
        grant, remote = attempt.grant, self._remote_workers
        times = (self._sent_away.get(grant.task_id) or 0) + 1
        self._sent_away.put(grant.task_id, times)
        tired = why in (Mismatch.REJECTED, Mismatch.CLOSED) and times > MAX_REFUSALS
        if not tired and await self._background.until_answered(lambda: remote.takes(grant, size)):
            attempt.decline(why.value)
            return
        code = "WORKER_LOST" if why is Mismatch.CLOSED else "NO_WORKER"
        if grant.task_type in MEDIA and why not in (Mismatch.SIZE, Mismatch.CLOSED):
            code, why = "TYPE_NOT_OFFERED", Mismatch.TYPE
        reason = attempt.suspicion.why if attempt.suspicion else ""
        most = self._pool.max_message_bytes(grant.model)
        text = UNTAKEN[why].format(type=grant.task_type, size=size, most=most, why=reason)
        attempt.fail(code, text, retryable=False)


def _acknowledge(attempt: Attempt, outcome: str) -> None:
    """Acknowledge a worker's result."""
    if attempt.answered and attempt.worker.version >= 2:
        status = ACK_STATUS.get(outcome, "unknown")
        attempt.worker.send(encoder.encode(ResultAck(*attempt.key, status)))  # type: ignore[arg-type]
