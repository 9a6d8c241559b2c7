"""Reads tasks for clients and operators that may see them."""

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.attached import Attached
from fairlane.gateway.errors import ApiError
from fairlane.queues.chains import chain_of
from fairlane.queues.clock import now_ms
from fairlane.queues.errors import StoreError
from fairlane.queues.failures import category_of
from fairlane.queues.ids import could_be_ours
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.tasks import TERMINAL, Place, Record, State
from fairlane.streaming.hub import Lost
from fairlane.streaming.results import Results
from fairlane.streaming.views.result import ResultView
from fairlane.streaming.views.task import TaskInfo

POLL_STEPS_MS = ((30_000, 20_000), (10_000, 10_000), (3_000, 5_000))
POLL_SOON_MS = 3000


def poll_after(wait_ms: int) -> int:
    """When to poll again: seldom while the turn is far, often when it is near."""
    for above, pause in POLL_STEPS_MS:
        if wait_ms > above:
            return pause
    return POLL_SOON_MS


def place_fields(place: Place) -> dict[str, Any]:
    """Return a place, as answers show it; for a task that was just granted, the first. While there is no estimate of the wait, it
    is null, and `estimating` is true."""
    return {"position": max(place.position, 1), **wait_fields(place)}


def wait_fields(place: Place) -> dict[str, Any]:
    """Return the wait of a place, as answers show it."""
    if place.estimating:
        unknown = dict.fromkeys(("estimatedWaitMs", "estimatedWaitLowMs", "estimatedWaitHighMs"))
        return {**unknown, "estimating": True}
    return {
        "estimatedWaitMs": place.wait_ms,
        "estimatedWaitLowMs": place.low_ms,
        "estimatedWaitHighMs": place.high_ms,
    }


def plan_fields(asked: str, model: str, template: str) -> dict[str, Any]:
    """Return the requested name and the model that runs, if these may differ, and the template: of a record's fields."""
    shown: dict[str, Any] = {"requestedModel": asked, "model": model} if asked else {}
    if template:
        shown["template"] = dict(zip(("name", "version", "locale"), template.split("\n"), strict=True))
    return shown


def not_found(task_id: str) -> ApiError:
    """Return the same error for another user's task, an expired one and one that never existed."""
    text = "Task not found or expired" if could_be_ours(task_id, now_ms()) else "Task not found"
    return ApiError(404, "TASK_NOT_FOUND", text)


def record_info(task_id: str, record: Record) -> TaskInfo:
    """Return what views know of a task that any replica submitted."""
    metadata = record.fields.get("metadata")
    return TaskInfo(
        task_id,
        record.model,
        record.number("enqueued_at") // 1000,
        record.fields.get("type", ""),
        metadata.encode() if metadata else None,
        record.fields["user"],
        "route" in record.fields,
    )


class Archived(NamedTuple):
    """A task that the archive knows."""

    key_id: str
    user: str
    state: str
    ended_ms: int
    answer: bytes
    """The answer of a poll, JSON."""
    request: bytes | None
    """None: it was not kept, or not asked for."""
    enqueued_ms: int = 0


FindArchived = Callable[[str, bool], Awaitable[Archived | None]]
"""Returns a task by its id, if wanted with its request. Raises DatabaseUnavailable."""


