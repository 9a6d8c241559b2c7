"""Carries out what attempts come to, until the store has answered, and gives their slots back.

The one way down for every attempt of a replica: each step ends in `_forget`, once. What comes with the store's answer (the next
tasks, timers) goes to the slot that has become free.
"""

from typing import Any, Protocol

import structlog

from fairlane.queues.errors import StoreUnavailable
from fairlane.queues.failed import Allowance
from fairlane.queues.link import RedisLink
from fairlane.queues.metrics import EndedTask, TaskEnd, sentence_of
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.tasks import Finished, Grant, Later, State
from fairlane.streaming.events import Event, compose, fragment_cancelled, parse_event_id, progress_event
from fairlane.streaming.failures import CANCELLED
from fairlane.streaming.hub import Hub
from fairlane.workers.protocol import ResultAck, encoder
from fairlane.workers.server.attempt import (
    NO_USAGE,
    Attempt,
    Attempts,
    Finish,
    Move,
    Phase,
    Release,
    Requeue,
    Step,
    attempts_on,
)
from fairlane.workers.server.background import Background, observe
from fairlane.workers.server.pool import RETRY_REST_MS, Mismatch, Worker
from fairlane.workers.server.settings import DispatchSettings
from fairlane.workers.server.spans import trace_end

FAILS_ALL = 10
"""Failures in a row, without one task that completed between them, that are told."""
CALLERS_FAULTS = frozenset({"BAD_REQUEST", "CONTEXT_LENGTH", "CONTENT_FILTERED"})
"""Ends that say that the worker works."""

log = structlog.get_logger("fairlane.workers")


class Slots(Protocol):
    """The slots of this replica's workers, as far as ends need them (dispatch.py)."""

    settings: DispatchSettings
    stop_grace_s: float

    def time(self) -> float: ...

    def now_ms(self) -> int: ...

    def connected_now(self, worker: Worker) -> bool:
        """Whether its connection is still there."""
        ...

    def want_after(self, worker: Worker, ending: Attempt | None = None) -> int:
        """How many tasks to ask for when an attempt ends."""
        ...

    def reserve(self, worker: Worker, count: int) -> None:
        """Keep slots for a question that is under way; negative: give them back."""
        ...

    def use(self, worker: Worker, grants: list[Grant], later: Later) -> None:
        """Begin what was granted for a free slot, or ask again if that may help."""
        ...

    def fill(self, worker: Worker) -> None:
        """Ask for tasks for all free slots of a worker."""
        ...

    def fill_soon(self, worker: Worker) -> None: ...

    def ask_later(self, later: Later) -> None:
        """Set timers for models that may start a task in a while."""
        ...

    def keep_payload(self, task_id: str, payload: bytes) -> None: ...

    def mismatch(self, attempt: Attempt, why: Mismatch) -> None:
        """Bring an attempt's task to a worker that can run it, or end it."""
        ...

    def hold(self, worker: Worker, ms: int) -> None: ...

    def changed(self, worker: Worker) -> None: ...


