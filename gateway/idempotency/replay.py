"""Answers to a submission with a known idempotency key: they describe the task that was submitted before."""

from collections.abc import Awaitable
from typing import Any, Final, TypeVar

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.core.poll import Poll, place_fields, poll_after
from fairlane.gateway.errors import ApiError
from fairlane.queues.tasks import TERMINAL, ExistingTask, State
from fairlane.streaming.hub import Lost

Read = TypeVar("Read")

HEADERS: Final = [(b"idempotency-replayed", b"true")]


def key_reused() -> ApiError:
    return ApiError(
        422,
        "IDEMPOTENCY_KEY_REUSED",
        "This Idempotency-Key was used for another request. Use a new key, or repeat the same body",
        param="Idempotency-Key",
    )


def result_gone(task_id: str) -> ApiError:
    """Return the error; not 409, which official clients repeat: the answer would be the same until the key expires."""
    return ApiError(
        410,
        "IDEMPOTENCY_RESULT_GONE",
        "The request with this Idempotency-Key has run, but its result has expired. Use a new key to run it again",
        task_id=task_id,
    )


async def read_log(task_id: str, reading: Awaitable[Read]) -> Read:
    """Return what is read of the log of an ended task. Raise ApiError(410) if the log has expired."""
    try:
        return await reading
    except Lost:
        raise result_gone(task_id) from None


async def state_fields(known: ExistingTask, poll: Poll, caller: Caller) -> dict[str, Any]:
    """Return the state of an async task for a repeated submission, also from the archive. Raise ApiError(410) if it is gone, and
    DatabaseUnavailable."""
    state = known.state
    if state is None:
        try:
            state = State((await poll.archived(known.task_id, caller)).state)
        except ApiError as error:
            if error.status != 404:
                raise
            raise result_gone(known.task_id) from None
    shown: dict[str, Any] = {"taskId": known.task_id, "status": state.value}
    if state is State.QUEUED:
        shown |= place_fields(known.place)
    if state not in TERMINAL:
        shown["pollAfterMs"] = poll_after(known.place.wait_ms)
    return shown
