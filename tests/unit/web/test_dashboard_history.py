"""The last hour: sketches are near the truth and can be added; buckets are counted once, and forgotten."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.queues.metrics import OTHER, TaskEnd
from fairlane.queues.tasks import State
from fairlane.web.dashboard_history import (
    BUCKET_MS,
    BUCKETS,
    MOST_CODES,
    QUANTILES,
    Bucket,
    Hour,
    HourRecorder,
    Sketch,
    count,
)

WANTED = list(QUANTILES.values())
END = 1_700_000_000_000
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


def test_an_empty_sketch_knows_nothing_and_short_times_are_a_millisecond() -> None:
    assert Sketch().quantiles(WANTED) == [None, None, None]
    assert sketch([0.0, 0.2, -3.0]).quantiles(WANTED) == [1.0, 1.0, 1.0]


def test_codes_that_workers_make_up_do_not_grow_for_ever() -> None:
    counts: dict[str, int] = {}
    for number in range(3 * MOST_CODES):
        count(counts, f"code {number}")
    assert len(counts) == MOST_CODES + 1
    assert counts[OTHER] == 2 * MOST_CODES
    count(counts, "code 0")
    assert counts["code 0"] == 2


def test_what_is_measured_goes_into_the_bucket_of_the_moment() -> None:
    recorder = HourRecorder()
    recorder.accepted("q", "m")
    recorder.refused("q", "m", "full")
    recorder.granted("q", "m", 30)
    recorder.began_output("m", "openaiLike", 50)
    recorder.ended(TaskEnd("q", "m", "openaiLike", State.COMPLETED, "", 100, used=(3, 4), user="ann"))
    recorder.ended(TaskEnd("q", "m", "openaiLike", State.FAILED, "TIMEOUT", 900))
    recorder.ended(TaskEnd("q", "m", "openaiLike", State.CANCELLED, "CANCELLED", 5))
    bucket = recorder.take()
    assert (bucket.accepted, bucket.completed, bucket.cancelled) == (1, 1, 1)
    assert (bucket.failures, bucket.refusals) == ({"TIMEOUT": 1}, {"full": 1})
    assert (bucket.arrived, bucket.ended, bucket.users) == ({"m": 1}, {"m": 3}, {"ann": 7})
    assert [sum(s.bins.values()) for s in (bucket.wait, bucket.first, bucket.total)] == [1, 1, 2]
    assert recorder.take().empty
    assert recorder.accepted_tasks.values == {("q", "m"): 1}
    assert msgspec.json.decode(msgspec.json.encode(bucket), type=Bucket) == bucket


def test_replicas_are_added_up_and_an_entry_that_came_twice_counts_once() -> None:
    hour = Hour()
    at = END - 5 * BUCKET_MS
    for replica in ("a", "b", "a"):
        hour.add(replica, at + 17, Bucket(completed=2, failures={"X": 1}, total=sketch([100.0] * 3)))
    drawn = hour.draw(END)
    assert len(drawn["at"]) == BUCKETS
    assert drawn["at"][-5] == at
    assert drawn["completed"][-5] == 4
    assert (sum(drawn["completed"]), drawn["failed"][-5]) == (4, 2)
    assert drawn["totalMs"]["p50"][-5] == pytest.approx(100, rel=0.026)
    assert drawn["totalMs"]["p50"][-4] is None
    assert drawn["total"]["failures"] == [{"code": "X", "count": 2}]
    hour.add("c", at, Bucket(total=sketch([10_000.0] * 30)))  # after it was drawn
    assert hour.draw(END)["totalMs"]["p50"][-5] == pytest.approx(10_000, rel=0.026)


def test_what_is_older_than_the_hour_is_forgotten() -> None:
    hour = Hour()
    for back in range(0, 4000, 7):
        hour.add("a", END - back * BUCKET_MS, Bucket(accepted=1))
    hour.forget_before(END - BUCKETS * BUCKET_MS)
    assert len(hour._buckets) == len(hour._told) == 52
    assert sum(hour.draw(END)["accepted"]) == 51  # the bucket that begins at the end is not over


def test_each_of_many_models_keeps_its_name() -> None:
    recorder = HourRecorder()
    for number in range(3 * MOST_CODES):
        recorder.ended(TaskEnd("q", f"m{number}", "t", State.COMPLETED, "", 100, used=(1, 20)))
    whole = Bucket()
    whole.merge(recorder.take())
    assert len(whole.ended) == len(whole.tokens) == 3 * MOST_CODES
    assert OTHER not in whole.ended


def test_what_waits_is_told_by_each_replica_and_counted_once() -> None:
    hour = Hour()
    for replica, waiting in (("a", 40), ("b", 41)):
        hour.add(replica, END - BUCKET_MS, Bucket(waiting=waiting))
    assert hour.draw(END)["waiting"][-2:] == [0, 41]
    assert not Bucket(waiting=1).empty  # a queue in which nothing moves is told, too


def test_users_are_added_up_over_minutes_and_without_those_that_have_no_name() -> None:
    hour = Hour()
    hour.add("a", END - 3 * BUCKET_MS, Bucket(users={"ann": 5}))
    hour.add("a", END - 2 * BUCKET_MS, Bucket(users={"ann": 1, "ben": 2, OTHER: 9}))
    hour.add("b", END - BUCKET_MS, Bucket(users={"ann": 1}))
    assert hour.tokens_by_user(END - 2 * BUCKET_MS) == {"ann": 2, "ben": 2}
