"""One attempt: a granted task on one worker, from the grant until its slot is free again. A state machine without I/O.

What ends it (worker, lost connection, cancel, time limit) calls one of its methods; the first one counts, the rest
find it over. What follows is a step: Finish, Check, Requeue, Release or Move. `Effects` carries it out.
"""

from collections.abc import Callable
from typing import Any, Protocol

from msgspec import UNSET, Raw, UnsetType

from fairlane.queues.chains import running
from fairlane.queues.clock import now_ms
from fairlane.queues.failures import failure_row
from fairlane.queues.keys import is_reserved
from fairlane.queues.tasks import Fragment, Grant, Repair, State, Used
from fairlane.streaming.events import (
    Chunk,
    Event,
    fragment_debug,
    fragment_done,
    fragment_error,
    fragment_stage,
    fragment_usage,
    progress_event,
)
from fairlane.streaming.jsontext import MAX_DEPTH, json_string, too_deep
from fairlane.streaming.structured.checker import Verdict
from fairlane.streaming.structured.repair import repair_request
from fairlane.streaming.structured.requirements import MAX_TEXT_BYTES, schema_of, texts_to_check
from fairlane.streaming.tool_calls import CallDeltas
from fairlane.streaming.views.choice import Choice, choices_of_result, finish_of_result, said_bytes
from fairlane.streaming.views.result import ResultView
from fairlane.streaming.views.task import TaskInfo
from fairlane.streaming.views.usage import (
    Counts,
    estimated_usage,
    normalise_usage,
    pick_usage,
    put_usage,
    usage_of_both,
)
from fairlane.streaming.writer import TaskWriter, bytes_of
from fairlane.workers.adapters.dialects.chat import Head
from fairlane.workers.protocol import (
    MAX_PAUSE_MS,
    Cancel,
    Delta,
    ErrorInfo,
    TaskChunk,
    TaskProgress,
    TaskReject,
    TaskResult,
    encoder,
    task_frame,
    with_model,
    worker_code,
)
from fairlane.workers.sdk import TaskError
from fairlane.workers.server.pool import Mismatch, Worker
from fairlane.workers.server.settings import DispatchSettings
from fairlane.workers.server.suspects import Candidate, Loss, Suspicion, read_suspicion, suspects
from fairlane.workers.server.tasks.chains import StageDone
from fairlane.workers.server.tasks.steps import (
    BEFORE_THE_END,
    NO_USAGE,
    Cause,
    Check,
    Finish,
    Move,
    Phase,
    Release,
    Requeue,
    Step,
)
from fairlane.workers.server.tasks.usage_bounds import MAX_READ, MEDIA_INPUT, Request, is_doubtful
from fairlane.workers.server.tasks.whole_answers import normal_answer
from fairlane.workers.tasktypes import MEDIA
from fairlane.workers.tracing import Span

MAX_ERROR_CHARS = 2000
MIN_REST_MS = 100
"""A full worker, or a model whose provider rejects, gets no task for at least this long: it would return immediately."""
LOST = "Worker disconnected: the connection to it was lost"
LOST_TWICE = (
    "Worker disconnected: it was lost ({}) while it ran this task, for the second time. The task may be the cause and is not "
    "tried again"
)
REJECTED_LATE = "taskReject after taskAck: a task that was acknowledged ends with taskResult"
MAX_DEBUG_BYTES = 64 * 1024
MAX_REASON_CHARS = 200
"""Of the finish reason of an answer, which each choice without one of its own has, too; a longer one is left out."""
MAX_PROGRESS_USAGE_BYTES = 2048
"""Of the usage that a worker reports while the task runs; larger usage is not logged."""
MAX_USAGE_BYTES = 16 * 1024
"""Of the usage of a result."""
TOO_DEEP = f"has more than {MAX_DEPTH} levels"
USAGE_S = 0.2
"""Usage is logged no more often."""
MISMATCHES = {
    "text": "The answer does not match its schema: {}",
    "schema": "The answer could not be compared with its schema: {}",
    "unknown": "The answer could not be compared with its schema: {}",
}
"""Error messages for clients. Operators do not see the part after the colon, as it can quote the answer."""
NO_WORKER = Fragment(fragment_error("No connected worker takes the task", "NO_WORKER", False), "NO_WORKER")

AttemptKey = tuple[str, int]
"""How a worker's messages name an attempt: the task, and the number on the wire. Version 1 has no number: it is 0."""


def key_of(grant: Grant, worker: Worker) -> AttemptKey:
    """How this worker names an attempt of this grant."""
    return grant.task_id, grant.epoch if worker.version >= 2 else 0


class Timer(Protocol):
    """Something that is going to happen."""

    def cancel(self) -> None: ...


