"""The process's metrics, which also go into the bucket of the moment."""

from collections.abc import Iterable

from fairlane.queues.metrics import OTHER, Recorder, TaskEnd
from fairlane.queues.tasks import State
from fairlane.web.history.buckets import MOST_USERS, Bucket, Counts, count, series_of


class HistoryRecorder(Recorder):
    """Counts for the metrics and for the history: a few additions per event."""

    def __init__(self, models: Iterable[str] = ()) -> None:
        super().__init__(models)
        self._bucket = Bucket()

    def take(self) -> Bucket:
        """What came together since this was called last."""
        bucket, self._bucket = self._bucket, Bucket()
        return bucket

    def accepted(self, queue: str, model: str) -> None:
        super().accepted(queue, model)
        bucket = self._bucket
        bucket.accepted += 1
        series_of(bucket.models, model).accepted += 1
        series_of(bucket.queues, queue).accepted += 1

    def refused(self, queue: str, model: str, reason: str) -> None:
        super().refused(queue, model, reason)
        bucket = self._bucket
        count(bucket.refusals, reason)
        known = model in bucket.models or self._model.peek(model) == model  # callers make names up
        series_of(bucket.models, model if known else OTHER).refused += 1
        series_of(bucket.queues, queue).refused += 1

    def granted(self, queue: str, model: str, waited_ms: float) -> None:
        super().granted(queue, model, waited_ms)
        self._bucket.wait.add(waited_ms)

    def began_output(self, model: str, task_type: str, since_ms: float) -> None:
        super().began_output(model, task_type, since_ms)
        self._bucket.first.add(since_ms)

    def ended(self, end: TaskEnd) -> None:
        super().ended(end)
        bucket = self._bucket
        read, wrote = max(end.used.input, 0), max(end.used.output, 0)
        completed = end.state is State.COMPLETED
        if end.user and read + wrote:
            count(bucket.users, end.user, read + wrote, most=MOST_USERS)
        named = [series_of(bucket.models, end.model), series_of(bucket.queues, end.queue)]
        if end.worker:
            named.append(series_of(bucket.workers, end.worker))
        every: list[Counts] = [bucket, *named]
        for counts in every:
            counts.input_tokens += read
            counts.output_tokens += wrote
            if completed:
                counts.completed += 1
            elif end.state is State.CANCELLED:
                counts.cancelled += 1
        if completed:
            bucket.total.add(end.total_ms)
        elif end.state is State.FAILED:
            for series in named:
                series.failed += 1
            self.failed(end)

    def failed(self, end: TaskEnd) -> None:
        """A task has failed."""
        count(self._bucket.failures, end.code)
        self._bucket.total.add(end.total_ms)
