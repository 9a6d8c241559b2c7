"""Submits tasks, and turns rejections into errors."""

import time
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import NamedTuple

from fairlane.gateway.attached import Attached
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.core.poll import record_info
from fairlane.gateway.core.spec import bad_schema
from fairlane.gateway.errors import (
    SECOND_MS,
    ApiError,
    InsufficientQuota,
    NoWorker,
    RateLimited,
    duration,
    key_reused,
    result_gone,
)
from fairlane.gateway.lifecycle import Lifecycle
from fairlane.queues.errors import StoreError
from fairlane.queues.failures import CANCELLED, failure_row
from fairlane.queues.limits import RATES
from fairlane.queues.metrics import TASKS_RESUBMITTED, EndedTask, Recorder, TaskEnd
from fairlane.queues.tasks import TERMINAL, ExistingTask, Rejection, State, Submitted, TaskSpec
from fairlane.streaming.hub import Hub, LiveLog
from fairlane.streaming.structured.checker import Checker
from fairlane.streaming.structured.requirements import check_form, schema_of
from fairlane.streaming.views.task import TaskInfo
from fairlane.workers.server.slots import Slots

LOST = "The store lost this task"
MAX_SUBMISSIONS = 4
"""Attempts to submit one task: its balance is loaded, again in a new window, and it is downgraded."""
OUTBOX_MS = 10_000
"""Retry-After while records cannot be written."""


Accepted = Callable[[Submitted | ExistingTask], Awaitable[None]]
"""Called once a task is accepted, or found by its idempotency key."""


class Submit:
    """Queues tasks."""

    def __init__(
        self,
        dispatcher: Slots,
        metrics: Recorder,
        current: ActiveConfig,
        lifecycle: Lifecycle,
        schemas: Checker,
        attached: Sequence[Attached],
    ) -> None:
        """`schemas`: looks at those that answers are to match."""
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._current = current
        self._lifecycle = lifecycle
        self._schemas = schemas
        self._attached = attached

    async def __call__(
        self, task: TaskSpec, feed: LiveLog | None = None, accepted: Accepted | None = None
    ) -> Submitted | ExistingTask:
        """Queue a task, unless its idempotency key names one. Raise ApiError or StoreError: then nothing of it is left (except,
        after a StoreError, possibly a task with an idempotency key).

        `feed`: waits for its events; the log begins now. `accepted`: called before this returns; may raise, too.
        """
        if self._lifecycle.draining:  # since its head was read
            raise self._lifecycle.rejection()
        if "schema" in task.extras and task.payload:
            await self._check_schema(task)
        if feed is not None:
            feed.begun = False
        try:
            for _ in range(MAX_SUBMISSIONS):
                body = task.payload, task.blobs
                answer = await self._dispatcher.submit(task, feed is not None)
                if not isinstance(answer, Rejection) or not await self._overcomes(answer, task):
                    break
                if not task.payload and not task.blobs:  # it is the same plan's
                    task.payload, task.blobs = body
        except StoreError:
            self._note(task, "STORE_UNAVAILABLE")
            raise
        finally:
            task.downgrade = None
            if feed is not None:
                feed.begin()
        if isinstance(answer, Rejection):
            raise self._rejected(answer, task)
        if isinstance(answer, ExistingTask):
            outcome = "joined" if answer.state not in TERMINAL else "replayed"
            self._metrics.count(TASKS_RESUBMITTED, outcome if answer.state else "gone")
        else:
            self._metrics.accepted(task.queue, answer.line)
            if "fallbacks" in task.extras and answer.model != task.model:
                self._metrics.fell_back(task.model, answer.model, "unavailable")
        if accepted is not None:
            await accepted(answer)
        return answer

    def _rejected(self, answer: Rejection, task: TaskSpec) -> ApiError:
        """Return the error of a rejected task, and count it."""
        if answer.reason == "other":
            self._metrics.count(TASKS_RESUBMITTED, "conflict")
            error = key_reused()
        else:
            known = bool(task.asked) or self._current.settings.lists(
                task.model
            )  # a route's model is configured
            error = rejection_error(answer, task, known_model=known)
            self._note(task, error.code)
            asked = {"requestedModel": task.asked} if task.asked not in ("", task.model) else {}
            error.facts = {"queue": task.queue, "model": task.model, **asked, **error.facts}
        error.rate_limits = answer.rate_limits
        return error

    def _note(self, task: TaskSpec, code: str) -> None:
        """Count a task that was rejected, except one that the gateway itself submits repeatedly."""
        if not task.again:
            self._metrics.rejected(task.queue, task.model, code)

    async def _check_schema(self, task: TaskSpec) -> None:
        """Raise ApiError for a schema that no answer can be compared with."""
        schema = schema_of(task.extras["schema"], task.payload)
        try:
            check_form(schema)
        except ValueError as error:
            raise bad_schema(str(error)) from None
        verdict = await self._schemas.schema(schema, task.user)
        if verdict.wrong == "schema":
            raise bad_schema(verdict.sentence)

    async def _overcomes(self, answer: Rejection, task: TaskSpec) -> bool:
        """Return whether a feature has removed the reason of a rejection."""
        for feature in self._attached:
            if feature.rejected is not None and await feature.rejected(answer, task):
                return True
        return False

    def lost(self, task: TaskInfo, lane: tuple[str, str], request_id: str, enqueued_ms: int) -> None:
        """Count and log the end of a task that the store has lost while a client waited: no other component knows of it.

        `lane`: its queue, and the model as which it is scheduled.
        """
        queue, model = lane
        ended = EndedTask(task.task_id, request_id, task.user, task.model, "", 0, LOST)
        total_ms = max(time.time() * 1000 - enqueued_ms, 0)
        self._metrics.ended(
            TaskEnd(
                queue, model, task.task_type, State.FAILED, "STORE_LOST", total_ms, task=ended, user=task.user
            )
        )


