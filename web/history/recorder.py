"""The process's metrics, which also go into the bucket of the moment."""

from collections.abc import Iterable
from typing import NamedTuple

from fairlane.queues.metrics import OTHER, TASKS_ACCEPTED, EndLabels, Recorder, TaskEnd
from fairlane.queues.tasks import State
from fairlane.web.history.buckets import MOST_USERS, Bucket, Counts, Series, count, series_of

MOST_CELLS = 1000
"""Of each kind; beyond, they are looked up anew."""


class _Lane(NamedTuple):
    """Where the tasks of a model in a queue are counted."""

    labels: tuple[str, ...]
    series: tuple[Series, Series]


class _Ends(NamedTuple):
    """Where tasks that end alike are counted."""

    labels: EndLabels
    series: list[Series]
    every: list[Counts]
    """The bucket, too."""


class HistoryRecorder(Recorder):
    """Counts for the metrics and for the history: a few additions per event."""

    def __init__(self, models: Iterable[str] = ()) -> None:
        super().__init__(models)
        self._bucket = Bucket()
        self._lanes: dict[tuple[str, str], _Lane] = {}
        """By queue and model: looked up once per bucket, as the next ones are."""
        self._ends: dict[tuple[str, ...], _Ends] = {}
        """By queue, model, type, worker, state and code."""

    def take(self) -> Bucket:
        """What came together since this was called last."""
        bucket, self._bucket = self._bucket, Bucket()
        self._lanes.clear()
        self._ends.clear()
        return bucket

    def accepted(self, queue: str, model: str) -> None:
        lane = self._lanes.get((queue, model)) or self._new_lane(queue, model)
        accepted = self.values[TASKS_ACCEPTED.name]
        accepted[lane.labels] = accepted.get(lane.labels, 0) + 1
        self._bucket.accepted += 1
        for series in lane.series:
            series.accepted += 1

    def _new_lane(self, queue: str, model: str) -> _Lane:
        if len(self._lanes) >= MOST_CELLS:
            self._lanes.clear()
        bucket = self._bucket
        series = series_of(bucket.models, model), series_of(bucket.queues, queue)
        lane = self._lanes[queue, model] = _Lane((queue, self._model(model)), series)
        return lane

    def rejected(self, queue: str, model: str, code: str) -> None:
        super().rejected(queue, model, code)
        bucket = self._bucket
        count(bucket.refusals, code)
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
        alike = end.queue, end.model, end.task_type, end.worker, end.state, end.code
        cell = self._ends.get(alike) or self._new_ends(alike, end)
        self.count_end(end, cell.labels)
        bucket = self._bucket
        read, wrote = max(end.used.input, 0), max(end.used.output, 0)
        completed = end.state is State.COMPLETED
        if end.user and read + wrote:
            count(bucket.users, end.user, read + wrote, most=MOST_USERS)
        for counts in cell.every:
            counts.input_tokens += read
            counts.output_tokens += wrote
            if completed:
                counts.completed += 1
            elif end.state is State.CANCELLED:
                counts.cancelled += 1
        if completed:
            bucket.total.add(end.total_ms)
        elif end.state is State.CANCELLED:
            self.cancelled(end)
        elif end.state is State.FAILED:
            for series in cell.series:
                series.failed += 1
            self.failed(end)

    def _new_ends(self, alike: tuple[str, ...], end: TaskEnd) -> _Ends:
        if len(self._ends) >= MOST_CELLS:
            self._ends.clear()
        bucket = self._bucket
        series = [series_of(bucket.models, end.model), series_of(bucket.queues, end.queue)]
        if end.worker:
            series.append(series_of(bucket.workers, end.worker))
        cell = self._ends[alike] = _Ends(self.labels_of(end), series, [bucket, *series])
        return cell

    def cancelled(self, end: TaskEnd) -> None:
        """A task was cancelled."""

    def failed(self, end: TaskEnd) -> None:
        """A task has failed."""
        count(self._bucket.failures, end.code)
        self._bucket.total.add(end.total_ms)
