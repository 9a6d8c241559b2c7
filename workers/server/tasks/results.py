"""What a worker's result says: the answer and its usage as clients get them, or the failure."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import UNSET, Raw, UnsetType

from fairlane.queues.clock import now_ms
from fairlane.queues.tasks import Grant, State
from fairlane.streaming.events import fragment_done
from fairlane.streaming.jsontext import too_deep
from fairlane.streaming.views.choice import finish_of_result
from fairlane.streaming.views.usage import estimated_usage, normalise_usage, pick_usage, put_usage
from fairlane.workers.adapters.dialects.chat import Head
from fairlane.workers.protocol import MAX_PAUSE_MS, ErrorInfo, TaskResult, worker_code
from fairlane.workers.sdk import TaskError
from fairlane.workers.server.tasks.effects import Finish
from fairlane.workers.server.tasks.hook import Answer, AttemptHook
from fairlane.workers.server.tasks.output import TOO_DEEP
from fairlane.workers.server.tasks.usage import Usage
from fairlane.workers.server.tasks.whole_answers import normal_answer

MAX_ERROR_CHARS = 2000
MAX_REASON_CHARS = 200
"""Of the finish reason of an answer, which each choice without one of its own has, too; a longer one is left out."""
MAX_USAGE_BYTES = 16 * 1024
MIN_HOLD_MS = 100
"""A model whose provider rejects gets no task for at least this long."""


def raw(value: Raw | UnsetType) -> bytes | None:
    return None if value is UNSET else bytes(value)


def reduced(message: TaskResult) -> str | None:
    """Remove the parts of a result that are too large to parse. Return a message about them, or None."""
    sentence = None
    if message.usage is not UNSET and len(bytes(message.usage)) > MAX_USAGE_BYTES:
        message.usage = UNSET
        sentence = f"The usage is larger than {MAX_USAGE_BYTES} bytes"
    if too_deep(bytes(message.result)):
        message.result = Raw(b"null")
        sentence = f"The result {TOO_DEEP}"
    return sentence


def answer_of(grant: Grant, message: TaskResult, usage: Usage, hooks: Sequence[AttemptHook[Any]]) -> Answer:
    """Return the answer in a result. Raise TaskError if it is an error, which the message holds then."""
    result, reported = bytes(message.result), raw(message.usage)
    if grant.task_type == "openaiLike":
        try:
            result = normal_answer(result, Head(grant.task_id, grant.asked, now_ms() // 1000))
        except TaskError as error:
            more = (error.retryable, error.message, error.http_status, error.retry_after_ms)
            message.error_info = ErrorInfo(error.code, *more)
            raise
    shown, used = reported, usage.of(reported, result)
    if used.estimated:
        shown = estimated_usage(used[:2], pick_usage(reported, result, usage.progress))
        # all readings show the corrected usage
        if None not in normalise_usage(reported, result)[:2]:
            result = put_usage(result, b"null")
    for hook in hooks:
        shown, result = hook.result(shown, result, usage.progress)
    reason = usage.output.finish_reason or finish_of_result(result)
    if reason is not None and len(reason) > MAX_REASON_CHARS:
        reason = None
    repeated = None if result == b"null" and usage.output.in_log else result
    end = Finish(State.COMPLETED, "", fragment_done(repeated, shown, reason), used)
    return Answer(end, result, shown, reason)


class Failure(NamedTuple):
    """A failure that a worker reports. `hold_ms`: its model's provider takes nothing for this long. `rest_ms`: the worker."""

    code: str
    text: str
    retryable: bool
    hold_ms: int
    rest_ms: int


def failure_of(message: TaskResult) -> Failure:
    """Return the failure in a result."""
    info = message.error_info or ErrorInfo("")
    code = worker_code(info.code)
    text = (message.error or info.message or code)[:MAX_ERROR_CHARS]
    hold_ms = provider_hold_ms(info)
    return Failure(code, text, info.retryable, hold_ms, 0 if hold_ms else info.retry_after_ms or 0)


def provider_hold_ms(info: ErrorInfo) -> int:
    """Return how long (ms) a failure says that the model's provider takes no request; 0 if it does not say so.

    It does with MODEL_TOO_BUSY, `retryAfterMs` and the status 429 or none. Another status (503, 529) means an overloaded server:
    other workers may have a better one.
    """
    refused = info.code == "MODEL_TOO_BUSY" and info.retryable and info.http_status in (None, 429)
    if not refused or info.retry_after_ms is None:
        return 0
    return min(max(info.retry_after_ms, MIN_HOLD_MS), MAX_PAUSE_MS)
