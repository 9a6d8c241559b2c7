"""One attempt: a granted task on one worker, from the grant until its slot is free again. A state machine without I/O.

What ends it (worker, lost connection, cancel, time limit) calls one of its methods; the first one counts, the rest
find it over. What follows is a Finish, a Requeue or a release, which the `Effects` carry out.
"""

import asyncio
from typing import Any

from fairlane.queues.failures import failure_row
from fairlane.queues.tasks import Fragment, Grant, State, Used
from fairlane.streaming.events import fragment_error
from fairlane.streaming.views.usage import estimated_usage
from fairlane.streaming.writer import TaskWriter
from fairlane.workers.protocol import Cancel, encoder, task_frame, with_model
from fairlane.workers.server.pool.suspects import Candidate, Suspicion
from fairlane.workers.server.pool.worker import Mismatch, Worker
from fairlane.workers.server.tasks.effects import BEFORE_THE_END, NO_USAGE, Effects, Finish, Phase, Requeue
from fairlane.workers.server.tasks.hook import Answer, AttemptHook
from fairlane.workers.server.tasks.output import Output
from fairlane.workers.server.tasks.usage import MAX_READ, Request, Usage

LOST = "Worker disconnected: the connection to it was lost"
LOST_TWICE = (
    "Worker disconnected: it was lost ({}) while it ran this task, for the second time. The task may be the cause and is not "
    "tried again"
)
NO_WORKER = Fragment(fragment_error("No connected worker takes the task", "NO_WORKER", False), "NO_WORKER")


