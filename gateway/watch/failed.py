"""One line in the log for each task that failed or was cancelled and each call that was refused, few where it is thousands."""

import time
from collections import Counter
from collections.abc import Callable, Iterable

import structlog

from fairlane.gateway.watch.fallbacks import Fallbacks
from fairlane.queues.failures import category_of
from fairlane.queues.logs.sentences import for_operators
from fairlane.queues.logs.sums import Allowance
from fairlane.queues.metrics import TaskEnd
from fairlane.queues.tasks import State
from fairlane.web.history.buckets import Bucket
from fairlane.web.history.recorder import HistoryRecorder

log = structlog.get_logger("fairlane.tasks")

SUMMED_S = 10.0


class Lines:
    """Lines of one kind: 20 at once and two a second; the others are added up by code, in a line each ten seconds at most.

    `event`: what a line says; `summed`: what the sum says. `now` in seconds.
    """

    def __init__(self, event: str, summed: str, now: Callable[[], float] = time.monotonic) -> None:
        self._event = event
        self._summed = summed
        self._now = now
        self._allowance = Allowance(now)
        self._summed_at = now()
        self._untold: Counter[str] = Counter()

    def tell(self, code: str, **facts: object) -> None:
        """Write a line. Without facts it is only counted."""
        if facts and self._allowance.take():
            log.info(self._event, code=code, **facts)
        else:
            if not self._untold:
                self._summed_at = self._now()
            self._untold[code] += 1
        self.add_up()

    def add_up(self) -> None:
        """Write how many got no line of their own, if that is due. Call it now and then, too."""
        now = self._now()
        if self._untold and now - self._summed_at >= SUMMED_S:
            log.info(self._summed, codes=dict(self._untold), within_s=round(now - self._summed_at))
            self._untold.clear()


class FailedTasks(Lines):
    """The lines of tasks that failed, or were cancelled."""

    def __init__(self, now: Callable[[], float] = time.monotonic, what: str = "failed") -> None:
        super().__init__(f"task {what}", f"more tasks {what}", now)

    def told(self, end: TaskEnd) -> None:
        """Write what is known of a task that ended so."""
        task = end.task
        if task is None:
            self.tell(end.code, category=category_of(end.code))
            return
        sentence = for_operators(end.code, task.sentence)
        self.tell(
            end.code,
            category=category_of(end.code),
            task_id=task.task_id,
            request_id=task.request_id,
            model=task.model,
            queue=end.queue,
            user=task.user,
            **({"stage": task.stage} if task.stage else {}),
            worker_id=task.worker,
            attempt=task.attempt,
            waited_and_ran_ms=round(end.total_ms),
            **({"error": sentence} if sentence or end.state is State.FAILED else {}),
        )


class TellingRecorder(HistoryRecorder):
    """The process's metrics, of which the log tells failed and cancelled tasks, refused calls, and fallbacks, too."""

    def __init__(self, models: Iterable[str] = ()) -> None:
        super().__init__(models)
        self._failed = FailedTasks()
        self._cancelled = FailedTasks(what="cancelled")
        self._refused = Lines("call refused", "more calls refused")
        self._unknown = Lines("call with an unknown key", "more calls with unknown keys")
        self._beyond = Lines("call beyond its token", "more calls beyond their tokens")
        self._fallbacks = Fallbacks()

    def failed(self, end: TaskEnd) -> None:
        super().failed(end)
        self._failed.told(end)

    def cancelled(self, end: TaskEnd) -> None:
        self._cancelled.told(end)

    def fell(self, model: str, other: str, cause: str, number: int = 1) -> None:
        super().fell(model, other, cause, number)
        self._fallbacks.fell(model, other, cause, number)

    def refused_call(self, code: str, **facts: object) -> None:
        """A call was refused that may come again later: for want of room, of a worker, or of Redis."""
        self._refused.tell(code, **facts)

    def unknown_key(self, code: str, **facts: object) -> None:
        """A call came with a key that is none, or none any more, or with a token or signature that is not valid."""
        self._unknown.tell(code, **facts)

    def beyond_token(self, code: str, **facts: object) -> None:
        """A call asked for something else than its token is for."""
        self._beyond.tell(code, **facts)

    def take(self) -> Bucket:
        for lines in (self._failed, self._cancelled, self._refused, self._unknown, self._beyond):
            lines.add_up()
        self._fallbacks.add_up()
        return super().take()
