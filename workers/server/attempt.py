"""One attempt: a granted task on one worker, from the grant until its slot is free again.

The attempt owns its slot and its log writer. Whoever wants it to end (worker, lost connection, cancel, time limit) calls one
of its methods; the first one counts, the rest find it over.
"""

import enum
from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET, Raw, UnsetType

from fairlane.queues.measures import TaskEnd
from fairlane.queues.tasks import Finished, Fragment, Grant, State
from fairlane.streaming.events import (
    fragment_debug,
    fragment_done,
    fragment_error,
    fragment_stage,
    progress_event,
)
from fairlane.streaming.views.usage import normalise_usage
from fairlane.streaming.writer import TaskWriter
from fairlane.workers.protocol import (
    FAILURE_CODES,
    MAX_PAUSE_MS,
    Cancel,
    Delta,
    ErrorInfo,
    ResultAck,
    TaskChunk,
    TaskProgress,
    TaskReject,
    TaskResult,
    encoder,
    task_frame,
)
from fairlane.workers.server.frames import Halves
from fairlane.workers.server.pool import Misfit
from fairlane.workers.server.spans import trace_attempt, trace_end

if TYPE_CHECKING:
    from fairlane.workers.server.dispatch import Dispatcher
    from fairlane.workers.server.pool import Worker

MAX_ERROR_CHARS = 2000
V1_MAX_FRAME = 1 << 20
MIN_REST_MS = 100
"""A full worker, or a model whose provider refuses, gets nothing for at least so long: tasks would only go to and fro."""
MAX_DEBUG_BYTES = 64 * 1024
NO_USAGE = (-1, -1)
NOBODY = Fragment(fragment_error("No connected worker takes the task", "NO_WORKER", False), "NO_WORKER")

Cause = Literal["lost", "failed", "declined"]
"""Why a task goes back: its worker is gone, it failed in a way that a retry may mend, or nobody began it (which costs no try)."""


class Phase(enum.Enum):
    """Where an attempt stands."""

    SENT = "sent"
    RUNNING = "running"
    FINISHING = "finishing"
    STOPPING = "stopping"
    OVER = "over"


