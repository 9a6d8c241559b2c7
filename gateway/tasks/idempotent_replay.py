"""What somebody is told who submits with an idempotency key that is known: of a task that he has submitted before."""

from collections.abc import Awaitable
from typing import Any, Final, TypeVar

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.errors import ApiError
from fairlane.gateway.tasks.poll import Poll, place_fields, poll_after
from fairlane.queues.tasks import TERMINAL, ExistingTask, State
from fairlane.streaming.hub import Lost

Read = TypeVar("Read")

HEADERS: Final = [(b"idempotency-replayed", b"true")]


def key_reused() -> ApiError:
    return ApiError(
        422,
        "IDEMPOTENCY_KEY_REUSED",
        "This Idempotency-Key was used for another request: a new request needs a new key, a repetition the same body",
        param="Idempotency-Key",
    )


def result_gone(task_id: str) -> ApiError:
    """It is not 409, which official clients repeat: it would be the same again until the key is over."""
    return ApiError(
        410,
        "IDEMPOTENCY_RESULT_GONE",
        "The request with this Idempotency-Key was carried out, but its result is not kept any more: a new key does it anew",
        task_id=task_id,
    )


async def kept(task_id: str, reading: Awaitable[Read]) -> Read:
    """What is read of the log of a task that has ended. Raises ApiError(410) where it is not kept any more."""
    try:
        return await reading
    except Lost:
        raise result_gone(task_id) from None


async def state_of(known: ExistingTask, poll: Poll, caller: Caller) -> dict[str, Any]:
    """How an async task stands, as the answer to whoever submits it again says it. One that only the archive knows is looked up
    there. Raises ApiError(410) where nobody knows it, and DatabaseUnavailable."""
    state = known.state
    if state is None:
        try:
            state = State((await poll.archived(known.task_id, caller)).state)
        except ApiError as error:
            if error.status != 404:
                raise
            raise result_gone(known.task_id) from None
    told: dict[str, Any] = {"taskId": known.task_id, "status": state.value}
    if state is State.QUEUED:
        told |= place_fields(known.place)
    if state not in TERMINAL:
        told["pollAfterMs"] = poll_after(known.place.wait_ms)
    return told