class Attempt:
    """See the module.

    `key` names it in the worker's messages. `answered` is true once the worker's result has come, whatever became of it: it
    is then acknowledged when the attempt is over, and what follows it is out of order. `end` is how it ends, once that is known.
    `output_at` is when it last sent output or its result; `progress_at` when it last reported progress. `sent_at` is when it was
    sent; `rejected` is true if its worker did not take it. `timer` is when to check whether its model is silent. `missing` counts
    heartbeats that did not list it.
    """

    __slots__ = (
        *("answered", "effects", "end", "first_output_at", "grant", "granted_at", "hooks", "key", "missing"),
        *("output", "output_at", "phase", "progress_at", "rejected", "renewed_at", "sent_at", "started_at"),
        *("stop_until", "stopping_since", "suspicion", "timer", "traceparent", "usage", "worker", "writer"),
    )

    def __init__(
        self,
        effects: "Effects[Attempt]",
        grant: Grant,
        worker: Worker,
        writer: TaskWriter,
        hooks: "tuple[AttemptHook[Attempt], ...]" = (),
        suspicion: Suspicion | None = None,
    ) -> None:
        """`suspicion`: if another worker may have been lost over the task. Then it runs alone on its worker."""
        self.effects = effects
        self.grant = grant
        self.worker = worker
        self.writer = writer
        self.hooks = hooks
        self.suspicion = suspicion
        self.key = worker.key_of(grant)
        self.output = Output(grant.task_id, writer)
        self.usage = Usage(grant, self.output)
        self.traceparent = grant.traceparent
        self.phase: Phase = "sent"
        self.granted_at = self.started_at = self.output_at = effects.time()
        self.first_output_at = self.progress_at = self.renewed_at = 0.0
        self.stopping_since = self.stop_until = 0.0
        self.sent_at: float | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.missing = 0
        self.answered = self.rejected = False
        self.end: Finish | None = None

    @property
    def held(self) -> bool:
        """True while its lease must be renewed."""
        return self.phase in ("sent", "running", "finishing")

    @property
    def candidate(self) -> Candidate | None:
        """What it is if its worker is lost now; None if it cannot be tried again."""
        if self.sent_at is None or self.phase not in BEFORE_THE_END or self.writer.has_output:
            return None
        return Candidate(self.key, self.sent_at, self.phase == "running", self.usage.request.size)

    @property
    def silent_since(self) -> float | None:
        """When its worker last gave a sign of it: it was given the task, sent output or reported progress. None: it is over,
        or asked to stop."""
        return max(self.output_at, self.progress_at) if self.phase in BEFORE_THE_END else None

    @property
    def output_tokens(self) -> int:
        """Tokens of output so far, as far as known; -1 before the first."""
        return self.usage.tokens or -1

    # ---- beginning ----------

    def send(self, payload: bytes) -> None:
        """Send the task to its worker."""
        grant, worker = self.grant, self.worker
        self.usage.request = Request(
            grant.task_type, len(payload), payload if len(payload) <= MAX_READ else b""
        )
        received = payload
        for hook in self.hooks:
            changed = hook.sends(self, received)
            if changed is None:
                return
            received = changed
        frame = task_frame(
            grant.task_type,
            grant.task_id,
            with_model(received, grant.asked) if grant.model_omitted else received,
            version=worker.version,
            attempt=grant.epoch,
            model=grant.asked,
            stream=grant.stream,
            timeout_ms=grant.left_ms,
            traceparent=self.traceparent,
            tell_sent=grant.report_sent,
            user=grant.user if worker.wants_user else "",
        )
        if len(frame) > worker.max_message_bytes:
            self.effects.move(self, Mismatch.SIZE, len(frame), payload)
            return
        self.started_at = self.output_at = self.sent_at = self.effects.time()
        worker.send(frame)
        if worker.version == 1:
            self.acknowledged()

    def acknowledged(self) -> None:
        """The worker has begun."""
        if self.phase == "sent":
            self.phase = "running"
            self.renewed_at = 0.0  # the next renewal says so
            self.worker.missed_acks = 0
            for hook in self.hooks:
                hook.begun(self)

    def request_left(self) -> None:
        """Its request to its target has left."""
        self.acknowledged()
        for hook in self.hooks:
            hook.request_left(self)

    # ---- output ----------

    def take(self, index: int, kind: str, value: str | bytes) -> None:
        """Take a piece of output."""
        for hook in self.hooks:
            hook.output(index, kind, value)
        self.writer.chunk(index, kind, value)

    def began_output(self) -> None:
        """The first output was taken."""
        self.first_output_at = self.output_at
        self.effects.began_output(self)
        for hook in self.hooks:
            hook.first_output(self)
            hook.request_left(self)  # what has been answered has left

    def broken(self, why: str) -> None:
        """The worker broke the protocol in its output: this task cannot be right any more, and it must stop."""
        self.fail("PROTOCOL_ERROR", why, retryable=False, stop="superseded")

    def complete(self, answer: Answer, after: "AttemptHook[Attempt] | None" = None) -> None:
        """End with an answer, unless a hook, of those behind `after`, ends the attempt itself."""
        for hook in self.hooks[self.hooks.index(after) + 1 if after else 0 :]:
            if hook.completes(self, answer):
                return
        self.finish(answer.end)

    def decline(self, why: str, *, aside_ms: int = 0) -> None:
        """Requeue the task at its old place, at no cost, `aside_ms` from now. A task that repeatedly finds no worker ends
        eventually."""
        if self.phase in BEFORE_THE_END:
            self.requeue(Requeue(why, "declined", end=NO_WORKER, aside_ms=aside_ms))

    def fail(
        self,
        code: str,
        error: str,
        *,
        retryable: bool,
        usage: bytes | None = None,
        used: Used = NO_USAGE,
        stop: str = "",
        hold_ms: int = 0,
        blameless: bool = False,
    ) -> None:
        """End with a failure, or requeue the task if a retry can help; a task without tries left ends as failed.

        `stop`: the worker still runs it, and is sent this reason to stop. `hold_ms`: the model's provider takes nothing for this
        long, and the attempt counts as not begun. `blameless`: the worker has done its work.
        """
        if self.phase not in BEFORE_THE_END:
            return
        if retryable and not self.writer.has_output and not stop:
            # for when its tries are used up, or it would wait for longer than it may
            end = Fragment(fragment_error(error, code, hold_ms > 0, usage, hold_ms), code)
            self.requeue(Requeue(code, "declined" if hold_ms else "failed", end=end, hold_ms=hold_ms))
            return
        fragment = fragment_error(error, code, retryable, usage)
        another = self.grant.has_fallback and failure_row(code).fallback_may_help
        falls = another and not self.writer.has_output and (not stop or self.worker.version > 1)
        if stop:
            self.cancel(stop)
        if falls:
            self.requeue(Requeue(code, "falls", end=Fragment(fragment, code), blameless=blameless))
        else:
            self.finish(Finish(State.FAILED, code, fragment, used, bool(stop), blameless))

    def lost(
        self, sentence: str = LOST, *, blameless: bool = False, suspicion: Suspicion | None = None
    ) -> None:
        """End an attempt whose worker is gone, or does not know it, or whose gateway stops. `sentence` is the error message.
        `blameless`: the gateway caused it, at no cost. `suspicion`: the task may have caused it; it ends if it did before."""
        once, unsent = self.grant.max_tries == 1, self.sent_at is None
        if self.phase == "stopping":
            self.release()
        elif self.phase not in BEFORE_THE_END:
            return
        elif self.writer.has_output:
            used, usage = self.usage.estimate(), self.usage.progress
            usage = self.client_usage(estimated_usage(used[:2], usage) if used.estimated else usage)
            fragment = fragment_error(sentence, "WORKER_LOST", True, usage)
            self.finish(Finish(State.FAILED, "WORKER_LOST", fragment, used))
        elif suspicion is not None and self.suspicion is not None:
            self.fail("WORKER_LOST", LOST_TWICE.format(suspicion.why), retryable=False)
        elif blameless and (unsent or not once):
            self.requeue(Requeue("gateway stops", "declined"))
        else:
            packed = suspicion.packed() if suspicion else ""
            self.requeue(Requeue("worker lost", "declined" if once and unsent else "lost", suspicion=packed))

    def stop(self, reason: str) -> None:
        """The task was ended from outside, or another worker has it: notify the worker; its slot is free when it answers."""
        if self.phase not in BEFORE_THE_END:
            return
        if self.sent_at is None:  # its worker never gets it
            self.release()
            return
        self.writer.close()
        self.cancel(reason)
        for hook in self.hooks:
            hook.stopped(self, reason)
        self.wait_for_stop()

    def cannot_write(self, why: str) -> None:
        """End an attempt whose output the log does not take; `why` comes from the writer."""
        if why == "too_large":
            self.too_large(self.usage.estimate())
        elif why == "overflow":
            self.end_anyhow("OUTPUT_TOO_LARGE", "The output grew faster than it could be stored")
        elif why != "stale":
            self.end_anyhow("STORE_LOST", "The store lost a part of the output")
        elif self.phase != "finishing":
            self.stop("superseded")
        elif self.end is not None and self.end.keep_slot:
            self.wait_for_stop()
        else:  # it was ended from outside before its result was written: its slot is still taken
            self.release(self.end.used if self.end else None)

    def too_large(self, used: Used) -> None:
        most = self.effects.settings.max_output_bytes
        text = f"The output is larger than the {most} bytes that a task may write"
        self.end_anyhow("OUTPUT_TOO_LARGE", text, used)

    def end_anyhow(self, code: str, text: str, used: Used = NO_USAGE) -> None:
        """End with a failure of the gateway's own, also instead of an end that could not be written."""
        knows = self.end is not None and self.end.keep_slot
        if not self.answered and not knows:
            self.cancel("superseded")
        fragment = fragment_error(text, code, failure_row(code).retry)
        self.finish(Finish(State.FAILED, code, fragment, used, keep_slot=not self.answered))

    # ---- leaving ----------

    def over(self) -> None:
        """Write nothing more about it to Redis."""
        self.writer.close()
        self.phase = "over"

    def wait_for_stop(self) -> None:
        """The task has ended and its worker was notified; the slot is free when it answers, or is gone."""
        self.phase = "stopping"
        self.stopping_since = self.effects.time()
        self.stop_until = self.stopping_since + self.effects.stop_grace_s
        if self.answered:
            self.release()

    def cancel(self, reason: str) -> None:
        """Ask the worker to stop."""
        if self.worker.version >= 2:
            known: Any = reason if reason in ("client", "timeout", "admin") else "superseded"
            grace_ms = self.effects.settings.cancel_grace_ms
            self.worker.send(encoder.encode(Cancel(*self.key, known, grace_ms)))

    def finish(self, end: Finish) -> None:
        """Write the end of the task, whatever has ended it so far."""
        self.phase = "finishing"
        self.end = end
        self.effects.finish(self, end)

    def requeue(self, step: Requeue) -> None:
        """Return the task to its queue. The attempt adds how far it got."""
        unsent, lost = self.sent_at is None or self.rejected, step.cause == "lost"
        begun = not unsent if lost else self.phase == "running" and step.cause not in ("declined", "redo")
        grace_ms = self.effects.settings.lost_grace_ms if lost and self.worker.version >= 2 else 0
        self.over()
        self.effects.requeue(self, step._replace(begun=begun, unsent=unsent, grace_ms=grace_ms))

    def release(self, used: Used | None = None) -> None:
        """Free the slot of a task that ended elsewhere. Without `used`, its usage is estimated from its output."""
        if used is None:
            used = self.usage.estimate() if self.output.any else NO_USAGE
        self.over()
        self.effects.release(self, used)

    def client_usage(self, usage: bytes | None) -> bytes | None:
        if usage is not None:
            for hook in self.hooks:
                usage = hook.usage(usage)
        return usage
