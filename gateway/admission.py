"""Submits a task and turns a refusal into an answer."""

from fairlane.gateway.errors import ApiError, store_unavailable
from fairlane.queues.errors import StoreError
from fairlane.queues.tasks import Refused, Submitted, TaskSpec
from fairlane.workers.server.dispatch import Dispatcher

NO_WORKER_RETRY_MS = 5000


async def submit(dispatcher: Dispatcher, task: TaskSpec, known_model: bool) -> Submitted:
    """Queue a task, or raise ApiError: nothing of it is left then.

    `known_model`: the configuration names the model, so that a missing worker is a matter of time.
    """
    measures = dispatcher.scheduler.measures
    try:
        answer = await dispatcher.submit(task)
    except StoreError:
        measures.refused(task.queue, task.model, "store_unavailable")
        raise store_unavailable() from None
    if isinstance(answer, Refused):
        measures.refused(task.queue, task.model, answer.reason)
        raise refusal(answer, task, known_model)
    measures.accepted(task.queue, task.model)
    return answer


def refusal(refused: Refused, task: TaskSpec, known_model: bool) -> ApiError:
    """Why a task was not accepted, as its caller is told."""
    if refused.reason == "full" or refused.reason == "full_bytes":
        wait_ms = max(1000, refused.retry_ms)
        return ApiError(503, "QUEUE_FULL", "Queue is full", retry_after_ms=min(wait_ms, 60_000))
    if refused.reason == "cancelled":
        return ApiError(499, "CANCELLED", "The task was cancelled before it was accepted")
    code = "MODEL_NOT_FOUND" if refused.others_offered and not known_model else "NO_WORKER"
    return ApiError(503, code, "No worker available", retry_after_ms=NO_WORKER_RETRY_MS, param=task.model)
