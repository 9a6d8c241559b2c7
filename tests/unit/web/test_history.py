"""The history: sketches are near the truth and can be added; buckets are added up, and forgotten."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.queues.failures import category_of
from fairlane.queues.metrics import OTHER, TASKS_ACCEPTED, TASKS_ENDED, TaskEnd
from fairlane.queues.tasks import State, Used
from fairlane.web.history.buckets import MAX_CODES, MAX_MODELS, Bucket, ModelCounts, Sketch, count
from fairlane.web.history.history import BUCKET_MS, HOUR_MS, QUANTILES, Hour
from fairlane.web.history.recorder import HistoryRecorder

WANTED = list(QUANTILES.values())
END = 1_700_002_800_000
DURATIONS = st.lists(st.floats(1.0, 1e7), min_size=1, max_size=200)


def sketch(values: list[float]) -> Sketch:
    made = Sketch()
    for value in values:
        made.add(value)
    return made


@given(DURATIONS)
def test_quantiles_are_within_the_promised_error(values: list[float]) -> None:
    ordered = sorted(values)
    for part, found in zip(WANTED, sketch(values).quantiles(WANTED), strict=True):
        rank = next(i for i in range(len(ordered)) if i + 1 >= part * len(ordered))
        assert found is not None
        assert found == pytest.approx(ordered[rank], rel=0.026, abs=0.06)


@given(DURATIONS, DURATIONS)
def test_added_sketches_are_one_sketch_of_all(one: list[float], other: list[float]) -> None:
    added = sketch(one)
    added.merge(sketch(other))
    assert added == sketch(one + other)


def test_an_empty_sketch_has_no_quantiles_and_short_times_are_a_millisecond() -> None:
    assert Sketch().quantiles(WANTED) == [None, None, None]
    assert sketch([0.0, 0.2, -3.0]).quantiles(WANTED) == [1.0, 1.0, 1.0]


def test_names_that_callers_and_workers_make_up_are_bounded() -> None:
    counts: dict[str, int] = {}
    for number in range(3 * MAX_CODES):
        count(counts, f"code {number}")
    assert (len(counts), counts[OTHER]) == (MAX_CODES + 1, 2 * MAX_CODES)
    recorder = HistoryRecorder()
    for number in range(2 * MAX_MODELS):
        recorder.accepted("q", f"m{number}")
        recorder.ended(TaskEnd("q", f"m{number}", "t", State.COMPLETED, "", 1.0))
    bucket = recorder.take()
    assert len(bucket.models) == MAX_MODELS + 1
    assert sum(model.ended for model in bucket.models.values()) == bucket.completed == 2 * MAX_MODELS


def test_measurements_go_into_the_bucket_of_the_moment() -> None:
    recorder = HistoryRecorder()
    recorder.accepted("q", "m")
    recorder.rejected("q", "m", "QUEUE_FULL")
    recorder.granted("q", "m", 30)
    recorder.began_output("m", "openaiLike", 50)
    recorder.ended(TaskEnd("q", "m", "openaiLike", State.COMPLETED, "", 100, used=Used(3, 4), user="ann"))
    recorder.ended(TaskEnd("q", "m", "openaiLike", State.FAILED, "TOTAL_TIMEOUT", 900))
    recorder.ended(TaskEnd("q", "m", "openaiLike", State.CANCELLED, "CANCELLED", 5))
    bucket = recorder.take()
    assert (bucket.accepted, bucket.completed, bucket.failed, bucket.cancelled, bucket.rejected) == (1,) * 5
    assert (bucket.failures, bucket.rejections) == ({"TOTAL_TIMEOUT": 1}, {"QUEUE_FULL": 1})
    assert bucket.models == {"m": ModelCounts(accepted=1, ended=3, cancelled=1, output_tokens=4)}
    assert bucket.users == {"ann": 7}
    assert [sum(s.bins.values()) for s in (bucket.wait, bucket.first, bucket.total)] == [1, 1, 2]
    assert recorder.take().empty
    assert recorder.values[TASKS_ACCEPTED.name] == {("q", "m"): 1}
    assert len(recorder.values[TASKS_ENDED.name]) == 3
    assert msgspec.json.decode(msgspec.json.encode(bucket), type=Bucket) == bucket


def test_replicas_are_added_up() -> None:
    hour = Hour()
    at = END - 5 * BUCKET_MS
    failures = {"X": 1, "TOTAL_TIMEOUT": 2, "other": 1}
    for _ in range(2):
        part = Bucket(completed=2, failures=dict(failures), total=sketch([100.0] * 3), waiting=40)
        hour.add(at + 17, part)
    drawn = hour.draw(END)
    assert (len(drawn["at"]), drawn["at"][-5]) == (360, at)
    assert (drawn["completed"][-5], sum(drawn["completed"]), drawn["failed"][-5]) == (4, 4, 8)
    assert drawn["waiting"][-6:-4] == [0, 40], "each replica reports all waiting tasks"
    assert drawn["totalMs"]["p50"][-5] == pytest.approx(100, rel=0.026)
    assert drawn["totalMs"]["p50"][-4] is None
    assert drawn["total"]["failures"] == [
        {"code": "TOTAL_TIMEOUT", "count": 4, "category": category_of("TOTAL_TIMEOUT")},
        {"code": "X", "count": 2, "category": category_of("X")},
        {"code": "other", "count": 2, "category": ""},
    ]


def test_buckets_older_than_the_hour_are_forgotten() -> None:
    hour = Hour()
    for back in range(0, 4000, 7):
        hour.add(END - back * BUCKET_MS, Bucket(accepted=1))
    hour.forget_before(END - HOUR_MS)
    assert len(hour._buckets) == 52
    assert sum(hour.draw(END)["accepted"]) == 51  # the bucket that begins at the end is not over


def test_tokens_of_users_are_added_up_without_those_that_have_no_name() -> None:
    hour = Hour()
    hour.add(END - 3 * BUCKET_MS, Bucket(users={"ann": 5}))
    hour.add(END - 2 * BUCKET_MS, Bucket(users={"ann": 1, "ben": 2, OTHER: 9}))
    hour.add(END - BUCKET_MS, Bucket(users={"ann": 1}))
    assert hour.tokens_by_user(END - 2 * BUCKET_MS) == {"ann": 2, "ben": 2}