class Endings:
    """See the module. The effects of every attempt, and the owner of every writer, of one replica."""

    def __init__(
        self,
        scheduler: Scheduler,
        link: RedisLink,
        hub: Hub,
        slots: Slots,
        attempts: Attempts,
        background: Background,
    ) -> None:
        self._scheduler = scheduler
        self._link = link
        self._hub = hub
        self._slots = slots
        self._attempts = attempts
        self._background = background
        self._lines = Allowance()
        self._untold = 0
        self.deliver = hub.deliver
        self.time = slots.time
        self.keep_payload = slots.keep_payload
        self.hold = slots.hold
        self.changed = slots.changed

    @property
    def settings(self) -> DispatchSettings:
        return self._slots.settings

    @property
    def stop_grace_s(self) -> float:
        return self._slots.stop_grace_s

    def close(self) -> None:
        """Forget every attempt: leases end by themselves."""
        for attempt in list(self._attempts.values()):
            attempt.forget()
            self._forget(attempt)

    # ---- steps ----------

    def carry_out(self, attempt: Attempt, step: Step) -> None:
        """Do what an attempt has come to."""
        if isinstance(step, Finish):
            self._finish(attempt, step)
        elif isinstance(step, Release):
            self._background.spawn(self._release(attempt, self._forget(attempt), step.used))
        elif isinstance(step, Requeue):
            self._requeue(attempt, step)
        else:
            assert isinstance(step, Move)
            self._slots.mismatch(attempt, step.why)

    def _finish(self, attempt: Attempt, end: Finish) -> None:
        worker = attempt.worker
        attempt.writer.finish(
            end.state,
            end.code,
            end.fragment,
            used=end.used,
            want=0 if end.keep_slot else self._slots.want_after(worker, attempt),
            models=worker.models,
            worker=worker.id,
            keep_ms=round(self.stop_grace_s * 1000) if end.keep_slot else 0,
        )

    def on_written(self, grant: Grant, finished: Finished) -> None:
        """A writer's end was answered."""
        attempt = self._attempts.of(grant)
        if attempt is None or attempt.end is None:
            return
        end = attempt.end
        if finished.outcome == "ok":
            self._account(attempt, end.state, end.code, end.used)
        if end.keep_slot:
            attempt.wait_for_stop()
            if not self._slots.connected_now(attempt.worker):
                attempt.lost()
            return
        attempt.written()
        worker = self._forget(attempt)
        _acknowledge(attempt, finished.outcome)
        self._slots.use(worker, finished.grants, finished.later)

    def on_unwritable(self, grant: Grant, why: str) -> None:
        """A writer cannot go on."""
        attempt = self._attempts.of(grant)
        if attempt is not None:
            attempt.cannot_write(why)

    def _requeue(self, attempt: Attempt, step: Requeue) -> None:
        if attempt.span is not None:
            attempt.span.end(step.why)
        worker, task_id = self._forget(attempt), attempt.grant.task_id
        if not step.hold_ms:  # then the worker was not the reason
            worker.avoided.put(task_id, True)
        if step.cause == "failed":
            watch_worker(worker, State.FAILED, step.why)
            self._slots.hold(worker, RETRY_REST_MS)
        if self._lines.take():
            untold, self._untold = self._untold, 0
            log.info(
                "task goes back to its queue",
                task_id=task_id,
                request_id=attempt.grant.request_id,
                worker_id=worker.id,
                why=step.why,
                hold_ms=step.hold_ms,
                **({"and_others_before": untold} if untold else {}),
            )
        else:
            self._untold += 1
        self._background.spawn(self._give_back(attempt, step))

    async def _give_back(self, attempt: Attempt, step: Requeue) -> None:
        grant, worker = attempt.grant, attempt.worker
        ended = await self._background.until_answered(
            lambda: self._scheduler.requeue(
                grant,
                step.why,
                cause=step.cause,
                begun=step.begun,
                end=step.end,
                who=worker.identity,
                hold_ms=step.hold_ms,
            )
        )
        self._slots.ask_later(ended.later)
        if ended.outcome == "ended":
            self.deliver(grant.task_id, [terminal_event(ended.event_id, ended.kind, ended.data)])
        _acknowledge(attempt, "stale" if ended.outcome == "stale" else "ok")
        self._slots.fill(worker)

    async def _release(self, attempt: Attempt, worker: Worker, used: tuple[int, int]) -> None:
        """A stopped task's worker has answered: free the lease, settle, and take for the slot."""
        grant = attempt.grant
        nonce = self._scheduler.nonce()
        want = self._slots.want_after(worker)
        self._slots.reserve(worker, want)
        cancelled = compose(
            grant.task_id, self._slots.now_ms(), fragment_cancelled("gateway")
        )  # if the store lost the real end
        try:
            reply: Any = await self._background.until_answered(
                lambda: self._scheduler.finish(
                    grant,
                    State.CANCELLED,
                    CANCELLED,
                    0,
                    [],
                    ("cancelled", cancelled),
                    used=used,
                    want=want,
                    models=worker.models,
                    nonce=nonce,
                    worker=worker.id,
                )
            )
        finally:
            self._slots.reserve(worker, -want)
        finished = self._scheduler.finished(reply)
        if finished.outcome == "ok":
            self._account(attempt, State.CANCELLED, CANCELLED, used)
        _acknowledge(attempt, finished.outcome)
        self._slots.use(worker, finished.grants, finished.later)

    def moved(self, attempt: Attempt) -> Worker:
        """An attempt goes on with another worker: its slot is free, the grant stays. Returns the worker it was on."""
        attempt.forget()
        return self._forget(attempt)

    def _forget(self, attempt: Attempt) -> Worker:
        """The only place where an attempt leaves its worker's slot."""
        worker = attempt.worker
        if worker.attempts.get(attempt.key) is attempt:
            del worker.attempts[attempt.key]
        self._attempts.remove(attempt)
        worker.past.put(attempt.key, 0.0 if attempt.answered else self.time() + self.stop_grace_s)
        if attempt.span is not None:
            attempt.span.end()
        if worker.suspended and not any(a.phase is Phase.STOPPING for a in attempts_on(worker)):
            worker.suspended = False
            self._slots.fill_soon(worker)
        return worker

    # ---- what is shown and measured ----------

    def show_progress(self, grant: Grant, pct: float | None, note: str | None) -> None:
        """Bring progress to the readers known at the grant; it is not logged."""
        event = progress_event(grant.task_id, self._slots.now_ms(), pct, note)
        self._hub.show(grant.task_id, event)
        message = b"n\n%b\n%b\n%b" % (grant.task_id.encode(), event.type.encode(), event.data)
        for replica in grant.readers.split(","):
            if replica and replica != self._scheduler.replica:
                try:
                    channel = self._scheduler.channel(replica)
                    self._link.command("PUBLISH", channel, message).add_done_callback(observe)
                except StoreUnavailable:
                    return  # nobody keeps what is not logged

    def began_output(self, attempt: Attempt) -> None:
        """Tell the metrics, and its span, of an attempt's first output."""
        grant = attempt.grant
        since_ms = attempt.since_submission_ms(attempt.first_output_at)
        self._scheduler.metrics.began_output(grant.model, grant.task_type, since_ms)
        if attempt.span is not None:
            attempt.span.event("first_output")

    def _account(self, attempt: Attempt, state: State, code: str, used: tuple[int, int] = NO_USAGE) -> None:
        """Tell the metrics, and its span, that an attempt ended its task."""
        grant, now = attempt.grant, self.time()
        watch_worker(attempt.worker, state, code)
        if attempt.span is not None:
            trace_end(attempt.span, state, code, used)
        self._scheduler.metrics.ended(
            TaskEnd(
                grant.queue,
                grant.model,
                grant.task_type,
                state,
                code,
                attempt.since_submission_ms(now),
                (now - attempt.granted_at) * 1000,
                (now - attempt.first_output_at) * 1000 if attempt.first_output_at else -1,
                used,
                self._ended_task(attempt) if state is State.FAILED else None,
            )
        )

    @staticmethod
    def _ended_task(attempt: Attempt) -> EndedTask:
        grant, end = attempt.grant, attempt.end
        sentence = sentence_of(b"{%b}" % end.fragment) if end is not None else ""
        return EndedTask(
            grant.task_id,
            grant.request_id,
            grant.user,
            grant.asked,
            attempt.worker.id,
            grant.attempt,
            sentence,
        )


