"""Takes what a worker says about one of its attempts. Each function returns what is wrong with the message, or None."""

from msgspec import UNSET

from fairlane.queues.clock import now_ms
from fairlane.streaming.events import fragment_stage, fragment_usage, progress_event
from fairlane.workers.protocol import TaskAck, TaskChunk, TaskProgress, TaskReject, TaskResult, TaskSent
from fairlane.workers.sdk import TaskError
from fairlane.workers.server.pool.worker import Mismatch
from fairlane.workers.server.tasks.attempt import Attempt
from fairlane.workers.server.tasks.effects import BEFORE_THE_END, NO_USAGE
from fairlane.workers.server.tasks.output import INCOMPLETE, BadOutput
from fairlane.workers.server.tasks.results import MAX_ERROR_CHARS, answer_of, failure_of, raw, reduced

MIN_REST_MS = 100
"""A full worker gets no task for at least this long: it would return immediately."""
REJECTED_LATE = "taskReject after taskAck: a task that was acknowledged ends with taskResult"
MAX_PROGRESS_USAGE_BYTES = 2048
"""Of the usage that a worker reports while the task runs; larger usage is not logged."""


def acknowledged(attempt: Attempt, _: TaskAck) -> None:
    """The worker has begun."""
    attempt.acknowledged()


def request_left(attempt: Attempt, _: TaskSent) -> None:
    """The worker's request to its target has left."""
    attempt.request_left()


def chunk(attempt: Attempt, message: TaskChunk) -> str | None:
    """Take output."""
    if attempt.phase != "running":
        if attempt.phase != "sent":
            attempt.output.skip(message)
            return None
        attempt.acknowledged()
    attempt.output_at = attempt.effects.time()
    writer = attempt.writer
    try:
        attempt.output.read(message, attempt.worker.version, attempt.take if attempt.hooks else writer.chunk)
    except BadOutput as error:
        if error.too_large:
            attempt.end_anyhow("OUTPUT_TOO_LARGE", error.why, attempt.usage.estimate())
        else:
            attempt.broken(error.why)
        return str(error)
    if not attempt.first_output_at and writer.chunks:
        attempt.began_output()
    writer.pump()
    return None


def progress(attempt: Attempt, message: TaskProgress) -> str | None:
    """Show progress to the readers; log stage and usage."""
    if attempt.phase not in BEFORE_THE_END:
        return None
    attempt.acknowledged()
    attempt.progress_at = attempt.effects.time()
    if message.stage is not None and not attempt.grant.stage:  # a chain's log reports its own stages
        stage = message.stage
        attempt.writer.event("stage", fragment_stage(stage.name, stage.index, stage.of, stage.status))
    if message.usage is not UNSET and (usage := bytes(message.usage)) != b"null":
        if not usage.startswith(b"{") or len(usage) > MAX_PROGRESS_USAGE_BYTES:
            return f"usage must be an object of at most {MAX_PROGRESS_USAGE_BYTES} bytes"
        if attempt.usage.report(usage, attempt.progress_at):
            attempt.writer.event("usage", fragment_usage(usage))
    if message.pct is not None or message.note is not None:
        attempt.writer.show(progress_event(attempt.grant.task_id, now_ms(), message.pct, message.note))
    return None


def result(attempt: Attempt, message: TaskResult) -> None:
    """The worker is done. Also the confirmation that a stopped task has stopped."""
    attempt.answered = True
    excess = reduced(message)
    if attempt.phase == "stopping":
        attempt.release(attempt.usage.of(raw(message.usage), bytes(message.result)))
        return
    if attempt.phase not in BEFORE_THE_END:
        return
    if attempt.phase == "sent":
        attempt.acknowledged()
    attempt.output_at = attempt.effects.time()
    if attempt.worker.version >= 2 and message.last_seq > attempt.output.frames:
        attempt.fail("PROTOCOL_ERROR", INCOMPLETE, retryable=False)
    elif message.error or message.error_info is not None:
        _failed(attempt, message)
    elif excess:
        attempt.end_anyhow("OUTPUT_TOO_LARGE", excess, attempt.usage.estimate())
    else:
        attempt.output.end(attempt.take)
        try:
            answer = answer_of(attempt.grant, message, attempt.usage, attempt.hooks)
        except TaskError:  # the answer is an error, which the message holds now
            _failed(attempt, message)
            return
        if attempt.writer.fits(len(answer.end.fragment)):
            attempt.complete(answer)
        else:
            attempt.too_large(answer.end.used)


def unreadable_result(attempt: Attempt) -> None:
    """The worker is done, and its result cannot be read."""
    attempt.answered = True
    if attempt.phase == "stopping":
        attempt.release()
    else:
        attempt.fail("PROTOCOL_ERROR", "The worker's result is not valid JSON", retryable=False)


def _failed(attempt: Attempt, message: TaskResult) -> None:
    """The worker reports a failure."""
    failure, said = failure_of(message), raw(message.usage)
    if failure.rest_ms:
        attempt.effects.hold(attempt.worker, failure.rest_ms)
    usage = attempt.client_usage(said)
    if usage is not None and not attempt.writer.fits(len(usage)):
        usage = None
    used = NO_USAGE
    if (
        usage is not None or attempt.usage.progress is not None or attempt.output.in_log
    ):  # else nothing was answered
        used = attempt.usage.of(said, bytes(message.result))
    attempt.fail(
        failure.code,
        failure.text,
        retryable=failure.retryable,
        usage=usage,
        used=used,
        hold_ms=failure.hold_ms,
    )


def reject(attempt: Attempt, message: TaskReject) -> str | None:
    """The worker will not run the task.

    A worker that has acknowledged the task before does not get it again, and the attempt counts as a failed one.
    """
    worker, text = attempt.worker, (message.message or "")[:MAX_ERROR_CHARS]
    if attempt.phase == "running":
        worker.refused.put(attempt.grant.task_id, Mismatch.REJECTED)
        retryable = message.reason != "badPayload" and not attempt.writer.has_output
        text = text or "The worker rejected the task after it had acknowledged it"
        attempt.fail("WORKER_ERROR", text, retryable=retryable)
        return REJECTED_LATE
    if attempt.phase != "sent":
        return None
    worker.missed_acks = 0
    attempt.rejected = True
    if message.reason == "badPayload":
        attempt.fail("BAD_REQUEST", text or "The worker rejected the payload", retryable=False)
    elif message.reason == "unsupported":
        attempt.effects.move(attempt, Mismatch.REJECTED)
    elif message.reason == "draining":
        attempt.effects.drain(worker)
        attempt.decline(message.reason)
    else:
        attempt.effects.hold(worker, max(message.retry_after_ms or 1000, MIN_REST_MS))
        attempt.decline(message.reason)
    return None
