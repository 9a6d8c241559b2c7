"""The process's metrics, which also go into the bucket of the moment."""

from collections.abc import Iterable

from fairlane.queues.metrics import Recorder, TaskEnd
from fairlane.queues.tasks import State
from fairlane.web.history.buckets import MAX_USERS, Bucket, count


class HistoryRecorder(Recorder):
    """Counts for the metrics and for the history: a few additions per event."""

    def __init__(self, models: Iterable[str] = ()) -> None:
        super().__init__(models)
        self._bucket = Bucket()

    def take(self) -> Bucket:
        """Return what was counted since the last call."""
        bucket, self._bucket = self._bucket, Bucket()
        return bucket

    def accepted(self, queue: str, model: str) -> None:
        super().accepted(queue, model)
        self._bucket.accepted += 1
        self._bucket.of(model).accepted += 1

    def rejected(self, queue: str, model: str, code: str) -> None:
        super().rejected(queue, model, code)
        count(self._bucket.rejections, code)

    def granted(self, queue: str, model: str, waited_ms: float) -> None:
        super().granted(queue, model, waited_ms)
        self._bucket.wait.add(waited_ms)

    def began_output(self, model: str, task_type: str, since_ms: float) -> None:
        super().began_output(model, task_type, since_ms)
        self._bucket.first.add(since_ms)

    def ended(self, end: TaskEnd) -> None:
        super().ended(end)
        bucket, counts = self._bucket, self._bucket.of(end.model)
        read, wrote = max(end.used.input, 0), max(end.used.output, 0)
        if end.user and read + wrote:
            count(bucket.users, end.user, read + wrote, most=MAX_USERS)
        counts.ended += 1
        counts.output_tokens += wrote
        if end.state is State.COMPLETED:
            bucket.completed += 1
            bucket.total.add(end.total_ms)
        elif end.state is State.CANCELLED:
            bucket.cancelled += 1
            counts.cancelled += 1
            self.cancelled(end)
        elif end.state is State.FAILED:
            self.failed(end)

    def cancelled(self, end: TaskEnd) -> None:
        """A task was cancelled."""

    def failed(self, end: TaskEnd) -> None:
        """A task has failed."""
        count(self._bucket.failures, end.code)
        self._bucket.total.add(end.total_ms)