class Effects(Protocol):
    """Acts for attempts. One object for all of them, so that nothing holds an attempt that is over."""

    @property
    def settings(self) -> DispatchSettings: ...

    @property
    def stop_grace_s(self) -> float:
        """How long a worker may take to stop a task before its connection is closed."""
        ...

    def time(self) -> float: ...

    def apply(self, attempt: "Attempt", step: Step) -> None:
        """Carry out an attempt's step, until the store has answered."""
        ...

    def keep_payload(self, task_id: str, payload: bytes) -> None:
        """Keep a body for the next worker of its task."""
        ...

    def hold(self, worker: Worker, ms: int) -> None:
        """Give a worker no task for a while."""
        ...

    def sent(self, grant: Grant) -> None:
        """Report to the store that the request of an attempt has left."""
        ...

    def changed(self, worker: Worker) -> None:
        """A worker drains from now on."""
        ...

    def began_output(self, attempt: "Attempt") -> None: ...

    def usage_corrected(self, attempt: "Attempt", reported: Counts, counted: Counts) -> None: ...


class Attempt:
    """See the module.

    `key` names it in the worker's messages. `answered` is true once the worker's result has come, whatever became of it: it
    is then acknowledged when the attempt is over, and what follows it is out of order. `end` is how it ends, once that is known.
    `output_at` is when it last sent output or its result;
    `progress_at` when it last reported progress.
    """

    __slots__ = (
        "_calls",
        "_checking",
        "_debug",
        "_effects",
        "_finish_reason",
        "_frames",
        "_last_usage",
        "_last_wrote",
        "_made",
        "_rejected",
        "_request",
        "_request_left",
        "_schema",
        "_sent_at",
        "_unread_bytes",
        "_usage_at",
        "answered",
        "end",
        "first_output_at",
        "grant",
        "granted_at",
        "key",
        "missing",
        "output_at",
        "phase",
        "progress_at",
        "renewed_at",
        "span",
        "started_at",
        "steps",
        "stop_until",
        "stopping_since",
        "suspicion",
        "timer",
        "worker",
        "writer",
    )

    def __init__(
        self, effects: Effects, grant: Grant, worker: Worker, writer: TaskWriter, span: Span | None = None
    ) -> None:
        self._effects = effects
        self.grant = grant
        self.worker = worker
        self.writer = writer
        self.span = span
        self.key = key_of(grant, worker)
        suspicion = read_suspicion(grant.last_lost)
        self.suspicion = suspicion if suspicion and suspicion.isolates(worker.identity) else None
        """If an earlier worker may have been lost over its task: then it runs alone on its worker."""
        self.phase: Phase = "sent"
        self.granted_at = self.started_at = self.output_at = effects.time()
        self.first_output_at = self.progress_at = 0.0
        self.renewed_at = 0.0
        self.stopping_since = self.stop_until = 0.0
        self.timer: Timer | None = None
        """When to look whether its model is silent."""
        self.missing = 0
        self.answered = False
        self.end: Finish | None = None
        self.steps = 0
        """How often the end of its stage was reported to the store, which asked for more."""
        self._sent_at: float | None = None
        self._rejected = self._request_left = False
        self._request = Request(grant.task_type)
        self._frames = 0
        self._unread_bytes = 0  # that came after its end, while its worker continued
        self._finish_reason: str | None = None
        self._calls: dict[int, CallDeltas] = {}
        """By choice."""
        self._debug = b""
        self._schema: bytes | None = None
        self._checking = False
        self._made: ResultView | None = None
        """The output so far: of a stage of a chain, for the next ones, and of a task whose text must match a schema."""
        self._last_usage: bytes | None = None  # that progress reported
        self._last_wrote = 0  # what it had written by then
        self._usage_at = 0.0

    @property
    def held(self) -> bool:
        """True while its lease must be renewed."""
        return self.phase in ("sent", "running", "finishing")

    @property
    def candidate(self) -> Candidate | None:
        """What it is if its worker is lost now; None if it cannot be tried again."""
        if self._sent_at is None or self.phase not in BEFORE_THE_END or self.writer.has_output:
            return None
        return Candidate(self.key, self._sent_at, self.phase == "running", self._request.size)

    @property
    def silent_since(self) -> float | None:
        """When its worker last gave a sign of it: it was given the task, sent output or reported progress. None: it is over,
        or asked to stop."""
        return max(self.output_at, self.progress_at) if self.phase in BEFORE_THE_END else None

    @property
    def output_tokens(self) -> int:
        """Tokens of output so far, as far as known; -1 before the first."""
        return self._wrote() or -1

    def cancel_timer(self) -> None:
        """No timer checks it any more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    # ---- beginning ----------

    def send(self, payload: bytes) -> None:
        """Send the task to its worker."""
        grant, worker = self.grant, self.worker
        kept = payload if len(payload) <= MAX_READ else b""
        self._request = Request(grant.task_type, len(payload), kept)
        whole = self._effects.settings.payload_of(grant, payload)
        if whole is None:
            self.fail("ENDPOINT_GONE", "The endpoint is configured no more for this request", retryable=False)
            return
        received = with_model(whole, grant.asked) if grant.model_omitted else whole
        if grant.answer:
            self._schema = schema_of(grant.answer, payload)
            self._made = ResultView(TaskInfo(grant.task_id, grant.asked, 0, grant.task_type))
            if (grant.repairs or grant.repaired) and not grant.stream:
                self.writer.buffer_until_end()
        if grant.stage:
            self._begin_stage(grant)
        frame = task_frame(
            grant.task_type,
            grant.task_id,
            received,
            version=worker.version,
            attempt=grant.epoch,
            model=grant.asked,
            stream=grant.stream,
            timeout_ms=grant.left_ms,
            traceparent=grant.traceparent if self.span is None else self.span.traceparent,
            tell_sent=grant.report_sent,
            user=grant.user if worker.wants_user else "",
        )
        if len(frame) > worker.max_message_bytes:
            self._effects.keep_payload(grant.task_id, payload)
            self._effects.apply(self, Move(Mismatch.SIZE, len(frame)))
            return
        if worker.version == 1:
            self.phase = "running"
        self.started_at = self.output_at = self._sent_at = self._effects.time()
        worker.send(frame)
        if self._effects.settings.debug_events:
            # (what an operator adds to a request to an endpoint is not for its caller)
            shown = (received if whole is payload else payload) if len(received) <= MAX_DEBUG_BYTES else None
            self._debug = fragment_debug("the worker got this payload", shown)
            if self.phase == "running":
                self._log_debug()

    def _begin_stage(self, grant: Grant) -> None:
        """Begin a stage of a chain: its output is collected, and logged if the chain's readers see it as it arrives."""
        stage = running(grant)
        assert stage is not None
        self._made = ResultView(TaskInfo(stage.chain, grant.asked, 0, grant.task_type))
        if stage.part >= 0 or not grant.stream:
            self.writer.discard_output()

    def waits_for_ack(self, now: float, ack_s: float) -> bool:
        """Return whether the worker is late to acknowledge the task."""
        return self.phase == "sent" and self._sent_at is not None and now - self._sent_at > ack_s

    def acknowledged(self) -> None:
        """The worker has begun."""
        if self.phase == "sent":
            self.phase = "running"
            self.renewed_at = 0.0  # the next renewal says so
            self.worker.missed_acks = 0
            if self._debug:
                self._log_debug()

    def sent(self) -> None:
        """Its request to its target has left. The first time counts."""
        self.acknowledged()
        if self.grant.report_sent and not self._request_left:
            self._request_left = True
            self._effects.sent(self.grant)

    def _log_debug(self) -> None:
        """Log what the worker got. Not before it has begun: until then the grant may move, and two would write at one place."""
        self.writer.event("debug", self._debug)
        self._debug = b""

    # ---- output ----------

    def chunk(self, message: TaskChunk) -> str | None:
        """Take a chunk frame. Return what is wrong with it, or None."""
        if self.phase != "running":
            if self.phase != "sent":
                self._unread_bytes += _text_bytes(message)
                return None
            self.acknowledged()
        self._came()
        if self.worker.version == 1:
            if message.delta is not None:
                self._chunk(0, "text", message.delta)
        else:
            if message.seq == 0 or message.delta is not None:
                self.broken("The worker sent output that cannot be read")
                return "a chunk has a `seq`, from 1, and `deltas`"
            if message.seq != self._frames + 1:
                if message.seq <= self._frames:
                    return None
                wrong = f"chunk {message.seq} came after chunk {self._frames}"
                self.broken("The worker lost a part of its output")
                return wrong
            self._frames = message.seq
            for delta in message.deltas:
                if fault := self._delta(delta):
                    if self.phase == "running":
                        self.broken("The worker sent output that cannot be read")
                    return fault
        if not self.first_output_at and self.writer.chunks:
            self.first_output_at = self.output_at
            self._effects.began_output(self)
            self.sent()  # what has been answered has left
        self.writer.pump()
        return None

    def _came(self) -> None:
        """Its worker sent output, or its result."""
        self.output_at = self._effects.time()

    def _delta(self, delta: Delta) -> str | None:
        chunk, index = self._chunk, delta.index
        # first, as what it says (log probabilities) is about the text next to it
        if delta.extra is not UNSET and (extra := bytes(delta.extra)) != b"null":
            if not extra.startswith(b"{"):
                return "extra must be an object"
            if too_deep(extra):
                return self._excess(f"The extra of a delta {TOO_DEEP}")
            chunk(index, "extra", extra)
        if delta.reasoning:
            chunk(index, "reasoning", delta.reasoning)
        if delta.content:
            chunk(index, "text", delta.content)
        if delta.refusal:
            chunk(index, "refusal", delta.refusal)
        if delta.tool_calls is not UNSET and (tool_calls := bytes(delta.tool_calls)) != b"null":
            if not tool_calls.startswith(b"["):
                return "toolCalls must be a list"
            if too_deep(tool_calls):
                return self._excess(f"A list of tool calls {TOO_DEEP}")
            calls = self._calls.get(index)
            if calls is None:
                calls = self._calls[index] = CallDeltas(self.grant.task_id, index)
            if (normal := calls.normal(tool_calls)) is not None:
                chunk(index, "tool", normal)
        if delta.finish_reason:
            self._end_calls(index)
            chunk(index, "finish", delta.finish_reason)
            if index == 0:
                self._finish_reason = delta.finish_reason
        return None

    def _end_calls(self, index: int) -> None:
        """Log what is held back of the calls of a choice."""
        if (calls := self._calls.get(index)) is not None and (held := calls.end()) is not None:
            self._chunk(index, "tool", held)

    @property
    def _chunk(self) -> Callable[[int, str, Any], None]:
        """Takes output: into the log, and where it is looked at in the end, to the rest of that."""
        return self.writer.chunk if self._made is None else self._collect

    def _collect(self, index: int, kind: str, value: Any) -> None:
        assert self._made is not None
        delta = json_string(value) if isinstance(value, str) else bytes(value)
        self._made.add_chunk(Chunk(index, kind, Raw(delta)))
        self.writer.chunk(index, kind, value)

    def broken(self, why: str) -> None:
        """The worker broke the protocol in its output: this task cannot be right any more, and it must stop."""
        self.fail("PROTOCOL_ERROR", why, retryable=False, stop="superseded")

    def unreadable_result(self) -> None:
        """Take an unreadable result: the worker is done."""
        self.answered = True
        if self.phase == "stopping":
            self._release()
        else:
            self.fail("PROTOCOL_ERROR", "The worker's result is not valid JSON", retryable=False)

    def progress(self, message: TaskProgress) -> str | None:
        """Show progress to the readers; log stage and usage. Return what is wrong with it, or None."""
        if self.phase not in BEFORE_THE_END:
            return None
        self.acknowledged()
        now = self.progress_at = self._effects.time()
        if message.stage is not None and not self.grant.stage:  # a chain's log reports its own stages
            stage = message.stage
            self.writer.event("stage", fragment_stage(stage.name, stage.index, stage.of, stage.status))
        if message.usage is not UNSET and (usage := bytes(message.usage)) != b"null":
            if not usage.startswith(b"{") or len(usage) > MAX_PROGRESS_USAGE_BYTES:
                return f"usage must be an object of at most {MAX_PROGRESS_USAGE_BYTES} bytes"
            self._last_usage, self._last_wrote = usage, self._wrote()
            if now - self._usage_at >= USAGE_S:
                self._usage_at = now
                self.writer.event("usage", fragment_usage(usage))
        if message.pct is not None or message.note is not None:
            self.writer.show(progress_event(self.grant.task_id, now_ms(), message.pct, message.note))
        return None

    # ---- ends ----------

    def result(self, message: TaskResult) -> None:
        """The worker is done. Also the confirmation that a stopped task has stopped."""
        self.answered = True
        excess = self._cut(message)
        if self.phase == "stopping":
            self._release(self._used(message))
            return
        if self.phase not in BEFORE_THE_END:
            return
        self.acknowledged()
        self._came()
        if self.worker.version >= 2 and message.last_seq > self._frames:
            self.fail("PROTOCOL_ERROR", "The worker lost a part of its output", retryable=False)
            return
        if message.error or message.error_info is not None:
            self._failed(message, _raw(message.usage))
            return
        if excess:
            self._excess(excess)
            return
        for index in self._calls:
            self._end_calls(index)
        if self.grant.task_type == "openaiLike":
            head = Head(self.grant.task_id, self.grant.asked, now_ms() // 1000)
            try:
                message.result = Raw(normal_answer(bytes(message.result), head))
            except TaskError as error:
                more = (error.retryable, error.message, error.http_status, error.retry_after_ms)
                message.error_info = ErrorInfo(error.code, *more)
                self._failed(message, _raw(message.usage))
                return
        usage, used = _raw(message.usage), self._used(message)
        result = bytes(message.result)
        if used.estimated:
            usage = estimated_usage(used[:2], pick_usage(usage, result, self._last_usage))
            # all readings show the corrected usage
            if None not in normalise_usage(_raw(message.usage), result)[:2]:
                result = put_usage(result, b"null")
        if self.grant.repaired is not None:
            usage = self._client_usage(pick_usage(usage, result, self._last_usage) or b"{}")
            result = put_usage(result, usage)
        shown = result if result != b"null" or not self.writer.chunks else None
        reason = self._finish_reason or finish_of_result(result)
        if reason is not None and len(reason) > MAX_REASON_CHARS:
            reason = None
        end = Finish(State.COMPLETED, "", fragment_done(shown, usage, reason), used)
        if self.grant.stage:
            end = end._replace(stage=self._stage_done(end, reason, logged=shown is None))
        if not self.writer.fits(len(end.fragment)):
            self._too_large(end.used)
        elif self._schema is not None and self._made is not None:
            in_chunks = result == b"null"
            choices = self._made.choices() if in_chunks else choices_of_result(result, self.grant.task_id)
            self._check(end, self._schema, choices, usage)
        else:
            self._finish(end)

    def _stage_done(self, end: Finish, reason: str | None, *, logged: bool) -> StageDone:
        """Return its stage with its output. `logged`: the log holds the output, so the end does not repeat it."""
        stage = running(self.grant)
        assert self._made is not None
        assert stage is not None
        self._made.feed(Event(0, 0, "done", b"{%b}" % end.fragment))
        return StageDone(stage, end.used, self._made.result_json(), reason, logged and self.writer.has_output)

    def _check(self, end: Finish, schema: bytes, choices: list[Choice], usage: bytes | None) -> None:
        """Have the answer looked at before it ends so. Until then it is as if its end were being written."""
        texts = texts_to_check(choices)
        alone = len(choices) == len(texts) == 1 and len(texts[0]) <= MAX_TEXT_BYTES
        repairs = self.grant.repairs and alone and not self.writer.has_output
        self.phase, self.end, self._checking = "finishing", end, True
        self._effects.apply(self, Check(schema, texts, usage, repairs))

    def checked(self, verdict: Verdict, step: Check, payload: bytes | None = None) -> None:
        """It is known whether the answer is what it must be. Nothing, if the task has ended otherwise meanwhile. `payload`: its
        request, if the answer does not match and may be asked for again."""
        if not self._checking or self.phase != "finishing" or self.end is None:
            return
        end, self._checking = self.end, False
        if not verdict.wrong:
            self._effects.apply(self, end)
            return
        text, code = MISMATCHES[verdict.wrong].format(verdict.sentence), "JSON_PARSE_FAILED"
        self.phase, self.end = "running", None
        if verdict.wrong == "unknown":  # the model did its work: to run it again is for the caller to decide
            fragment = fragment_error(text, "NOT_CHECKED", True, step.usage)
            self._finish(Finish(State.FAILED, "NOT_CHECKED", fragment, end.used, blameless=True))
            return
        again = repair_request(payload, step.texts[0], verdict.sentence) if payload else None
        if again is not None:
            failed = Fragment(fragment_error(text, code, False, step.usage), code)
            repair = Repair(again, end.used)
            self._requeue(f"{code}, repaired", "redo", failed, blameless=True, repair=repair)
            return
        self.fail(code, text, retryable=False, usage=step.usage, used=end.used, blameless=True)

    def _cut(self, message: TaskResult) -> str | None:
        """Remove the parts of a result that are too large to parse. Return a message about them, or None."""
        sentence = None
        if message.usage is not UNSET and len(bytes(message.usage)) > MAX_USAGE_BYTES:
            message.usage = UNSET
            sentence = f"The usage is larger than {MAX_USAGE_BYTES} bytes"
        if too_deep(bytes(message.result)):
            message.result = Raw(b"null")
            sentence = f"The result {TOO_DEEP}"
        return sentence

    def _excess(self, sentence: str) -> str:
        """End the task, whose output is too large, and stop it if its worker still runs it. Return the sentence."""
        self._end_anyhow("OUTPUT_TOO_LARGE", sentence, self._estimate())
        return sentence

    def _failed(self, message: TaskResult, usage: bytes | None) -> None:
        info = message.error_info
        code = worker_code(info.code if info else "")
        text = (message.error or (info.message if info else None) or code)[:MAX_ERROR_CHARS]
        retryable = info.retryable if info else False
        hold_ms = provider_hold_ms(info) if info else 0
        if info and info.retry_after_ms and not hold_ms:
            self._effects.hold(self.worker, info.retry_after_ms)
        if usage is not None and self.grant.repaired is not None:
            usage = self._client_usage(usage)
        if usage is not None and not self.writer.fits(len(usage)):
            usage = None
        answered = usage is not None or self._last_usage is not None or self.writer.chunks
        # nothing is charged for an answer that was not given
        used = self._used(message) if answered else NO_USAGE
        self.fail(code, text, retryable=retryable, usage=usage, used=used, hold_ms=hold_ms)

    def reject(self, message: TaskReject) -> str | None:
        """The worker will not run it. Return what is wrong with the message, or None.

        A worker that has acknowledged the task before does not get it again, and the attempt counts as a failed one.
        """
        worker = self.worker
        if self.phase != "sent":
            if self.phase != "running":
                return None
            worker.refused.put(self.grant.task_id, Mismatch.REJECTED)
            retryable = message.reason != "badPayload" and not self.writer.has_output
            text = message.message or "The worker rejected the task after it had acknowledged it"
            self.fail("WORKER_ERROR", text[:MAX_ERROR_CHARS], retryable=retryable)
            return REJECTED_LATE
        worker.missed_acks = 0
        self._rejected = True
        if message.reason == "badPayload":
            self.fail(
                "BAD_REQUEST",
                (message.message or "The worker refuses the payload")[:MAX_ERROR_CHARS],
                retryable=False,
            )
        elif message.reason == "unsupported":
            self._effects.apply(self, Move(Mismatch.REJECTED))
        elif message.reason == "draining":
            worker.draining = True
            self._effects.changed(worker)
            self.decline(message.reason)
        else:
            self._effects.hold(worker, max(message.retry_after_ms or 1000, MIN_REST_MS))
            self.decline(message.reason)
        return None

    def decline(self, why: str, *, aside_ms: int = 0) -> None:
        """Requeue the task at its old place, at no cost, `aside_ms` from now. A task that no worker takes, again and again, ends
        eventually."""
        if self.phase in BEFORE_THE_END:
            self._requeue(why, "declined", NO_WORKER, aside_ms=aside_ms)

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
            self._requeue(code, "declined" if hold_ms else "failed", end, hold_ms)
            return
        another = self.grant.has_fallback and failure_row(code).fallback_may_help
        if another and not self.writer.has_output and (not stop or self.worker.version > 1):
            if stop:
                self._cancel(stop)
            end = Fragment(fragment_error(error, code, retryable, usage), code)
            self._requeue(code, "falls", end, blameless=blameless)
            return
        fragment = fragment_error(error, code, retryable, usage)
        if stop:
            self._cancel(stop)
        self._finish(Finish(State.FAILED, code, fragment, used, bool(stop), blameless))

    def lost(
        self, sentence: str = LOST, *, blameless: bool = False, suspicion: Suspicion | None = None
    ) -> None:
        """End an attempt whose worker is gone, or does not know it, or whose gateway stops. `sentence` is the error message.
        `blameless`: the gateway caused it, at no cost. `suspicion`: the task may have caused it; it ends if it did before."""
        if self.phase == "stopping":
            self._release()
        elif self.phase in BEFORE_THE_END:
            if self.writer.has_output:
                used = self._estimate()
                usage = estimated_usage(used[:2], self._last_usage) if used.estimated else self._last_usage
                if usage is not None and self.grant.repaired is not None:
                    usage = self._client_usage(usage)
                fragment = fragment_error(sentence, "WORKER_LOST", True, usage)
                self._finish(Finish(State.FAILED, "WORKER_LOST", fragment, used))
            elif suspicion is not None and self.suspicion is not None:
                self.fail("WORKER_LOST", LOST_TWICE.format(suspicion.why), retryable=False)
            else:
                once, unsent = self.grant.max_tries == 1, self._sent_at is None
                if blameless and (unsent or not once):
                    self._requeue("gateway stops", "declined")
                else:
                    cause: Cause = "declined" if once and unsent else "lost"
                    self._requeue("worker lost", cause, suspicion=suspicion)

    def stop(self, reason: str) -> None:
        """The task was ended from outside, or another worker has it: notify the worker; its slot is free when it answers."""
        if self.phase not in BEFORE_THE_END:
            return
        if self._sent_at is None:
            self.withdraw()
            return
        self.writer.close()
        self._cancel(reason)
        if self.span is not None:
            self.span.end(reason)
        self.wait_for_stop()

    def withdraw(self) -> None:
        """Release a task that ended before it was sent to its worker."""
        if self.phase == "sent":
            self._release()

    def unacknowledged(self) -> None:
        """The worker did not say in time that it has begun. It reads its frames in their order, so the first task that it did not
        acknowledge may be the reason; the others cost no try, unless they have only one, as they may have begun all the same."""
        candidate = self.candidate
        if self.phase != "sent" or candidate is None:
            return
        self._cancel("superseded")
        sent = [c for a in self.worker.attempts.values() if (c := a.candidate) and not c.acknowledged]
        if candidate.sent_at <= min(c.sent_at for c in sent):
            loss = Loss(0, "not acknowledged", False, self._effects.time())
            self.lost(suspicion=suspects([candidate], self.worker.identity, loss)[self.key])
        elif self.grant.max_tries == 1:
            self.lost()
        else:
            self.decline("not acknowledged")

    def cannot_write(self, why: str) -> None:
        """End an attempt whose output the log does not take; `why` comes from the writer."""
        if why == "too_large":
            self._too_large(self._estimate())
        elif why == "overflow":
            self._end_anyhow("OUTPUT_TOO_LARGE", "The output grew faster than it could be stored")
        elif why != "stale":
            self._end_anyhow("STORE_LOST", "The store lost a part of the output")
        elif self.phase != "finishing":
            self.stop("superseded")
        elif self.end is not None and self.end.keep_slot:
            self.wait_for_stop()
        else:  # it was ended from outside before its result was written: its slot is still taken
            self._release(self.end.used if self.end else None)

    def _too_large(self, used: Used) -> None:
        text = f"The output is larger than the {self._effects.settings.max_output_bytes} bytes that a task may write"
        self._end_anyhow("OUTPUT_TOO_LARGE", text, used)

    def cannot_continue(self, why: str) -> None:
        """End an attempt whose stage the store does not end; `why` comes from the store."""
        if self.phase == "finishing" and self.end is not None:
            code, text = "STORE_LOST", "The store does not end the stage"
            if why == "too_large":
                code = "OUTPUT_TOO_LARGE"
                text = (
                    "The results of the chain's stages are larger together than the store keeps of one chain"
                )
            self._end_anyhow(code, text, self.end.used)

    def _end_anyhow(self, code: str, text: str, used: Used = NO_USAGE) -> None:
        """End with a failure of the gateway's own, also instead of an end that could not be written."""
        knows = self.end is not None and self.end.keep_slot
        if not self.answered and not knows:
            self._cancel("superseded")
        fragment = fragment_error(text, code, failure_row(code).retry)
        self._finish(Finish(State.FAILED, code, fragment, used, keep_slot=not self.answered))

    def written(self) -> None:
        """Its end was answered, and its slot is free."""
        self.phase = "over"

    def forget(self) -> None:
        """Write nothing more about it to Redis."""
        self.writer.close()
        self.phase = "over"

    def wait_for_stop(self) -> None:
        """The task has ended and its worker was notified; the slot is free when it answers, or is gone."""
        self.phase = "stopping"
        self.stopping_since = self._effects.time()
        self.stop_until = self.stopping_since + self._effects.stop_grace_s
        if self.answered:
            self._release()

    def _cancel(self, reason: str) -> None:
        if self.worker.version >= 2:
            known: Any = reason if reason in ("client", "timeout", "admin") else "superseded"
            grace_ms = self._effects.settings.cancel_grace_ms
            self.worker.send(encoder.encode(Cancel(*self.key, known, grace_ms)))

    def _finish(self, end: Finish) -> None:
        self._checking = False
        self.phase = "finishing"
        self.end = end
        self._effects.apply(self, end)

    def _requeue(
        self,
        why: str,
        cause: Cause,
        end: Fragment | None = None,
        hold_ms: int = 0,
        *,
        blameless: bool = False,
        repair: Repair | None = None,
        suspicion: Suspicion | None = None,
        aside_ms: int = 0,
    ) -> None:
        unsent, lost = self._sent_at is None or self._rejected, cause == "lost"
        begun = not unsent if lost else self.phase == "running" and cause not in ("declined", "redo")
        self.phase = "over"
        self.writer.close()
        grace_ms = self._effects.settings.lost_grace_ms if lost and self.worker.version >= 2 else 0
        suspected = suspicion.packed() if suspicion else ""
        self._effects.apply(
            self,
            Requeue(
                why, cause, begun, end, hold_ms, blameless, repair, unsent, suspected, grace_ms, aside_ms
            ),
        )

    def _release(self, used: Used | None = None) -> None:
        """Free the slot of a task that ended elsewhere. Without `used`, its usage is estimated from its output."""
        if used is None:
            used = self._estimate() if self.writer.chunks or self._unread_bytes else NO_USAGE
        self.phase = "over"
        self.writer.close()
        self._effects.apply(self, Release(used))

    # ---- what was used ----------

    def since_submission_ms(self, now: float) -> float:
        """How long ago the task was submitted; the store's clock counts until the grant, ours from then on."""
        return self.grant.granted_ms - self.grant.enqueued_ms + (now - self.granted_at) * 1000

    def _client_usage(self, usage: bytes) -> bytes:
        """Return the usage for the client: of this attempt, plus of the one whose answer it repairs."""
        before = self.grant.repaired or NO_USAGE
        return usage_of_both(usage, before[:4], estimated=before.estimated)

    def _used(self, message: TaskResult) -> Used:
        """Return the tokens used: from the worker, else from its result, else from its progress and the output since, else
        estimated from all output until it stopped."""
        result = bytes(message.result)
        reported = normalise_usage(_raw(message.usage), result)
        if self.grant.task_type in MEDIA:
            return self._of_media(reported)
        embeds = self.grant.task_type == "openaiEmbedding"  # no output but what is written all the same
        said = self._wrote_bytes()
        if not said and not embeds and is_doubtful(reported.output, len(result)):
            said = sum(map(said_bytes, choices_of_result(result, self.grant.task_id)))
        wrote = _tokens(said)
        if reported.input is None and reported.output is None:
            return self._estimate_from_progress(wrote)
        if embeds and reported.output is None:
            reported = reported._replace(output=wrote)
        return self._completed(reported, wrote, said, said or len(result))

    def _estimate(self) -> Used:
        """Return the tokens used so far: from the last progress and the output since, else estimated."""
        return self._estimate_from_progress(self._wrote())

    def _estimate_from_progress(self, wrote: int) -> Used:
        """Return the usage from the progress, plus the output after it."""
        reported = normalise_usage(self._last_usage)
        if self.grant.task_type in MEDIA:
            return self._of_media(reported)
        since = 0 if reported.output is None else max(wrote - self._last_wrote, 0)
        used = self._completed(reported, wrote, 0, self._wrote_bytes())
        return used._replace(output=used.output + since, estimated=True) if since else used

    def _wrote(self) -> int:
        """Tokens that the worker wrote, estimated."""
        return _tokens(self._wrote_bytes())

    def _wrote_bytes(self) -> int:
        """Bytes of text that the worker wrote. Of media 0: what they hold is no text, as a rule."""
        if self.grant.task_type in MEDIA:
            return 0
        calls = sum(calls.said_bytes for calls in self._calls.values())
        return self.writer.text_bytes + calls + self._unread_bytes

    def _of_media(self, reported: Counts) -> Used:
        """Return the reported usage: the tokens of audio or an image cannot be estimated."""
        if reported.input is None and reported.output is None:
            reported = normalise_usage(self._last_usage)
        if reported.input is None and reported.output is None:
            return Used()
        counts = self._bounded(reported, 0, MEDIA_INPUT)
        return Used(counts.input or 0, counts.output or 0, -1 if counts.cached is None else counts.cached)

    def _completed(self, reported: Counts, wrote: int, said: int, seen: int) -> Used:
        """Return the reported usage within its bounds, with estimates of the input and of the output (`wrote`) where they are
        missing. `said`: bytes of text, `seen`: the most bytes of output. Endpoints have no tokens."""
        if is_reserved(self.grant.model):
            return Used(0, 0)
        counts = self._bounded(reported, said, seen)
        return Used(
            self._request.size // 4 if counts.input is None else counts.input,
            wrote if counts.output is None else counts.output,
            -1 if counts.cached is None else counts.cached,
            -1 if counts.reasoning is None else counts.reasoning,
            counts != reported or counts.input is None or counts.output is None,
        )

    def _bounded(self, reported: Counts, said: int, seen: int) -> Counts:
        counts = self._request.without_gifts(self._request.limited(reported, seen), said)
        if counts != reported:
            self._effects.usage_corrected(self, reported, counts)
        return counts


def provider_hold_ms(info: ErrorInfo) -> int:
    """Return how long (ms) a failure says that the model's provider takes no request; 0 if it does not say so.

    It does with MODEL_TOO_BUSY, `retryAfterMs` and the status 429 or none. Another status (503, 529) means an overloaded server:
    other workers may have a better one.
    """
    refused = info.code == "MODEL_TOO_BUSY" and info.retryable and info.http_status in (None, 429)
    if not refused or info.retry_after_ms is None:
        return 0
    return min(max(info.retry_after_ms, MIN_REST_MS), MAX_PAUSE_MS)


def _tokens(size: int) -> int:
    """Return how many tokens a text of this length in bytes has, estimated: one for four bytes."""
    return -(-size // 4)


def _text_bytes(message: TaskChunk) -> int:
    """How much text a chunk frame holds, in bytes."""
    total = bytes_of(message.delta or "")
    for delta in message.deltas:
        for text in (delta.content, delta.reasoning, delta.refusal):
            total += bytes_of(text or "")
        if delta.tool_calls is not UNSET:
            total += len(bytes(delta.tool_calls))
    return total


def _raw(value: Raw | UnsetType) -> bytes | None:
    return None if value is UNSET else bytes(value)
