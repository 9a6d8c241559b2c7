"""Submits a task and turns a refusal into an answer."""

import time
from collections.abc import Awaitable, Callable
from types import TracebackType

from fairlane.gateway.bodies import Bodies
from fairlane.gateway.current import Current
from fairlane.gateway.errors import SECOND_MS, ApiError, NoWorker
from fairlane.gateway.going import Going
from fairlane.queues.errors import StoreError
from fairlane.queues.metrics import Recorder
from fairlane.queues.tasks import Refused, Submitted, TaskSpec
from fairlane.streaming.failures import CANCELLED, failure_row
from fairlane.streaming.hub import Feed, Hub
from fairlane.streaming.views.task import TaskInfo

LARGE = 64 * 1024
"""Redis does nothing else while it reads a body. From so many bytes on it gets one at a time, and between them has as long for
others.
"""


class Submit:
    """Queues tasks."""

    def __init__(
        self,
        queue: Callable[[TaskSpec], Awaitable[Submitted | Refused]],
        hub: Hub,
        bodies: Bodies,
        metrics: Recorder,
        current: Current,
        going: Going,
        note_refused: Callable[[str], None],
    ) -> None:
        """`queue`: `Slots.submit`. `note_refused`: is told each user who is refused."""
        self._queue = queue
        self._hub = hub
        self._bodies = bodies
        self._metrics = metrics
        self._current = current
        self._going = going
        self._note_refused = note_refused

    async def __call__(self, task: TaskSpec, feed: Feed | None = None) -> Submitted:
        """Queue a task, or raise ApiError or StoreError: nothing of it is left then. `feed` waits for its events; there is no log
        until now."""
        size = len(task.payload)
        if self._going.begun:  # since its head was read
            raise self._going.refusal()
        if feed is not None:
            feed.begun = False
        try:
            if size < LARGE:
                answer = await self._queue(task)
            else:
                async with self._bodies.turn(size, (task.key, task.user)) as spent:
                    with spent(0.5):
                        answer = await self._queue(task)
        except StoreError:
            self._metrics.refused(task.queue, task.model, "store_unavailable")
            raise
        finally:
            if feed is not None:
                feed.begin()
        if isinstance(answer, Refused):
            self._metrics.refused(task.queue, task.model, answer.reason)
            self._note_refused(task.user)
            error = refusal(answer, task, known_model=task.model in self._current.settings.models)
            error.facts = {"queue": task.queue, "model": task.model}
            raise error
        self._metrics.accepted(task.queue, answer.model)
        return answer

    def followed(self, task: TaskSpec) -> "Followed":
        """`async with`: the task is submitted and its events are read here, until the end of the block."""
        return Followed(self, self._hub, task)


class Followed:
    """A task that is submitted with a feed for its events. It keeps the feed and nothing else, nor a generator's frame: there are
    many quiet streams.
    """

    __slots__ = ("_hub", "_submit", "_task", "feed")

    def __init__(self, submit: Submit, hub: Hub, task: TaskSpec) -> None:
        self._submit = submit
        self._hub = hub
        self._task: TaskSpec | None = task
        self.feed = hub.open(task.id)

    async def __aenter__(self) -> Submitted:
        """Once. Raises as `Submit` does."""
        task, self._task = self._task, None
        assert task is not None
        self.feed.keep_alive += 1
        try:
            return await self._submit(task, self.feed)
        except BaseException:
            self._release()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def _release(self) -> None:
        self.feed.keep_alive -= 1
        self._hub.release(self.feed)


def task_info(task: TaskSpec) -> TaskInfo:
    """What views know of a task that is submitted here."""
    return TaskInfo(task.id, task.model, int(time.time()), task.task_type, task.metadata or None, task.user)


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
            return ApiError(failure_row(CANCELLED).native, CANCELLED, text)
        case _:  # no_worker
            return NoWorker(task.model, retry_ms, unknown=refused.others_offered and not known_model)


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.1f} s" if ms < 10_000 else f"{ms / 1000:.0f} s"
