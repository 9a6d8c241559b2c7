"""What one process counts: labels are bounded, histograms count where they should."""

import msgspec
import pytest
from tests.support.direct import World, drive
from tests.support.pool import Pool

from fairlane.queues.metrics import MOST_MODELS, OTHER, Histogram, Recorder, TaskEnd
from fairlane.queues.tasks import State, Used


def end(**fields: object) -> TaskEnd:
    return msgspec.structs.replace(TaskEnd("q", "m", "openaiLike", State.COMPLETED, "", 3000), **fields)


def test_a_histogram_counts_between_its_bounds() -> None:
    histogram = Histogram("h", ("a",), "", (1, 2, 5))
    for value in (0, 1, 1.5, 2, 5, 5.1, 100):
        histogram.observe(("x",), value)
    assert histogram.values == {("x",): [2, 2, 1, 2, 114.6]}


def test_a_task_is_counted_by_queue_model_state_and_code() -> None:
    metrics = Recorder()
    metrics.ended(end())
    metrics.ended(end(state=State.FAILED, code="TOTAL_TIMEOUT"))
    metrics.ended(end(state=State.CANCELLED))
    assert metrics.ended_tasks.values == {
        ("q", "m", "completed", "", ""): 1,
        ("q", "m", "failed", "TOTAL_TIMEOUT", "MODEL_TOO_BUSY"): 1,
        ("q", "m", "cancelled", "", ""): 1,
    }
    assert set(metrics.request_duration.values) == {
        ("chat", "m", ""),
        ("chat", "m", "TOTAL_TIMEOUT"),
        ("chat", "m", "cancelled"),
    }
    assert not metrics.run_time.values, "none of them was granted"
    assert not metrics.tokens.values, "and none used a token"


def test_tokens_and_their_pace_are_measured_where_they_are_known() -> None:
    metrics = Recorder()
    metrics.ended(end(ran_ms=2500, wrote_ms=1980, used=Used(10, 100), task_type="openaiCompletion"))
    key = ("text_completion", "m")
    assert metrics.tokens.values[*key, "input"][-1] == 10
    assert metrics.tokens.values[*key, "output"][-1] == 100
    assert metrics.per_token.values[key][-1] == pytest.approx(0.02)
    assert metrics.run_time.values["q", "m", "completed"][-1] == 2.5
    metrics.ended(end(ran_ms=2500, wrote_ms=1980, used=Used(10, 1)))
    metrics.ended(end(ran_ms=2500, used=Used(10, 100)))
    metrics.ended(end(ran_ms=2500, wrote_ms=1980, used=Used(10, 100), state=State.FAILED, code="X"))
    assert set(metrics.per_token.values) == {key}, (
        "one token has no pace, nor has what came at once, nor a failure"
    )


def test_models_beyond_the_first_ones_are_others() -> None:
    metrics = Recorder(["configured"])
    for number in range(2 * MOST_MODELS):
        metrics.accepted("q", f"m{number}")
    metrics.accepted("q", "configured")
    metrics.accepted("q", "m5")
    counted = metrics.accepted_tasks.values
    assert len(counted) == MOST_MODELS + 1
    assert (counted["q", "configured"], counted["q", "m5"]) == (1, 2)
    assert counted["q", OTHER] == MOST_MODELS + 1


def test_refused_names_that_callers_make_up_do_not_become_known() -> None:
    metrics = Recorder()
    metrics.accepted("q", "m")
    for number in range(1000):
        metrics.refused("q", f"made-up-{number}", "no_worker")
    metrics.refused("q", "m", "full")
    assert metrics.refused_tasks.values == {("q", OTHER, "no_worker"): 1000, ("q", "m", "full"): 1}
    metrics.ended(end(task_type="made-up"))
    assert set(metrics.request_duration.values) == {(OTHER, "m", "")}


# ---- what the scheduler tells by itself ----------


def told(pool: Pool) -> Recorder:
    metrics = pool.scheduler.metrics
    assert isinstance(metrics, Recorder)
    return metrics


def test_a_cancelled_task_is_told_once_by_whoever_cancelled_it(world: World) -> None:
    here, there = Pool(world), Pool(world, "r2", set_up=False)
    here.run("running", queue="paid")
    here.submit("waiting")
    world.advance(4000)
    there.cancel("running")
    there.cancel("waiting")
    here.cancel("waiting")
    here.cancel("unknown")
    assert told(there).ended_tasks.values == {
        ("paid", "m", "cancelled", "", ""): 1,
        ("free", "m", "cancelled", "", ""): 1,
    }
    assert told(there).run_time.values["paid", "m", "cancelled"][-1] == 4
    assert told(there).request_duration.values["chat", "m", "cancelled"][-1] == 8
    assert not told(here).ended_tasks.values


def test_what_the_sweep_ends_or_takes_back_is_told(world: World) -> None:
    pool = Pool(world)
    pool.submit("late", timeout_ms=5000)
    pool.submit("impatient", wait_ms=5000, queue="paid")
    pool.pass_time(6000)
    pool.run("lost")
    pool.pass_time(20_000)
    metrics = told(pool)
    assert metrics.ended_tasks.values == {
        ("free", "m", "failed", "TOTAL_TIMEOUT", "MODEL_TOO_BUSY"): 1,
        ("paid", "m", "failed", "QUEUE_TIMEOUT", "MODEL_TOO_BUSY"): 1,
    }
    assert metrics.returned_tasks.values == {("free", "m", "lease"): 1}
    assert not metrics.run_time.values


def test_returns_holds_and_the_end_of_a_requeue_are_told(world: World) -> None:
    pool = Pool(world)
    pool.requeue(pool.run("a"))
    world.advance(1000)
    (grant,) = pool.take()
    drive(pool.scheduler.requeue(grant, "429", cause="declined", begun=False, hold_ms=500))
    world.advance(1000)
    (grant,) = pool.take()
    pool.append(grant, 4)
    assert pool.requeue(grant).outcome == "ended"
    assert pool.requeue(grant).outcome == "ended", "its reply was lost"
    metrics = told(pool)
    assert metrics.returned_tasks.values == {("free", "m", "lost"): 1, ("free", "m", "declined"): 1}
    assert metrics.model_holds.values == {("m",): 1}
    assert metrics.ended_tasks.values == {("free", "m", "failed", "WORKER_LOST", "WORKER_ERROR"): 1}
    assert metrics.request_duration.values["chat", "m", "WORKER_LOST"][-1] == 2
