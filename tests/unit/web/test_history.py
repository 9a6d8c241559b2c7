"""The history: sketches are near the truth and can be added; buckets are counted once, rolled up, and forgotten."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.queues.metrics import OTHER, TASKS_ACCEPTED, TaskEnd
from fairlane.queues.tasks import State, Used
from fairlane.web.history.buckets import MOST_CODES, MOST_NAMES, Bucket, Series, Sketch, count
from fairlane.web.history.ranges import BUCKET_MS, HOUR_MS, MINUTE_MS, RANGES, ROLLED
from fairlane.web.history.recorder import MOST_CELLS, HistoryRecorder
from fairlane.web.history.rolls import MOST_ROLLED, Roll, Rolls
from fairlane.web.history.shelf import MOST_SHOWN, QUANTILES, Shelf

WANTED = list(QUANTILES.values())
END = 1_700_002_800_000
"""A full hour."""
HOUR = RANGES["1h"].times(END)
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


class LooksUpAnew(HistoryRecorder):
    """Remembers nothing of where tasks are counted."""

    def tell(self, what: tuple[object, ...]) -> None:
        self._lanes.clear()
        self._ends.clear()
        tell(self, what)


def tell(recorder: HistoryRecorder, what: tuple[object, ...]) -> None:
    match what:
        case (queue, model):
            recorder.accepted(str(queue), str(model))
        case (end,):
            assert isinstance(end, TaskEnd)
            recorder.ended(end)
        case _:
            recorder.rejected("q", "m", "QUEUE_FULL")


AMOUNTS = st.sampled_from([-1, 0, 1, 7])
ENDS = st.builds(
    TaskEnd,
    queue=st.sampled_from("qr"),
    model=st.sampled_from("mn"),
    task_type=st.sampled_from(["openaiLike", "made up"]),
    state=st.sampled_from([State.COMPLETED, State.FAILED, State.CANCELLED]),
    code=st.sampled_from(["", "TOTAL_TIMEOUT", "CANCELLED"]),
    total_ms=st.sampled_from([-1, 0.5, 3000]),
    ran_ms=AMOUNTS,
    wrote_ms=AMOUNTS,
    used=st.builds(Used, AMOUNTS, AMOUNTS),
    user=st.sampled_from(["", "u"]),
    worker=st.sampled_from(["", "w"]),
)
TOLD = st.one_of(st.tuples(st.sampled_from("qr"), st.sampled_from("mn")), st.tuples(ENDS), st.just(()))


@given(st.lists(st.lists(TOLD)))
def test_where_tasks_are_counted_is_looked_up_once_and_nothing_is_counted_elsewhere(
    buckets: list[list[tuple[object, ...]]],
) -> None:
    recorder, anew = HistoryRecorder(), LooksUpAnew()
    for told in buckets:
        for what in told:
            tell(recorder, what)
            anew.tell(what)
            assert recorder.values == anew.values
        assert recorder.take() == anew.take()


def test_names_that_callers_make_up_are_not_remembered_for_ever() -> None:
    recorder = HistoryRecorder()
    for number in range(2 * MOST_CELLS + 1):
        recorder.accepted("q", f"m{number}")
        recorder.ended(TaskEnd("q", f"m{number}", "t", State.COMPLETED, "", 1.0))
    assert len(recorder._lanes) <= MOST_CELLS
    assert len(recorder._ends) <= MOST_CELLS
    bucket = recorder.take()
    assert sum(series.accepted for series in bucket.models.values()) == bucket.accepted == 2 * MOST_CELLS + 1
    assert sum(series.completed for series in bucket.models.values()) == bucket.completed
    assert not recorder._lanes
    assert not recorder._ends


def test_codes_that_workers_make_up_do_not_grow_for_ever() -> None:
    counts: dict[str, int] = {}
    for number in range(3 * MOST_CODES):
        count(counts, f"code {number}")
    assert len(counts) == MOST_CODES + 1
    assert counts[OTHER] == 2 * MOST_CODES
    count(counts, "code 0")
    assert counts["code 0"] == 2


def test_what_is_measured_goes_into_the_bucket_of_the_moment() -> None:
    recorder = HistoryRecorder()
    recorder.accepted("q", "m")
    recorder.rejected("q", "m", "QUEUE_FULL")
    recorder.granted("q", "m", 30)
    recorder.began_output("m", "openaiLike", 50)
    recorder.ended(
        TaskEnd("q", "m", "openaiLike", State.COMPLETED, "", 100, used=Used(3, 4), user="ann", worker="w")
    )
    recorder.ended(TaskEnd("q", "m", "openaiLike", State.FAILED, "TOTAL_TIMEOUT", 900))
    recorder.ended(TaskEnd("q", "m", "openaiLike", State.CANCELLED, "CANCELLED", 5))
    bucket = recorder.take()
    assert (bucket.accepted, bucket.completed, bucket.cancelled) == (1, 1, 1)
    assert (bucket.failures, bucket.refusals) == ({"TOTAL_TIMEOUT": 1}, {"QUEUE_FULL": 1})
    same = Series(accepted=1, completed=1, cancelled=1, failed=1, refused=1, input_tokens=3, output_tokens=4)
    assert (bucket.models, bucket.queues, bucket.whole()) == ({"m": same}, {"q": same}, same)
    assert (bucket.workers, bucket.users) == (
        {"w": Series(completed=1, input_tokens=3, output_tokens=4)},
        {"ann": 7},
    )
    assert [sum(s.bins.values()) for s in (bucket.wait, bucket.first, bucket.total)] == [1, 1, 2]
    assert recorder.take().empty
    assert recorder.values[TASKS_ACCEPTED.name] == {("q", "m"): 1}
    assert msgspec.json.decode(msgspec.json.encode(bucket), type=Bucket) == bucket


def test_replicas_are_added_up_and_an_entry_that_came_twice_counts_once() -> None:
    hour = Shelf(BUCKET_MS)
    at = END - 5 * BUCKET_MS
    for replica in ("a", "b", "a"):
        hour.add(
            replica,
            at + 17,
            Bucket(completed=2, failures={"X": 1, "TOTAL_TIMEOUT": 2, "other": 1}, total=sketch([100.0] * 3)),
        )
    drawn = hour.draw(HOUR)
    assert len(drawn["at"]) == 360
    assert drawn["at"][-5] == at
    assert drawn["completed"][-5] == 4
    assert (sum(drawn["completed"]), drawn["failed"][-5]) == (4, 8)
    assert drawn["totalMs"]["p50"][-5] == pytest.approx(100, rel=0.026)
    assert drawn["totalMs"]["p50"][-4] is None
    assert drawn["total"]["failures"] == [
        {"code": "TOTAL_TIMEOUT", "count": 4, "category": "timeout_or_capacity"},
        {"code": "X", "count": 2, "category": "worker"},
        {"code": "other", "count": 2, "category": ""},
    ]
    hour.add("c", at, Bucket(total=sketch([10_000.0] * 30)))  # after it was drawn
    assert hour.draw(HOUR)["totalMs"]["p50"][-5] == pytest.approx(10_000, rel=0.026)


def test_what_is_older_than_the_hour_is_forgotten() -> None:
    hour = Shelf(BUCKET_MS)
    for back in range(0, 4000, 7):
        hour.add("a", END - back * BUCKET_MS, Bucket(accepted=1))
    hour.forget_before(END - HOUR_MS)
    assert len(hour._buckets) == len(hour._told) == 52
    assert sum(hour.draw(HOUR)["accepted"]) == 51  # the bucket that begins at the end is not over


def test_each_of_many_models_keeps_its_name() -> None:
    recorder = HistoryRecorder()
    for number in range(3 * MOST_CODES):
        recorder.ended(TaskEnd("q", f"m{number}", "t", State.COMPLETED, "", 100, used=Used(1, 20)))
    whole = Bucket()
    whole.merge(recorder.take())
    assert len(whole.models) == 3 * MOST_CODES
    assert all(series.output_tokens == 20 for series in whole.models.values())


def test_what_waits_is_told_by_each_replica_and_counted_once() -> None:
    hour = Shelf(BUCKET_MS)
    for replica, waiting in (("a", 40), ("b", 41)):
        hour.add(replica, END - BUCKET_MS, Bucket(waiting=waiting))
    assert hour.draw(HOUR)["waiting"][-2:] == [0, 41]
    assert not Bucket(waiting=1).empty  # a queue in which nothing moves is told, too


def test_users_are_added_up_over_minutes_and_without_those_that_have_no_name() -> None:
    hour = Shelf(BUCKET_MS)
    hour.add("a", END - 3 * BUCKET_MS, Bucket(users={"ann": 5}))
    hour.add("a", END - 2 * BUCKET_MS, Bucket(users={"ann": 1, "ben": 2, OTHER: 9}))
    hour.add("b", END - BUCKET_MS, Bucket(users={"ann": 1}))
    assert hour.tokens_by_user(END - 2 * BUCKET_MS) == {"ann": 2, "ben": 2}


def test_names_that_callers_make_up_are_counted_together() -> None:
    recorder = HistoryRecorder(["known"])
    for number in range(20):
        recorder.rejected("q", f"made up {number}", "no_worker")
    recorder.rejected("q", "known", "QUEUE_FULL")
    bucket = recorder.take()
    assert {name: series.refused for name, series in bucket.models.items()} == {OTHER: 20, "known": 1}


def test_every_range_has_a_bounded_number_of_buckets_of_which_the_newest_may_go_on() -> None:
    for wanted in RANGES.values():
        for until in (END, END + 7 * MINUTE_MS, END + BUCKET_MS):
            times = wanted.times(until)
            assert 90 <= len(times) <= 360
            assert times[-1] < until <= times[-1] + wanted.step_ms
            assert all(at % wanted.step_ms == 0 for at in times)


def grown(step: int, told: list[Roll]) -> dict[int, int]:
    """What was accepted, by bucket, in the newest of what was told."""
    return {roll.at: roll.bucket.accepted for roll in told if roll.step == step}


def test_a_replicas_part_of_longer_buckets_is_told_each_minute_as_a_whole() -> None:
    rolls = Rolls("r")
    for tick in range(6):
        rolls.add(END + tick * BUCKET_MS, Bucket(accepted=1, waiting=tick, users={"ann": 5}))
        assert rolls.due(END + tick * BUCKET_MS + 9_999) == []
    first = rolls.due(END + MINUTE_MS)
    assert {roll.step: roll.bucket.accepted for roll in first} == dict.fromkeys(ROLLED, 6)
    assert all((roll.bucket.waiting, roll.bucket.users) == (5, {}) for roll in first)
    assert rolls.due(END + MINUTE_MS) == first, "nobody has confirmed it"
    for roll in first:
        roll.told = True
    assert rolls.due(END + MINUTE_MS) == []
    rolls.add(END + MINUTE_MS, Bucket(accepted=2))
    second = rolls.due(END + 2 * MINUTE_MS)
    assert (grown(MINUTE_MS, second), grown(HOUR_MS, second)) == ({END + MINUTE_MS: 2}, {END: 8})
    assert {roll.source for roll in second} >= {roll.source for roll in first if roll.step > MINUTE_MS}


def test_what_cannot_be_told_is_kept_as_long_as_anybody_may_look_at_it() -> None:
    rolls = Rolls("r")
    for minute in range(8 * 24 * 60):
        rolls.add(END + minute * MINUTE_MS, Bucket(accepted=1))
        kept = rolls.due(END + (minute + 1) * MINUTE_MS)
    assert len(kept) <= sum(span // step for step, span in ROLLED.items())
    assert sum(grown(HOUR_MS, kept).values()) > 6 * 24 * 60
    assert rolls.untold(HOUR_MS, kept[-1].at - kept[-1].at % HOUR_MS) is not None


def test_a_clock_that_goes_back_overwrites_nothing() -> None:
    rolls = Rolls("r")
    told: dict[tuple[int, int, str], int] = {}
    for at in (END, END + HOUR_MS, END, END + 2 * HOUR_MS):
        rolls.add(at, Bucket(accepted=1))
        for roll in rolls.due(at + HOUR_MS):
            told[roll.step, roll.at, roll.source] = roll.bucket.accepted
            roll.told = True
    assert sum(count for (step, at, _), count in told.items() if (step, at) == (HOUR_MS, END)) == 2


def test_the_last_part_of_a_minute_is_told_when_the_replica_ends() -> None:
    rolls = Rolls("r")
    rolls.add(END, Bucket(accepted=1))
    assert rolls.due(END + BUCKET_MS) == []
    assert grown(HOUR_MS, rolls.due(END + BUCKET_MS, ending=True)) == {END: 1}


def test_a_bucket_is_small_however_many_names_there_are() -> None:
    bucket = Bucket()
    many = {
        f"a rather long name of something {number}": Series(1, 1, 1, 1, 1, 1, 1, 1) for number in range(5000)
    }
    bucket.merge(Bucket(models=many, queues=many, workers=many))
    assert [len(bucket.of(kind)) for kind in ("model", "queue", "worker")] == [MOST_NAMES + 1] * 3
    rolls = Rolls("r")
    rolls.add(END, bucket)
    rolls.add(END + BUCKET_MS, Bucket(models=many))
    roll = rolls.due(END + MINUTE_MS)[0]
    assert len(roll.bucket.models) == MOST_ROLLED + 1
    assert roll.bucket.models[OTHER].completed == 10_000 - 2 * MOST_ROLLED
    assert len(msgspec.json.encode(roll.bucket)) < 40_000


def test_a_shelf_shows_so_many_names_until_they_are_old() -> None:
    shelf = Shelf(BUCKET_MS)
    names = [f"worker {number}" for number in range(MOST_SHOWN + 50)]
    for number, name in enumerate(names):
        at = END - BUCKET_MS * (10 - number % 10)
        shelf.add(f"r{number}", at, Bucket(workers={name: Series(completed=1)}))
    times = range(END - BUCKET_MS * 10, END, BUCKET_MS)
    assert shelf.draw(times)["names"]["workers"] == sorted([*names[:MOST_SHOWN], OTHER])
    assert shelf.draw(times, "worker", OTHER)["total"]["completed"] == 50
    shelf.forget_before(END)
    shelf.add("r", END, Bucket(workers={names[-1]: Series(completed=1)}))
    assert shelf.draw([END])["names"]["workers"] == [names[-1]]


def test_parts_of_replicas_are_added_up_and_drawn_by_name() -> None:
    shelf = Shelf(HOUR_MS)
    times = RANGES["7d"].times(END)
    one = Bucket(
        accepted=3, input_tokens=9, models={"m": Series(accepted=2, waiting=4), "n": Series(accepted=1)}
    )
    other = Bucket(accepted=1, models={"m": Series(accepted=1, waiting=3)}, workers={"w": Series(failed=2)})
    shelf.put(END - HOUR_MS, [one, other])
    shelf.put(END - HOUR_MS, [one, other])  # it is read again
    whole = shelf.draw(times)
    assert (whole["accepted"][-2:], whole["inputTokens"][-1], whole["total"]["accepted"]) == ([0, 4], 9, 4)
    assert whole["names"] == {"models": ["m", "n"], "queues": [], "workers": ["w"]}
    model = shelf.draw(times, "model", "m")
    assert (model["accepted"][-1], model["waiting"][-1], model["total"]["accepted"]) == (3, 4, 3)
    assert (model["totalMs"], model["total"]["failures"], model["names"]) == (None, None, whole["names"])
    worker = shelf.draw(times, "worker", "w")
    assert (worker["failed"][-1], worker["accepted"], worker["total"]["accepted"]) == (2, None, None)
    assert shelf.draw(times, "queue", "nobody knows it")["completed"] == [0] * 168
    shelf.forget_before(END)
    assert shelf.draw(times)["total"]["accepted"] == 0