class JoinPoint(NamedTuple):
    """The progress of a task when a client joined it; ms, 0 = not yet."""

    epoch: int
    top: int
    """With `epoch`, the place of the newest event."""
    granted_ms: int
    ended_ms: int


class SubmittedTask:
    """`async with`: submit a task, or join the one that its idempotency key names, and read its events here until the block ends.
    It keeps the feed and what views know of the task, nothing
    else: there are many quiet streams.
    """

    __slots__ = ("_accepted", "_hub", "_submit", "_task", "feed", "info", "joined_at")
    info: TaskInfo
    """Once it is entered."""

    def __init__(self, submit: Submit, hub: Hub, task: TaskSpec, accepted: Accepted | None = None) -> None:
        """`accepted`: as `Submit` has it."""
        self._submit = submit
        self._hub = hub
        self._accepted = accepted
        self._task: TaskSpec | None = task
        self.feed = hub.open(task.id, task.user)
        self.joined_at: JoinPoint | None = None
        """Its progress, if it had been submitted before."""

    async def __aenter__(self) -> Submitted:
        """Once. Raises as `Submit` does."""
        task, self._task = self._task, None
        accepted, self._accepted = self._accepted, None
        assert task is not None
        self.feed.keep_alive += 1
        try:
            answer = await self._submit(task, self.feed, accepted)
            if isinstance(answer, Submitted):
                self.info = task_info(task, answer.enqueued_ms)
                return answer
        except BaseException:
            self._release()
            raise
        self._release()
        return await self._join(answer, task.key, task.user)

    async def _join(self, known: ExistingTask, key: str, user: str) -> Submitted:
        """Read a task that was submitted before from its first event, and keep it alive as its submitter does."""
        feed = self._hub.open(known.task_id)
        try:
            found = await self._hub.follow(feed, keep_alive=True, owner=(key, user)) if known.state else None
            if found is None:
                raise result_gone(known.task_id)
        except BaseException:
            self._hub.release(feed)
            raise
        record, self.feed = found
        self.feed.keep_alive += 1
        times = record.number("granted_at"), record.number("ended_at")
        self.joined_at = JoinPoint(record.epoch, record.number("top"), *times)
        self.info = record_info(known.task_id, record)
        enqueued_ms = record.number("enqueued_at")
        return Submitted(
            record.state, record.place, enqueued_ms, [], (), known.line, known.model, known.rate_limits
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def _release(self) -> None:
        self.feed.keep_alive -= 1
        self._hub.release(self.feed)


def task_info(task: TaskSpec, enqueued_ms: int) -> TaskInfo:
    """Return what views know of a task that is submitted here; `record_info` returns the same elsewhere."""
    return TaskInfo(
        task.id,
        task.model,
        enqueued_ms // 1000,
        task.task_type,
        task.metadata.encode() or None,
        task.user,
        task.asked != "",
    )


def rejection_error(rejection: Rejection, task: TaskSpec, known_model: bool) -> ApiError:
    """Return the error of a rejection, with the scheduler's Retry-After. `known_model`: the model is configured, so a missing
    worker is a matter of time."""
    retry_ms = max(rejection.retry_ms, SECOND_MS)
    match rejection.reason:
        case "outbox_full":
            retry_ms = OUTBOX_MS
        case "no_balance":
            retry_ms = SECOND_MS
        case "rate_limited":
            return rate_limited(rejection)
        case "quota":
            assert rejection.short is not None
            return InsufficientQuota(rejection.short.needed, rejection.short.available)
        case "used_up":
            text = f"This token has no uses left (limit {rejection.limit})."
            return ApiError(403, "TOKEN_USED_UP", text)
        case "cancelled":
            text = "The task was cancelled before it was accepted"
            return ApiError(failure_row(CANCELLED).native, CANCELLED, text)
        case "no_worker":
            return NoWorker(task.model, retry_ms, unknown=rejection.others_offered and not known_model)
    status, code, text = _RETRIED[rejection.reason]
    waits, limit = _seconds(rejection.waiting), _seconds(rejection.limit)
    message = text.format(rejection=rejection, model=task.model, waits=waits, limit=limit)
    return ApiError(status, code, message, retry_after_ms=retry_ms)


_RETRIED = {
    "full": (503, "QUEUE_FULL", "Queue is full"),
    "full_bytes": (503, "QUEUE_FULL", "Queue is full"),
    "user_full": (
        *(429, "USER_QUEUE_FULL"),
        "{rejection.waiting} of your tasks already wait for {model} (limit {rejection.limit}). Retry later.",
    ),
    "too_long": (*(503, "WAIT_TOO_LONG"), "The predicted wait of {waits} is longer than the {limit} allowed"),
    "unavailable": (
        *(503, "MODEL_UNAVAILABLE"),
        "{model} is unavailable: its upstream fails, or an operator blocked it. Retry later.",
    ),
    "outbox_full": (503, "OUTBOX_FULL", "Too many records wait for the database. Retry later."),
    "no_balance": (
        *(503, "DATABASE_UNAVAILABLE"),
        "The balance of this key is unknown: the database does not answer. Retry later.",
    ),
    "idempotency_keys": (
        *(429, "TOO_MANY_IDEMPOTENCY_KEYS"),
        "Too many idempotency keys. Retry later, or send the request without one.",
    ),
}
"""Rejections that a client may retry: status, code and message."""


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.1f} s" if ms < 10_000 else f"{ms / 1000:.0f} s"


_OF = {
    "requests_per_minute": "requests per min (RPM)",
    "requests_per_day": "requests per day (RPD)",
    "tokens_per_minute": "tokens per min (TPM)",
    "tokens_per_day": "tokens per day (TPD)",
}
"""OpenAI's names of the limits."""


def rate_limited(rejection: Rejection) -> RateLimited:
    """Return the error of a task that a limit rejected, in OpenAI's words. The limit is over all models, so it names none."""
    reached = rejection.reached
    assert reached is not None
    whose = "this user" if reached.of_user else "this key"
    counts = "tokens" if reached.setting.startswith("tokens") else "requests"
    facts = {"limit": f"{'user_limits' if reached.of_user else 'limits'}.{reached.setting}"}
    again = f"Please try again in {duration(rejection.retry_ms)}."
    if reached.setting not in RATES:
        message = f"Rate limit reached for {whose} on waiting tasks: Limit {reached.limit}, Waiting {reached.used}. {again}"
    else:
        message = (
            f"Rate limit reached for {whose} on {_OF[reached.setting]}: Limit {reached.limit}, Used {reached.used}, "
            f"Requested {reached.asked}. {again}"
        )
    return RateLimited(message, counts, rejection.retry_ms, facts)
