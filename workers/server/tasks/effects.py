"""Carries out the steps of attempts, until the store has answered, and frees their slots.

Every attempt of a replica ends here: each step ends in `_forget`, once. The store's answer (next tasks, timers) goes to the slot
that has become free.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import structlog

from fairlane.queues.chains import Advanced, ChainEnd, StageEntry, running
from fairlane.queues.chains import Step as Advance
from fairlane.queues.clock import now_ms
from fairlane.queues.errors import StoreUnavailable
from fairlane.queues.failures import CANCELLED
from fairlane.queues.keys import is_reserved
from fairlane.queues.logs.rate_limited import RateLimitedLogger
from fairlane.queues.metrics import REPAIRS, USAGE_CORRECTED, EndedTask, TaskEnd, error_message_of
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.semaphore import FairSemaphore
from fairlane.queues.tasks import End, Finished, Grant, State, Used
from fairlane.streaming.events import (
    Event,
    cancelled_end,
    compose,
    parse_event_id,
    terminal_event,
    with_failed_stage,
)
from fairlane.streaming.hub import Hub
from fairlane.streaming.structured.checker import Checker
from fairlane.streaming.views.usage import Counts
from fairlane.streaming.writer import STAGE_DONE, STAGE_OVER
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
from fairlane.workers.server.tasks.chains import Chains, Follows, StageDone
from fairlane.workers.server.tasks.output_timeouts import OutputTimeouts
from fairlane.workers.server.tasks.sent_batcher import SentBatcher
from fairlane.workers.server.tasks.spans import trace_end
from fairlane.workers.server.tasks.steps import NO_USAGE, Check, Finish, Move, Release, Requeue, Step

STOPS_EARLIER_S = 10.0
"""A worker has this much less time to stop than the sweep gives the task, so its replica ends the task first, and reports its
usage."""
MAX_STEPS = 20
"""Times that the store may ask for more before it ends a stage: it takes one or two."""
BALANCE_TRIES = 30
BALANCE_PAUSE_S = 1.0
"""Reads of the balance that pays the next stage of a chain, and the pauses between them."""
NOT_ENTERED = {
    "quota": ("INSUFFICIENT_QUOTA", "There are not enough credits left for the next stage"),
    "no_balance": (
        "DATABASE_UNAVAILABLE",
        "The database does not answer, and what there is to pay the next stage with is not known",
    ),
    "no_worker": ("NO_WORKER", "No worker available"),
}
"""Why a chain ends whose next stage cannot be entered: a failure code, and a sentence."""
MAX_CONCURRENT_CHAINS = 4
"""Chains that are read at the same time, users in turns: one can have 16 MiB, and all other replies wait for it."""
VERSION_1 = "version 1"
"""How the history names the workers that have no name."""
NOT_BEGUN = Requeue("no worker any more", "declined", begun=False, unsent=True)

log = structlog.get_logger("fairlane.workers")


class AttemptEffects:
    """See the module. The effects of every attempt, and the owner of every writer, of one replica."""

    move: Callable[[Attempt, Mismatch, int], None]
    """Brings an attempt's task to a worker that can run it, or ends it. Set once: see `Dispatcher`."""
    release_held: Callable[[Worker], None]
    """Sends the attempts that a worker holds back, as far as it may. Set once: see `Dispatcher`."""
    chains: Chains
    """Knows what follows a stage of a chain. Set once, before the first task: see `Dispatcher`."""

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
        timeouts: OutputTimeouts,
        checker: Checker,
        settings: DispatchSettings,
    ) -> None:
        self._scheduler = scheduler
        self._hub = hub
        self._slots = slots
        self._pool = slots.pool
        self._health = health
        self._timeouts = timeouts
        self._checker = checker
        self._background = background
        self._lines, self._corrections = RateLimitedLogger(), RateLimitedLogger()
        self._reading = FairSemaphore(MAX_CONCURRENT_CHAINS)
        self.attempts = attempts
        self.settings = settings
        self.deliver = hub.deliver
        self.time = slots.pool.time
        self.keep_payload = payloads.put
        self.hold = slots.hold
        self.sent = SentBatcher(scheduler, slots).add
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

    def usage_corrected(self, attempt: Attempt, reported: Counts, counted: Counts) -> None:
        """Log and count that a worker reported usage that its task cannot have."""
        self._scheduler.metrics.count(USAGE_CORRECTED, attempt.grant.model)
        self._corrections.log(
            log.warning,
            "a worker's usage was corrected",
            task_id=attempt.grant.task_id,
            model=attempt.grant.asked,
            worker_id=attempt.worker.id,
            name=attempt.worker.name,
            key_id=attempt.worker.key_id,
            reported=reported[:2],
            counted=counted[:2],
        )

    # ---- steps ----------

    def apply(self, attempt: Attempt, step: Step) -> None:
        """Carry out a step of an attempt."""
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
            self.move(attempt, step.why, step.size)

    def _finish(self, attempt: Attempt, end: Finish) -> None:
        if end.stage is not None:
            self._advance(attempt, end.stage)
            return
        worker = attempt.worker
        attempt.writer.finish(
            end.state,
            end.code,
            of_chain(attempt.grant, end.fragment) if end.state is State.FAILED else end.fragment,
            used=end.used,
            want=0 if end.keep_slot else self._pool.wanted(worker, leaving=1),
            models=worker.models,
            worker=worker.id,
            keep_ms=self._scheduler.limits.stop_grace_ms if end.keep_slot else 0,
            upstream=worker.upstream,
        )

    # ---- stages of chains ----------

    def _advance(self, attempt: Attempt, done: StageDone) -> None:
        """Complete a stage, or a part of one, with what follows it. For a part, the replica that learns that it is the
        last decides; and also for a chain that is gone."""
        if done.running.part < 0:
            self._background.spawn(self._continue_chain(attempt, done))
        else:
            self._step(attempt, done, None)

    async def _continue_chain(self, attempt: Attempt, done: StageDone) -> None:
        async with self._reading.hold(attempt.grant.user):
            chain = await self._background.until_answered(lambda: self._scheduler.chain(done.running.chain))
            follows = await self.chains.follows(chain, done) if chain is not None and chain.plan else None
            del chain  # it may be large
        self._step(attempt, done, follows)

    def _step(self, attempt: Attempt, done: StageDone, follows: Follows | None) -> None:
        """Report the end of a stage to the store, unless the attempt has ended otherwise. `follows`: None if unknown here."""
        end = attempt.end
        if end is None or end.stage is not done or attempt.phase != "finishing":
            return
        worker = attempt.worker
        attempt.writer.advance(
            Advance(
                done.result,
                done.used,
                self._scheduler.nonce(),
                follows.then if follows else None,
                follows.log_events if follows else (),
                self._pool.wanted(worker, leaving=1),
                worker.models,
                worker.id,
                worker.upstream,
            )
        )

    def on_advanced(self, grant: Grant, step: Advance, advanced: Advanced) -> None:
        """The end of a stage, or of a part, was answered.

        1 It is done, or was ended elsewhere: the slot is free. 2 Its grant is over, and another attempt has it. 3 Nothing
        has happened yet: the store needs to know more, or what was to follow cannot be.
        """
        attempt = self.attempts.of(grant)
        if attempt is None or attempt.end is None or attempt.end.stage is None:
            return
        done, outcome = attempt.end.stage, advanced.outcome
        if outcome in STAGE_OVER:  # 1, 2
            self._report_steps(grant, step, advanced)
            if outcome in STAGE_DONE:
                self._account_stage(attempt, step, advanced)
            attempt.written()
            worker = self._forget(attempt)
            _acknowledge(attempt, "ok" if outcome in STAGE_DONE else outcome)
            self._slots.assign_grants(
                worker, list(advanced.grants), advanced.retry_at, advanced.closed_upstreams
            )
        else:  # 3
            self._background.spawn(self._decide_again(attempt, done, step, advanced))

    async def _decide_again(
        self, attempt: Attempt, done: StageDone, step: Advance, advanced: Advanced
    ) -> None:
        """Decide the next step of an attempt whose stage the store did not end: see `Advanced`."""
        attempt.steps += 1
        if advanced.outcome == "too_large" or attempt.steps > MAX_STEPS:
            attempt.cannot_continue(advanced.outcome)
            return
        if advanced.outcome == "next" or not isinstance(step.then, StageEntry):
            await self._continue_chain(attempt, done)
            return
        if advanced.outcome == "no_balance":
            for _ in range(BALANCE_TRIES):
                if await self.chains.load_balance(*advanced.unknown):
                    self._step(attempt, done, Follows(step.then, step.log_events))
                    return
                await asyncio.sleep(BALANCE_PAUSE_S)
        code, sentence = NOT_ENTERED[advanced.outcome]
        async with self._reading.hold(attempt.grant.user):
            chain = await self._background.until_answered(lambda: self._scheduler.chain(done.running.chain))
        follows = None if chain is None else self.chains.broken(chain, done, step.then, code, sentence)
        self._step(attempt, done, follows)

    def _report_steps(self, grant: Grant, step: Advance, advanced: Advanced) -> None:
        """Bring what the step wrote into its chain's log to the readers here."""
        run = running(grant)
        events = [*step.log_events, *([step.then.terminal] if isinstance(step.then, ChainEnd) else [])]
        if run is None or not advanced.event_id or not events:
            return
        epoch, seq = parse_event_id(advanced.event_id)
        self.deliver(
            run.chain, [Event(epoch, seq + at, kind, data) for at, (kind, data) in enumerate(events)]
        )

    def _account_stage(self, attempt: Attempt, step: Advance, advanced: Advanced) -> None:
        """Count a task that ended with its stage; its worker has done its work anyhow."""
        if advanced.outcome == "ended" and isinstance(step.then, ChainEnd) and not is_part(attempt.grant):
            self._account(attempt, step.then.state, step.then.code, step.used, step.then)
            return
        self._health.ended(attempt.worker, attempt.grant.model, State.COMPLETED, "", "")
        if attempt.span is not None:
            trace_end(attempt.span, State.COMPLETED, "", step.used)

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
        self._slots.assign_grants(worker, finished.grants, finished.retry_at, finished.closed_upstreams)

    def on_unwritable(self, grant: Grant, why: str) -> None:
        """A writer cannot continue."""
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
            self._health.ended(worker, attempt.grant.model, State.COMPLETED, "", "")
        elif step.cause in ("failed", "falls"):
            sentence = error_message_of(b"{%b}" % step.end.rest) if step.end else ""
            self._health.ended(worker, attempt.grant.model, State.FAILED, step.why, sentence)
            if not is_reserved(attempt.grant.model):  # other endpoints are not to wait for one that fails
                self._slots.hold(worker, RETRY_REST_MS)
        self._lines.log(
            log.info,
            "task requeued",
            task_id=task_id,
            request_id=attempt.grant.request_id,
            model=attempt.grant.asked,
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
        self._background.spawn(self._give_back(grant, NOT_BEGUN))

    async def _give_back(self, grant: Grant, step: Requeue, worker: Worker | None = None) -> str:
        ended = await self._background.until_answered(
            lambda: self._scheduler.requeue(
                grant,
                step.why,
                cause=step.cause,
                begun=step.begun,
                end=step.end,
                suspicion=step.suspicion,
                hold_ms=step.hold_ms,
                repair=step.repair,
                unsent=step.unsent,
                grace_ms=step.grace_ms,
                aside_ms=step.aside_ms,
                by=f"{worker.name}, token {worker.key_id}" if worker else "",
            )
        )
        self._slots.ask_later(ended.retry_at)
        if ended.outcome == "ended":
            self.deliver(grant.task_id, [terminal_event(ended)])
        return ended.outcome

    async def _release(self, attempt: Attempt, worker: Worker, used: Used) -> None:
        """A stopped task's worker has answered: free the lease, settle, and take for the slot."""
        grant = attempt.grant
        nonce = self._scheduler.nonce()
        want = self._pool.wanted(worker)
        worker.reserve(want)
        terminal = compose(
            grant.task_id, now_ms(), cancelled_end("gateway").rest
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
            worker.give_back(want)
        finished = self._scheduler.parse_finish(reply)
        if finished.outcome == "ok":
            self._account(attempt, State.CANCELLED, CANCELLED, used)
        _acknowledge(attempt, finished.outcome)
        self._slots.assign_grants(worker, finished.grants, finished.retry_at, finished.closed_upstreams)

    def reassigned(self, attempt: Attempt) -> Worker:
        """An attempt moves to another worker: its slot is free, the grant stays. Return its worker."""
        attempt.forget()
        return self._forget(attempt)

    def _forget(self, attempt: Attempt) -> Worker:
        """The only place where an attempt leaves its worker's slot."""
        worker = attempt.worker
        if worker.attempts.get(attempt.key) is attempt:
            del worker.attempts[attempt.key]
        self.attempts.remove(attempt)
        attempt.cancel_timer()
        worker.finished_attempts.put(
            attempt.key, 0.0 if attempt.answered else self.time() + self.stop_grace_s
        )
        if attempt.span is not None:
            attempt.span.end()
        if worker.held or worker.alone is attempt:
            asyncio.get_running_loop().call_soon(self.release_held, worker)
        if worker.suspended and not any(a.phase == "stopping" for a in attempts_on(worker)):
            worker.suspended = False
            asyncio.get_running_loop().call_soon(self._slots.fill, worker)
        return worker

    # ---- what is shown and measured ----------

    def show(self, grant: Grant, event: Event) -> None:
        """Bring an event that is not logged to the readers here and elsewhere."""
        self._hub.show(grant.task_id, event)
        with contextlib.suppress(StoreUnavailable):  # what is not logged is not kept
            self._scheduler.publish_progress(grant, event.type, event.data).add_done_callback(observe)

    def began_output(self, attempt: Attempt) -> None:
        """Record an attempt's first output in the metrics and its span. Silence counts from now on."""
        self._timeouts.check(attempt)
        grant = attempt.grant
        if attempt.worker.alone is attempt:
            self.release_held(attempt.worker)
        since_ms = attempt.since_submission_ms(attempt.first_output_at)
        self._scheduler.metrics.began_output(grant.model, grant.task_type, since_ms)
        if attempt.span is not None:
            attempt.span.event("first_output")

    def _account(
        self, attempt: Attempt, state: State, code: str, used: Used = NO_USAGE, chain: ChainEnd | None = None
    ) -> None:
        """Record in the metrics and its span that an attempt ended its task. `chain`: how its chain ended behind the stage
        that the attempt completed: if that failed it is a later stage's failure, and none of this worker."""
        grant, now = attempt.grant, self.time()
        if grant.repaired is not None:
            used = grant.repaired.plus(used)
            if state is State.COMPLETED or code == "JSON_PARSE_FAILED":
                self._scheduler.metrics.count(REPAIRS, grant.model, "failed" if code else "repaired")
        ended = self._ended_task(attempt, chain) if state is State.FAILED else None
        works = chain is not None or (attempt.end is not None and attempt.end.blameless)
        said = ended.sentence if ended else ""
        self._health.ended(attempt.worker, grant.model, State.COMPLETED if works else state, code, said)
        if attempt.span is not None:
            trace_end(attempt.span, state, code, used)
        asyncio.get_running_loop().call_soon(  # after the client was woken, which does not wait for this
            self._scheduler.metrics.ended,
            TaskEnd(
                (chain and chain.queue) or grant.queue,
                (chain and chain.model) or grant.model,
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
            ),
        )

    @staticmethod
    def _ended_task(attempt: Attempt, chain: ChainEnd | None) -> EndedTask:
        grant, end, run = attempt.grant, attempt.end, running(attempt.grant)
        if chain is not None:
            sentence = error_message_of(chain.terminal[1])
        else:
            sentence = error_message_of(b"{%b}" % end.fragment) if end is not None else ""
        stage = (chain and chain.stage) or (run and run.stage)
        return EndedTask(
            grant.task_id,
            grant.request_id,
            grant.user,
            (chain and chain.model) or grant.asked,
            attempt.worker.id,
            grant.attempt,
            sentence,
            stage.name if stage else "",
        )


def of_chain(grant: Grant, failure: bytes) -> bytes:
    """The fields of a failure; of a stage's with the name of the stage."""
    run = running(grant)
    return failure if run is None else with_failed_stage(failure, run.stage.name)


def is_part(grant: Grant) -> bool:
    """Whether it runs a part of a stage, as a task of its own."""
    run = running(grant)
    return run is not None and run.part >= 0


ACK_STATUS = {"ok": "accepted", "late": "stale", "stale": "stale", "duplicate": "duplicate"}


def _acknowledge(attempt: Attempt, outcome: str) -> None:
    """Acknowledge a worker's result."""
    if attempt.answered and attempt.worker.version >= 2:
        status = ACK_STATUS.get(outcome, "unknown")
        attempt.worker.send(encoder.encode(ResultAck(*attempt.key, status)))  # type: ignore[arg-type]