class Poll:
    """Reads tasks. Everything raises ApiError (404) for a task that is not there, StoreError, and where the archive is asked
    DatabaseUnavailable."""

    def __init__(self, scheduler: Scheduler, results: Results, attached: Sequence[Attached]) -> None:
        self._scheduler = scheduler
        self._results = results
        self.archive: FindArchived | None = None
        """Finds tasks that are no longer in Redis; set by the feature that has them."""
        self._attached = attached

    async def record(self, task_id: str) -> Record:
        """Return the record of any task, or of a part of one."""
        known = could_be_ours(chain_of(task_id), now_ms())
        record = await self._scheduler.position(task_id) if known else None
        if record is None:
            raise not_found(task_id)
        return record

    async def find(self, caller: Caller, task_id: str) -> Record:
        """Return the record of a task that the caller may see. (Only operators see parts.)"""
        if chain_of(task_id) != task_id:
            raise not_found(task_id)
        record = await self.record(task_id)
        if not caller.may_see(record.fields.get("key_id", ""), record.fields["user"]):
            raise not_found(task_id)
        return record

    async def archived(
        self, task_id: str, caller: Caller | None = None, *, with_request: bool = False
    ) -> Archived:
        """Return how a task ended that is no longer in Redis, if the caller may see it; None: any task."""
        archive = self.archive if could_be_ours(task_id, now_ms()) else None
        found = None if archive is None else await archive(task_id, with_request)
        if found is None or (caller is not None and not caller.may_see(found.key_id, found.user)):
            raise not_found(task_id)
        return found

    async def answer(self, task_id: str, record: Record, stream_url: str) -> list[bytes]:
        """Return the answer to a poll, in parts, as the result can be large."""
        shown, result = await self.describe(task_id, record, stream_url)
        parts = [msgspec.json.encode(shown)[:-1]]
        if result is not None:
            parts += [b',"result":', result]
        return [*parts, b"}"]

    async def was_read(self, caller: Caller, task_id: str, record: Record) -> None:
        """Let a result that its owner has read expire early, if the task says so."""
        fields = record.fields
        if (
            "keep_after_read" in fields
            and record.state in TERMINAL
            and caller.owns(fields.get("key_id", ""), fields["user"])
        ):
            with contextlib.suppress(StoreError):  # it goes at its time
                await self._scheduler.mark_read(task_id)

    async def describe(
        self, task_id: str, record: Record, stream_url: str
    ) -> tuple[dict[str, Any], bytes | None]:
        """Return a task as a poll shows it, and its result when it is completed."""
        state = record.state
        fields = record.fields
        answer: dict[str, Any] = {"taskId": task_id, "status": state.value}
        place, whole = record.place, False
        for feature in self._attached:
            if feature.polled is not None and (polling := feature.polled(task_id, record)) is not None:
                more = await polling
                answer |= more.members
                if more.place is not None:
                    place, whole = more.place, True
        answer |= plan_fields(fields.get("route", ""), record.model, fields.get("template", ""))
        result: bytes | None = None
        if state is State.QUEUED:
            answer |= {
                "enqueuedAt": record.number("enqueued_at"),
                **place_fields(place),
                "pollAfterMs": poll_after(place.wait_ms),
                "streamUrl": stream_url,
            }
        elif state is State.EXECUTING:
            answer |= {
                "workerId": record.fields.get("worker", ""),
                "startedAt": record.number("granted_at"),
                **(wait_fields(place) if whole else {}),
                "pollAfterMs": poll_after(place.wait_ms) if whole else POLL_SOON_MS,
                "streamUrl": stream_url,
            }
        else:
            ended = record.number("ended_at")
            try:
                end = await self._results.end(record_info(task_id, record))
                if state is State.COMPLETED:
                    result = await self._result(end)
            except Lost:
                raise not_found(task_id) from None  # it expired meanwhile
            if state is State.COMPLETED:
                answer["completedAt"] = ended
            elif state is State.FAILED:
                error = end.error
                answer |= {
                    "error": error.error if error else "",
                    "code": (code := record.fields.get("code", "")),
                    "category": category_of(code),
                    "failedAt": ended,
                }
                if error:
                    answer["retryable"] = error.retryable
                    if error.waited_for:
                        answer["waitedFor"] = error.waited_for
            else:
                answer["cancelledAt"] = ended
        if metadata := record.fields.get("metadata"):
            answer["metadata"] = msgspec.Raw(metadata.encode())
        return answer, result

    async def inspected(self, task_id: str, record: Record) -> dict[str, Any]:
        """Return what features show operators of a task."""
        shown: dict[str, Any] = {}
        for feature in self._attached:
            if feature.inspected is not None and (reading := feature.inspected(task_id, record)) is not None:
                shown |= await reading
        return shown

    async def _result(self, end: ResultView) -> bytes:
        """Return the result of a completed task, which may have to be made of its whole log."""
        return end.result if end.result is not None else await self._results.of(end.info)
