"""One line in the log for each task that failed, and few lines where thousands fail."""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable

import structlog

from fairlane.queues.metrics import TaskEnd
from fairlane.queues.sums import Allowance
from fairlane.web.dashboard_history import Bucket, HourRecorder

log = structlog.get_logger("fairlane.tasks")

SUMMED_S = 10.0
MAX_CHARS = 300
"""Of a sentence. It is the one that the caller reads."""
QUOTING = frozenset({"BAD_REQUEST", "CONTENT_FILTERED", "CONTEXT_LENGTH", "WORKER_ERROR"})
"""Failures that may quote the request: of what a worker or its upstream says, what stands before the first colon, quotation mark
or bracket is written, and no more than UNQUOTED_CHARS of it. (Node's JSON.parse quotes what it cannot read.)
"""
UNQUOTED_CHARS = 80
_QUOTE = re.compile(r""":\s|["`\u00ab\u2018\u201c(\[{<]|(?<!\w)'""")


class FailedTasks:
    """Writes a line for a failed task: at most 20 at once and two a second; the others are added up by code, in a line each ten
    seconds at most. `now` in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._allowance = Allowance(now)
        self._summed_at = now()
        self._untold: Counter[str] = Counter()

    def tell(self, end: TaskEnd) -> None:
        """Write what is known of a task that failed."""
        task = end.task
        if task is not None and self._allowance.take():
            log.info(
                "task failed",
                code=end.code,
                task_id=task.task_id,
                request_id=task.request_id,
                model=task.model,
                queue=end.queue,
                user=task.user,
                worker_id=task.worker,
                attempt=task.attempt,
                waited_and_ran_ms=round(end.total_ms),
                error=_sentence(end.code, task.sentence),
            )
        else:
            if not self._untold:
                self._summed_at = self._now()
            self._untold[end.code] += 1
        self.add_up()

    def add_up(self) -> None:
        """Write how many got no line of their own, if that is due. Call it now and then, too."""
        now = self._now()
        if self._untold and now - self._summed_at >= SUMMED_S:
            log.info("more tasks failed", codes=dict(self._untold), within_s=round(now - self._summed_at))
            self._untold.clear()


class TellingRecorder(HourRecorder):
    """The process's metrics, of which failed tasks are told in the log, too."""

    def __init__(self, models: Iterable[str] = ()) -> None:
        super().__init__(models)
        self._told = FailedTasks()

    def failed(self, end: TaskEnd) -> None:
        super().failed(end)
        self._told.tell(end)

    def take(self) -> Bucket:
        self._told.add_up()
        return super().take()


def _sentence(code: str, sentence: str) -> str:
    if code in QUOTING:
        return _QUOTE.split(sentence, maxsplit=1)[0][:UNQUOTED_CHARS].rstrip(" ,")
    return sentence[:MAX_CHARS]