class Attempt:
    """See the module. `dispatcher` does what reaches beyond this attempt.

    `key` names it in the worker's messages. `answered` is true once the worker's result has come, whatever became of it: it
    is then acknowledged by whoever ends the attempt, and what follows it is out of order.
    """

    def __init__(self, dispatcher: "Dispatcher", grant: Grant, worker: "Worker") -> None:
        self._dispatcher = dispatcher
        self.grant = grant
        self.worker = worker
        self.phase = Phase.SENT
        self.granted_at = self.started_at = dispatcher.time()
        self.first_output_at = 0.0
        self.renewed_at = 0.0
        self.stop_until = 0.0
        self.missing = 0
        self.answered = False
        self.key = (grant.task_id, grant.epoch if worker.version >= 2 else 0)
        self.span = None if dispatcher.tracer is None else trace_attempt(dispatcher.tracer, grant, worker)
        self._sent_at: float | None = None
        self._halves: Halves | None = None
        self._payload_bytes = 0
        self._frames = 0
        self._unread_chunks = 0  # that came after its end, while its worker went on
        self._finish_reason: str | None = None
        self._debug = b""
        self._spent = NO_USAGE
        self._shown_at = 0.0
        self.output_at = self.started_at
        self.writer = TaskWriter(
            dispatcher.scheduler,
            dispatcher.deliver,
            grant,
            dispatcher.new_coalescer(),
            on_over=self._on_writer_over,
        )

    @property
    def held(self) -> bool:
        """True while its lease must be renewed."""
        return self.phase in (Phase.SENT, Phase.RUNNING, Phase.FINISHING)

    @property
    def output_tokens(self) -> int:
        """Tokens of output so far, as far as can be told: a worker's delta is one or a few of them. -1 before the first."""
        return self.writer.chunks or -1

    # ---- beginning ----------

    def send(self, payload: bytes) -> None:
        """Send the task to its worker."""
        grant, worker = self.grant, self.worker
        self._payload_bytes = len(payload)
        frame = task_frame(
            grant.task_type,
            grant.task_id,
            payload,
            version=worker.version,
            attempt=grant.epoch,
            model=grant.model,
            stream=grant.stream,
            timeout_ms=grant.left_ms,
            traceparent=grant.traceparent if self.span is None else self.span.traceparent,
        )
        if worker.version == 1:
            if len(frame) > V1_MAX_FRAME:
                self._dispatcher.keep_payload(grant.task_id, payload)
                self._dispatcher.misfit(self, Misfit.SIZE)
                return
            self.phase = Phase.RUNNING
        self.started_at = self.output_at = self._sent_at = self._dispatcher.time()
        worker.send(frame)
        if self._dispatcher.settings.debug_events:
            shown = payload if len(payload) <= MAX_DEBUG_BYTES else None
            self._debug = fragment_debug("the worker got this payload", shown)
            if self.phase is Phase.RUNNING:
                self._log_debug()

    def waits_for_ack(self, now: float, ack_s: float) -> bool:
        """True when the worker should have said by now that it has begun."""
        return self.phase is Phase.SENT and self._sent_at is not None and now - self._sent_at > ack_s

    def acknowledged(self) -> None:
        """The worker has begun."""
        if self.phase is Phase.SENT:
            self.phase = Phase.RUNNING
            self.renewed_at = 0.0  # the next renewal says so
            self.worker.missed_acks = 0
            if self._debug:
                self._log_debug()

    def _log_debug(self) -> None:
        """Log what the worker got. Not before it has begun: until then the grant may move, and two would write at one place."""
        self.writer.event("debug", self._debug)
        self._debug = b""

    # ---- output ----------

    def chunk(self, message: TaskChunk, *, halves: bool = False) -> str | None:
        """Take a chunk frame; returns what is wrong with it, if anything. `halves`: its text may hold half characters."""
        if self.phase not in (Phase.SENT, Phase.RUNNING):
            self._unread_chunks += len(message.deltas) or 1
            return None
        self.acknowledged()
        self.output_at = self._dispatcher.time()
        if halves and self._halves is None:
            self._halves = Halves()
        if self.worker.version == 1:
            if message.delta is not None:
                self._text(0, "text", message.delta)
        else:
            if message.seq != self._frames + 1:
                if message.seq <= self._frames:
                    return None
                wrong = f"chunk {message.seq} came after chunk {self._frames}"
                self.broken("The worker lost a part of its output")
                return wrong
            self._frames = message.seq
            for delta in message.deltas:
                if fault := self._delta(delta):
                    self.broken("The worker sent output that cannot be read")
                    return fault
        if not self.first_output_at and self.writer.has_output:
            self._first_output()
        self.writer.pump()
        return None

    def _delta(self, delta: Delta) -> str | None:
        chunk, index = self.writer.chunk, delta.index
        if delta.content is not None:
            self._text(index, "text", delta.content)
        if delta.reasoning is not None:
            self._text(index, "reasoning", delta.reasoning)
        if delta.refusal is not None:
            self._text(index, "refusal", delta.refusal)
        if delta.tool_calls is not UNSET and (tool_calls := bytes(delta.tool_calls)) != b"null":
            if not tool_calls.startswith(b"["):
                return "toolCalls must be a list"
            chunk(index, "tool", tool_calls)
        if delta.extra is not UNSET and (extra := bytes(delta.extra)) != b"null":
            if not extra.startswith(b"{"):
                return "extra must be an object"
            chunk(index, "extra", extra)
        if delta.finish_reason is not None:
            self._flush_halves()
            chunk(index, "finish", delta.finish_reason)
            if index == 0:
                self._finish_reason = delta.finish_reason
        return None

    def _text(self, index: int, kind: str, text: str) -> None:
        if self._halves is not None:
            whole = self._halves.join(index, kind, text)
            if text and not whole:
                return  # half a character: it comes with its other half
            text = whole
        self.writer.chunk(index, kind, text)

    def _flush_halves(self) -> None:
        """Half characters whose other half did not come."""
        if self._halves is not None:
            for index, kind in self._halves.rest():
                self.writer.chunk(index, kind, "\ufffd")

    def broken(self, why: str) -> None:
        """The worker broke the protocol in its output: this task cannot be right any more, and it must stop."""
        self.fail("PROTOCOL_ERROR", why, retryable=False, stop="superseded")

    def unreadable_result(self) -> None:
        """The worker is done, but what it says cannot be read."""
        self.answered = True
        if self.phase is Phase.STOPPING:
            self._release(NO_USAGE)
        else:
            self.fail("PROTOCOL_ERROR", "The worker's result is not valid JSON", retryable=False)

    def progress(self, message: TaskProgress) -> None:
        """Show progress to the readers; a stage is logged."""
        if self.phase not in (Phase.SENT, Phase.RUNNING):
            return
        self.acknowledged()
        if message.stage is not None:
            stage = message.stage
            self.writer.event("stage", fragment_stage(stage.name, stage.index, stage.of, stage.status))
        now = self._dispatcher.time()
        if (message.pct is not None or message.note is not None) and now - self._shown_at >= 0.2:
            self._shown_at = now
            event = progress_event(self.grant.task_id, self._dispatcher.now_ms(), message.pct, message.note)
            self._dispatcher.show(self.grant, event)

    # ---- ends ----------

    def result(self, message: TaskResult) -> None:
        """The worker is done. Also the confirmation that a stopped task has stopped."""
        self.answered = True
        if self.phase is Phase.STOPPING:
            self._release(self._used(message))
            return
        if self.phase not in (Phase.SENT, Phase.RUNNING):
            return
        self.acknowledged()
        if self.worker.version >= 2 and message.last_seq > self._frames:
            self.fail("PROTOCOL_ERROR", "The worker lost a part of its output", retryable=False)
            return
        info = message.error_info
        if message.error or info is not None:
            code = info.code if info and info.code in FAILURE_CODES else "WORKER_ERROR"
            text = (message.error or (info.message if info else None) or code)[:MAX_ERROR_CHARS]
            retryable = info.retryable if info else False
            hold_ms = provider_hold_ms(info) if info else 0
            if info and info.retry_after_ms and not hold_ms:
                self._dispatcher.hold(self.worker, info.retry_after_ms)
            self.fail(
                code,
                text,
                retryable=retryable,
                usage=_raw(message.usage),
                used=self._used(message),
                hold_ms=hold_ms,
            )
            return
        self._flush_halves()
        has_result = bytes(message.result) != b"null"
        result = bytes(message.result) if has_result or not self.writer.has_output else None
        usage = _raw(message.usage)
        self._finish(
            State.COMPLETED,
            "",
            "done",
            fragment_done(result, usage, self._finish_reason),
            used=self._used(message),
        )

    def reject(self, message: TaskReject) -> None:
        """The worker will not run it."""
        if self.phase is not Phase.SENT:
            return
        worker = self.worker
        worker.missed_acks = 0
        if message.reason == "badPayload":
            self.fail(
                "BAD_REQUEST",
                (message.message or "The worker refuses the payload")[:MAX_ERROR_CHARS],
                retryable=False,
            )
            return
        if message.reason == "unsupported":
            self._dispatcher.misfit(self, Misfit.REJECTED)
            return
        if message.reason == "draining":
            worker.draining = True
            self._dispatcher.changed(worker)
        else:
            self._dispatcher.hold(worker, max(message.retry_after_ms or 1000, MIN_REST_MS))
        self.decline(message.reason)

    def decline(self, why: str) -> None:
        """Give the task back to its place; it costs no try. (One that nobody takes, again and again, ends some time.)"""
        if self.phase in (Phase.SENT, Phase.RUNNING):
            self._requeue(why, "declined", NOBODY)

    def move(self) -> None:
        """Another attempt of the same grant takes over."""
        self.phase = Phase.OVER
        self.writer.close()
        self._dispatcher.moved(self)

    def fail(
        self,
        code: str,
        error: str,
        *,
        retryable: bool,
        usage: bytes | None = None,
        used: tuple[int, int] = NO_USAGE,
        stop: str = "",
        hold_ms: int = 0,
    ) -> None:
        """End with a failure, or try again where that is sensible.

        `stop`: the worker still runs it and is told why to stop. `hold_ms`: the model's provider takes nothing for so long, and
        it counts as not begun.
        """
        if self.phase not in (Phase.SENT, Phase.RUNNING):
            return
        fragment = fragment_error(error, code, retryable, usage)
        if retryable and not self.writer.has_output and not stop:
            self._requeue(code, "declined" if hold_ms else "failed", Fragment(fragment, code), hold_ms)
            return
        if stop:
            self._cancel(stop)
        self._finish(State.FAILED, code, "error", fragment, used=used, keep_slot=bool(stop))

    def lost(self) -> None:
        """Its worker is gone, or does not know of it."""
        if self.phase is Phase.STOPPING:
            self._release(NO_USAGE)
        elif self.phase in (Phase.SENT, Phase.RUNNING):
            if self.writer.has_output:
                usage = b'{"outputTokens":%d,"estimated":true}' % self.writer.chunks
                fragment = fragment_error("Worker disconnected", "WORKER_LOST", False, usage)
                self._finish(
                    State.FAILED,
                    "WORKER_LOST",
                    "error",
                    fragment,
                    used=(self._payload_bytes // 4, self.writer.chunks),
                )
            else:
                # a gateway that stops takes its workers' connections with it, which is nobody's fault
                self._requeue("worker lost", "declined" if self._dispatcher.draining else "lost")

    def stop(self, reason: str) -> None:
        """The task was ended from outside: tell the worker; its slot is free when it answers."""
        if self.phase not in (Phase.SENT, Phase.RUNNING):
            return
        if self._sent_at is None:
            self.withdraw()
            return
        self.writer.close()
        self._cancel(reason)
        if self.span is not None:
            self.span.end(reason)
        self.phase = Phase.STOPPING
        self.stop_until = self._dispatcher.time() + self._dispatcher.stop_grace_s

    def withdraw(self) -> None:
        """The task ended before its worker heard of it."""
        if self.phase is Phase.SENT:
            self.writer.close()
            self._release(NO_USAGE)

    def unacknowledged(self) -> None:
        """The worker did not say in time that it has begun."""
        if self.phase is Phase.SENT:
            self._cancel("superseded")
            self.decline("not acknowledged")

    def forget(self) -> None:
        """The grant is over and nothing can be said to Redis about it any more."""
        self.writer.close()
        if self.phase is not Phase.OVER:
            self.phase = Phase.OVER
            self._dispatcher.over(self, [])

    def _cancel(self, reason: str) -> None:
        if self.worker.version >= 2:
            known: Any = reason if reason in ("client", "timeout", "admin") else "superseded"
            grace_ms = self._dispatcher.settings.cancel_grace_ms
            self.worker.send(encoder.encode(Cancel(*self.key, known, grace_ms)))

    def _finish(
        self,
        state: State,
        code: str,
        kind: str,
        fragment: bytes,
        *,
        used: tuple[int, int],
        keep_slot: bool = False,
    ) -> None:
        self._flush_halves()
        self.phase = Phase.FINISHING
        self._spent = used
        dispatcher = self._dispatcher
        want = 0 if keep_slot else dispatcher.want_after(self.worker, self)

        def on_finished(finished: Finished) -> None:
            if finished.outcome == "ok":
                self.measure_end(state, code, used)
            if keep_slot:
                self.wait_for_stop()
                return
            self.phase = Phase.OVER
            dispatcher.over(self, finished.grants, finished.outcome, finished.later)

        self.writer.finish(
            state,
            code,
            kind,
            fragment,
            used=used,
            want=want,
            models=self.worker.models,
            worker=self.worker.id,
            keep_ms=round(dispatcher.stop_grace_s * 1000) if keep_slot else 0,
            on_finished=on_finished,
        )

    def wait_for_stop(self) -> None:
        """The task has ended and its worker was told; the slot is free when it answers, or is gone."""
        self.phase = Phase.STOPPING
        self.stop_until = self._dispatcher.time() + self._dispatcher.stop_grace_s
        if self.answered or self._dispatcher.pool.get(self.worker.id) is not self.worker:
            self._release(NO_USAGE)

    def _requeue(self, why: str, cause: Cause, end: Fragment | None = None, hold_ms: int = 0) -> None:
        begun = self.phase is Phase.RUNNING and cause != "declined"
        self.phase = Phase.OVER
        self.writer.close()
        self._dispatcher.requeue(self, why, cause, begun, end, hold_ms)

    def _release(self, used: tuple[int, int]) -> None:
        self.phase = Phase.OVER
        self._dispatcher.release(self, used)

    def _on_writer_over(self, why: str) -> None:
        """The writer found that the grant is over, or cannot go on."""
        if why != "stale":
            self._cancel("superseded")
            self.phase = Phase.FINISHING
            self._dispatcher.give_up(self, why)
        elif self.phase is Phase.FINISHING:
            self._release(
                self._spent
            )  # it was ended from outside before its result was written: its slot is still taken
        else:
            self.stop("superseded")

    # ---- measures ----------

    def since_submission_ms(self, now: float) -> float:
        """How long ago the task was submitted; the store's clock counts until the grant, ours from then on."""
        return self.grant.granted_ms - self.grant.enqueued_ms + (now - self.granted_at) * 1000

    def measure_end(self, state: State, code: str, used: tuple[int, int] = NO_USAGE) -> None:
        """Tell the measures, and its span, that this attempt ended its task."""
        grant, now = self.grant, self._dispatcher.time()
        if self.span is not None:
            trace_end(self.span, state, code, used)
        self._dispatcher.scheduler.measures.ended(
            TaskEnd(
                grant.queue,
                grant.model,
                grant.task_type,
                state,
                code,
                self.since_submission_ms(now),
                (now - self.granted_at) * 1000,
                (now - self.first_output_at) * 1000 if self.first_output_at else -1,
                used,
            )
        )

    def _first_output(self) -> None:
        grant, self.first_output_at = self.grant, self.output_at
        measures = self._dispatcher.scheduler.measures
        measures.began_output(grant.model, grant.task_type, self.since_submission_ms(self.output_at))
        if self.span is not None:
            self.span.event("first_output")

    def _used(self, message: TaskResult) -> tuple[int, int]:
        """Tokens used: as the worker says, else as its result says, else estimated from what passed, until the worker stopped."""
        result = bytes(message.result)
        used_in, used_out = normalise_usage(_raw(message.usage), result)
        if used_in is None:
            used_in = self._payload_bytes // 4
        if used_out is None:
            used_out = self.writer.chunks + self._unread_chunks or len(result) // 4
        return used_in, used_out


def provider_hold_ms(info: ErrorInfo) -> int:
    """How long a failure says that the model's provider takes no request, ms; 0 when it does not say so.

    It does by MODEL_TOO_BUSY with `retryAfterMs` and the status 429 or none. With another status (503, 529) a server is
    overloaded: other workers may have a better one.
    """
    refused = info.code == "MODEL_TOO_BUSY" and info.retryable and info.http_status in (None, 429)
    if not refused or info.retry_after_ms is None:
        return 0
    return min(max(info.retry_after_ms, MIN_REST_MS), MAX_PAUSE_MS)


def _raw(value: Raw | UnsetType) -> bytes | None:
    return None if value is UNSET else bytes(value)


def result_ack(task_id: str, attempt: int, outcome: str) -> bytes:
    """The frame that lets a worker forget its result."""
    status = {"ok": "accepted", "late": "stale", "stale": "stale", "duplicate": "duplicate"}.get(
        outcome, "unknown"
    )
    return encoder.encode(ResultAck(task_id, attempt, status))  # type: ignore[arg-type]