def terminal_event(event_id: str, kind: str, data: bytes) -> Event:
    """The terminal event that a script wrote, for the readers here."""
    return Event(*parse_event_id(event_id), kind, data)


def watch_worker(worker: Worker, state: State, code: str) -> None:
    """Tell of a worker for which all tasks fail: one that fails at once is always free, and is given the next one."""
    if state is State.COMPLETED or code in CALLERS_FAULTS:
        if worker.failures >= FAILS_ALL:
            log.info("worker completes tasks again", worker_id=worker.id, name=worker.name)
        worker.failures = 0
    elif state is State.FAILED:
        worker.failures += 1
        if worker.failures in (FAILS_ALL, 10 * FAILS_ALL) or worker.failures % (100 * FAILS_ALL) == 0:
            log.warning(
                "worker fails everything",
                worker_id=worker.id,
                name=worker.name,
                models=worker.told_models,
                in_a_row=worker.failures,
                code=code,
            )


ACK_STATUS = {"ok": "accepted", "late": "stale", "stale": "stale", "duplicate": "duplicate"}


def _acknowledge(attempt: Attempt, outcome: str) -> None:
    """Let a worker forget its result."""
    if attempt.answered and attempt.worker.version >= 2:
        status = ACK_STATUS.get(outcome, "unknown")
        attempt.worker.send(encoder.encode(ResultAck(*attempt.key, status)))  # type: ignore[arg-type]
