"""Submits a task and turns a refusal into an answer."""

from typing import TYPE_CHECKING

from fairlane.gateway.errors import SECOND_MS, ApiError, NoWorker
from fairlane.queues.errors import StoreError
from fairlane.queues.tasks import Refused, Submitted, TaskSpec
from fairlane.streaming.failures import CANCELLED, told
from fairlane.streaming.hub import Feed

if TYPE_CHECKING:
    from fairlane.gateway.runtime import Gateway


LARGE = 64 * 1024
"""Redis does nothing else while it reads a body. From so many bytes on it gets one at a time, and between them has as long for
others.
"""


async def submit(gateway: "Gateway", task: TaskSpec, feed: Feed | None = None) -> Submitted:
    """Queue a task, or raise ApiError: nothing of it is left then. `feed` waits for its events: until now there is no log."""
    measures = gateway.measures
    size = len(task.payload)
    if gateway.draining:  # since its head was read
        raise gateway.going()
    if feed is not None:
        feed.begun = False
    try:
        if size < LARGE:
            answer = await gateway.dispatcher.submit(task)
        else:
            async with gateway.bodies.turn(size, (task.key, task.user)) as spent:
                with spent(0.5):
                    answer = await gateway.dispatcher.submit(task)
    except StoreError:
        measures.refused(task.queue, task.model, "store_unavailable")
        raise gateway.store_unavailable() from None
    finally:
        if feed is not None:
            feed.begin()
    if isinstance(answer, Refused):
        measures.refused(task.queue, task.model, answer.reason)
        gateway.minutes.refused(task.user)
        raise refusal(answer, task, known_model=task.model in gateway.settings.models)
    measures.accepted(task.queue, answer.model)
    return answer


def refusal(refused: Refused, task: TaskSpec, known_model: bool) -> ApiError:
    """Why a task was not accepted, as its caller is told, and when to come again, as the scheduler reckons.

    `known_model`: the configuration names the model, so that a missing worker is a matter of time.
    """
    retry_ms = max(refused.retry_ms, SECOND_MS)
    match refused.reason:
        case "full" | "full_bytes":
            return ApiError(503, "QUEUE_FULL", "Queue is full", retry_after_ms=retry_ms)
        case "user_full":
            message = (
                f"You have {refused.waiting} tasks waiting for {task.model}, and {refused.limit} may wait"
            )
            return ApiError(429, "USER_QUEUE_FULL", message, retry_after_ms=retry_ms)
        case "too_long":
            message = (
                f"The predicted wait of {_seconds(refused.waiting)} "
                f"is longer than the {_seconds(refused.limit)} allowed"
            )
            return ApiError(503, "WAIT_TOO_LONG", message, retry_after_ms=retry_ms)
        case "cancelled":
            text = "The task was cancelled before it was accepted"
            return ApiError(told(CANCELLED).native, CANCELLED, text)
        case _:  # no_worker
            return NoWorker(task.model, retry_ms, unknown=refused.others_offered and not known_model)


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.1f} s" if ms < 10_000 else f"{ms / 1000:.0f} s"
