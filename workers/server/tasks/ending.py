"""Carries out what attempts come to, until the store has answered, and gives their slots back.

The one way down for every attempt of a replica: each step ends in `_forget`, once. What comes with the store's answer (the next
tasks, timers) goes to the slot that has become free.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import structlog

from fairlane.queues.errors import StoreUnavailable
from fairlane.queues.failures import CANCELLED
from fairlane.queues.keys import is_reserved
from fairlane.queues.logs.sums import FewLines
from fairlane.queues.metrics import EndedTask, TaskEnd, sentence_of
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.tasks import End, Finished, Grant, State, Used
from fairlane.streaming.events import Event, cancelled_end, compose, terminal_event
from fairlane.streaming.hub import Hub
from fairlane.streaming.structured.checker import Checker
from fairlane.workers.protocol import ResultAck, encoder
from fairlane.workers.server.background import Background, observe
from fairlane.workers.server.offers.health import Health
from fairlane.workers.server.offers.offers import Offers
from fairlane.workers.server.payloads import PayloadCache
from fairlane.workers.server.pool import RETRY_REST_MS, Mismatch, Worker
from fairlane.workers.server.settings import DispatchSettings
from fairlane.workers.server.slots import Slots
from fairlane.workers.server.tasks.attempt import Attempt
from fairlane.workers.server.tasks.attempts import Attempts, attempts_on
from fairlane.workers.server.tasks.departures import Departures
from fairlane.workers.server.tasks.silence import Silence
from fairlane.workers.server.tasks.spans import trace_end
from fairlane.workers.server.tasks.steps import NO_USAGE, Check, Finish, Move, Phase, Release, Requeue, Step

STOPS_EARLIER_S = 10.0
"""A worker has so much less time to stop than the sweep gives the task, though it may hear of that only by a renewal: so its
replica ends the task first, and says what it used."""
VERSION_1 = "version 1"
"""How the history names the workers that have no name."""
NOT_BEGUN = Requeue("no worker any more", "declined", begun=False, unsent=True)

log = structlog.get_logger("fairlane.workers")


class Endings:
    """See the module. The effects of every attempt, and the owner of every writer, of one replica."""

    move: Callable[[Attempt, Mismatch], None]
    """Brings an attempt's task to a worker that can run it, or ends it. Set once: see `Dispatcher`."""

    def __init__(
        self,
        scheduler: Scheduler,
        hub: Hub,
        attempts: Attempts,
        slots: Slots,
        offers: Offers,
        health: Health,
        payloads: PayloadCache,
        background: Background,
        silence: Silence,
        checker: Checker,
        settings: DispatchSettings,
    ) -> None:
        self._scheduler = scheduler
        self._hub = hub
        self._slots = slots
        self._pool = slots.pool
        self._health = health
        self._silence = silence
        self._checker = checker
        self._background = background
        self._lines = FewLines()
        self.attempts = attempts
        self.settings = settings
        self.deliver = hub.deliver
        self.time = slots.pool.time
        self.keep_payload = payloads.put
        self.hold = slots.hold
        self.sent = Departures(scheduler, slots).add
        self.changed = offers.offer

    @property
    def stop_grace_s(self) -> float:
        grace_s = self._scheduler.limits.stop_grace_ms / 1000
        return grace_s - min(STOPS_EARLIER_S, grace_s / 4)

    def close(self) -> None:
        """Forget every attempt: leases end by themselves."""
        for attempt in list(self.attempts.values()):
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
        elif isinstance(step, Check):
            self._background.spawn(self._check(attempt, step))
        else:
            assert isinstance(step, Move)
            self.move(attempt, step.why)

    def _finish(self, attempt: Attempt, end: Finish) -> None:
        worker = attempt.worker
        attempt.writer.finish(
            end.state,
            end.code,
            end.fragment,
            used=end.used,
            want=0 if end.keep_slot else self._pool.wanted(worker, leaving=1),
            models=worker.models,
            worker=worker.id,
            keep_ms=self._scheduler.limits.stop_grace_ms if end.keep_slot else 0,
            upstream=worker.upstream,
        )

    async def _check(self, attempt: Attempt, step: Check) -> None:
        verdict = await self._checker.texts(step.schema, step.texts, attempt.grant.user)
        payload, task_id = None, attempt.grant.task_id
        if step.repairs and verdict.wrong == "text":
            payload = await self._background.until_answered(lambda: self._scheduler.payload(task_id))
        attempt.checked(verdict, step, payload)

    def on_written(self, grant: Grant, finished: Finished) -> None:
        """A writer's end was answered."""
        attempt = self.attempts.of(grant)
        if attempt is None or attempt.end is None:
            return
        end = attempt.end
        if finished.outcome == "ok":
            self._account(attempt, end.state, end.code, end.used)
        if end.keep_slot:
            attempt.wait_for_stop()
            if attempt.worker not in self._pool:
                attempt.lost()
            return
        attempt.written()
        worker = self._forget(attempt)
        _acknowledge(attempt, finished.outcome)
        self._slots.use(worker, finished.grants, finished.later, finished.shut)

    def on_unwritable(self, grant: Grant, why: str) -> None:
        """A writer cannot go on."""
        attempt = self.attempts.of(grant)
        if attempt is not None:
            attempt.cannot_write(why)

    def _requeue(self, attempt: Attempt, step: Requeue) -> None:
        if attempt.span is not None:
            attempt.span.end(step.why)
        worker, task_id = self._forget(attempt), attempt.grant.task_id
        if not step.hold_ms and not step.repair:  # then the worker was not the reason
            worker.avoided.put(task_id, True)
        if step.blameless:
            self._health.ended(worker, State.COMPLETED, "", "")
        elif step.cause in ("failed", "falls"):
            sentence = sentence_of(b"{%b}" % step.end.rest) if step.end else ""
            self._health.ended(worker, State.FAILED, step.why, sentence)
            if not is_reserved(attempt.grant.model):  # other endpoints are not to wait for one that fails
                self._slots.hold(worker, RETRY_REST_MS)
        self._lines.tell(
            log.info,
            "task goes back to its queue",
            task_id=task_id,
            request_id=attempt.grant.request_id,
            model=attempt.grant.asked,
            worker_id=worker.id,
            why=step.why,
            hold_ms=step.hold_ms,
        )
        self._background.spawn(self._put_back(attempt, step))

    async def _put_back(self, attempt: Attempt, step: Requeue) -> None:
        if step.cause == "failed" and await self._background.until_answered(
            lambda: self._health.is_to_blame(attempt.worker, attempt.grant)
        ):
            step = step._replace(cause="declined")
        outcome = await self._give_back(attempt.grant, step, attempt.worker.identity)
        _acknowledge(attempt, "stale" if outcome == "stale" else "ok")
        self._slots.fill(attempt.worker)

    def give_back_soon(self, grant: Grant) -> None:
        """Bring back a task that was granted and that nobody here can have: it has not begun."""
        self._background.spawn(self._give_back(grant, NOT_BEGUN))

    async def _give_back(self, grant: Grant, step: Requeue, who: str = "") -> str:
        ended = await self._background.until_answered(
            lambda: self._scheduler.requeue(
                grant,
                step.why,
                cause=step.cause,
                begun=step.begun,
                end=step.end,
                who=who,
                hold_ms=step.hold_ms,
                repair=step.repair,
                unsent=step.unsent,
            )
        )
        self._slots.ask_later(ended.later)
        if ended.outcome == "ended":
            self.deliver(grant.task_id, [terminal_event(ended)])
        return ended.outcome

    async def _release(self, attempt: Attempt, worker: Worker, used: Used) -> None:
        """A stopped task's worker has answered: free the lease, settle, and take for the slot."""
        grant = attempt.grant
        nonce = self._scheduler.nonce()
        want = self._pool.wanted(worker)
        worker.reserved += want
        terminal = compose(
            grant.task_id, _now_ms(), cancelled_end("gateway").rest
        )  # if the store lost the real end
        end = End(
            State.CANCELLED,
            CANCELLED,
            ("cancelled", terminal),
            used,
            nonce,
            want,
            worker.models,
            worker.id,
            upstream=worker.upstream,
        )
        try:
            reply: Any = await self._background.until_answered(
                lambda: self._scheduler.finish(grant, 0, [], end)
            )
        finally:
            worker.reserved -= want
        finished = self._scheduler.finished(reply)
        if finished.outcome == "ok":
            self._account(attempt, State.CANCELLED, CANCELLED, used)
        _acknowledge(attempt, finished.outcome)
        self._slots.use(worker, finished.grants, finished.later, finished.shut)

    def moved(self, attempt: Attempt) -> Worker:
        """An attempt goes on with another worker: its slot is free, the grant stays. Returns the worker it was on."""
        attempt.forget()
        return self._forget(attempt)

    def _forget(self, attempt: Attempt) -> Worker:
        """The only place where an attempt leaves its worker's slot."""
        worker = attempt.worker
        if worker.attempts.get(attempt.key) is attempt:
            del worker.attempts[attempt.key]
        self.attempts.remove(attempt)
        attempt.cancel_timer()
        worker.past.put(attempt.key, 0.0 if attempt.answered else self.time() + self.stop_grace_s)
        if attempt.span is not None:
            attempt.span.end()
        if worker.suspended and not any(a.phase is Phase.STOPPING for a in attempts_on(worker)):
            worker.suspended = False
            asyncio.get_running_loop().call_soon(self._slots.fill, worker)
        return worker

    # ---- what is shown and measured ----------

    def show(self, grant: Grant, event: Event) -> None:
        """Bring an event that is not logged to the readers here and elsewhere."""
        self._hub.show(grant.task_id, event)
        with contextlib.suppress(StoreUnavailable):  # nobody keeps what is not logged
            self._scheduler.show(grant, event.type, event.data).add_done_callback(observe)

    def began_output(self, attempt: Attempt) -> None:
        """Tell the metrics, and its span, of an attempt's first output. Silence counts from now on."""
        self._silence.began_output(attempt)
        grant = attempt.grant
        since_ms = attempt.since_submission_ms(attempt.first_output_at)
        self._scheduler.metrics.began_output(grant.model, grant.task_type, since_ms)
        if attempt.span is not None:
            attempt.span.event("first_output")

    def _account(self, attempt: Attempt, state: State, code: str, used: Used = NO_USAGE) -> None:
        """Tell the metrics, and its span, that an attempt ended its task."""
        grant, now = attempt.grant, self.time()
        if grant.repaired is not None:
            used = grant.repaired.plus(used)
            if state is State.COMPLETED or code == "JSON_PARSE_FAILED":
                self._scheduler.metrics.repaired(grant.model, "failed" if code else "mended")
        ended = self._ended_task(attempt) if state is State.FAILED else None
        if state is State.COMPLETED:
            self._silence.completed(attempt)
        works = attempt.end is not None and attempt.end.blameless
        said = ended.sentence if ended else ""
        self._health.ended(attempt.worker, State.COMPLETED if works else state, code, said)
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
                ended,
                grant.user,
                attempt.worker.name if attempt.worker.version > 1 else VERSION_1,
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


ACK_STATUS = {"ok": "accepted", "late": "stale", "stale": "stale", "duplicate": "duplicate"}


def _acknowledge(attempt: Attempt, outcome: str) -> None:
    """Let a worker forget its result."""
    if attempt.answered and attempt.worker.version >= 2:
        status = ACK_STATUS.get(outcome, "unknown")
        attempt.worker.send(encoder.encode(ResultAck(*attempt.key, status)))  # type: ignore[arg-type]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
