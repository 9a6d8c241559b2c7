"""What one process counts: labels are bounded, histograms count where they should."""

import msgspec
import pytest
from tests.contract.store.store import Store, World

from fairlane.queues.metrics import (
    MAX_MODELS,
    MODEL_COOLDOWNS,
    OTHER,
    PER_TOKEN,
    REQUEST_DURATION,
    RUN_TIME,
    TASKS_ACCEPTED,
    TASKS_ENDED,
    TASKS_REJECTED,
    TASKS_RETURNED,
    TOKENS,
    Metric,
    Recorder,
    TaskEnd,
)
from fairlane.queues.tasks import State, Used


def end(**fields: object) -> TaskEnd:
    return msgspec.structs.replace(TaskEnd("q", "m", "openaiLike", State.COMPLETED, "", 3000), **fields)


def test_a_histogram_counts_between_its_bounds() -> None:
    metrics, metric = Recorder(), Metric("h", ("a",), "", bounds=(1, 2, 5))
    metrics.values["h"] = {}
    for value in (0, 1, 1.5, 2, 5, 5.1, 100):
        metrics.observe(metric, value, "x")
    assert metrics.values["h"] == {("x",): [2, 2, 1, 2, 114.6]}


def test_a_task_is_counted_by_queue_model_state_and_code() -> None:
    metrics = Recorder()
    metrics.ended(end())
    metrics.ended(end(state=State.FAILED, code="TOTAL_TIMEOUT"))
    metrics.ended(end(state=State.CANCELLED))
    assert metrics.values[TASKS_ENDED.name] == {
        ("q", "m", "completed", "", ""): 1,
        ("q", "m", "failed", "TOTAL_TIMEOUT", "timeout_or_capacity"): 1,
        ("q", "m", "cancelled", "", ""): 1,
    }
    assert set(metrics.values[REQUEST_DURATION.name]) == {
        ("chat", "m", ""),
        ("chat", "m", "TOTAL_TIMEOUT"),
        ("chat", "m", "cancelled"),
    }
    assert not metrics.values[RUN_TIME.name], "none of them was granted"
    assert not metrics.values[TOKENS.name], "and none used a token"


def test_tokens_and_their_pace_are_measured_where_they_are_known() -> None:
    metrics = Recorder()
    metrics.ended(end(ran_ms=2500, wrote_ms=1980, used=Used(10, 100), task_type="openaiCompletion"))
    key = ("text_completion", "m")
    assert metrics.values[TOKENS.name][*key, "input"][-1] == 10
    assert metrics.values[TOKENS.name][*key, "output"][-1] == 100
    assert metrics.values[PER_TOKEN.name][key][-1] == pytest.approx(0.02)
    assert metrics.values[RUN_TIME.name]["q", "m", "completed"][-1] == 2.5
    metrics.ended(end(ran_ms=2500, wrote_ms=1980, used=Used(10, 1)))
    metrics.ended(end(ran_ms=2500, used=Used(10, 100)))
    metrics.ended(end(ran_ms=2500, wrote_ms=1980, used=Used(10, 100), state=State.FAILED, code="X"))
    assert set(metrics.values[PER_TOKEN.name]) == {key}, (
        "one token has no pace, nor has what came at once, nor a failure"
    )


def test_models_beyond_the_first_ones_are_others() -> None:
    metrics = Recorder(["configured"])
    for number in range(2 * MAX_MODELS):
        metrics.accepted("q", f"m{number}")
    metrics.accepted("q", "configured")
    metrics.accepted("q", "m5")
    counted = metrics.values[TASKS_ACCEPTED.name]
    assert len(counted) == MAX_MODELS + 1
    assert (counted["q", "configured"], counted["q", "m5"]) == (1, 2)
    assert counted["q", OTHER] == MAX_MODELS + 1


def test_refused_names_that_callers_make_up_do_not_become_known() -> None:
    metrics = Recorder()
    metrics.accepted("q", "m")
    for number in range(1000):
        metrics.rejected("q", f"made-up-{number}", "NO_WORKER")
    metrics.rejected("q", "m", "QUEUE_FULL")
    assert metrics.values[TASKS_REJECTED.name] == {
        ("q", OTHER, "NO_WORKER"): 1000,
        ("q", "m", "QUEUE_FULL"): 1,
    }
    metrics.ended(end(task_type="made-up"))
    assert set(metrics.values[REQUEST_DURATION.name]) == {(OTHER, "m", "")}


# ---- what the scheduler tells by itself ----------


def told(pool: Store) -> Recorder:
    metrics = pool.scheduler.metrics
    assert isinstance(metrics, Recorder)
    return metrics


def test_a_cancelled_task_is_counted_once_where_it_was_cancelled(world: World) -> None:
    here, there = Store(world), Store(world, "r2", set_up=False)
    here.run("running", queue="paid")
    here.submit("waiting")
    world.advance(4000)
    there.cancel("running")
    there.cancel("waiting")
    here.cancel("waiting")
    here.cancel("unknown")
    assert told(there).values[TASKS_ENDED.name] == {
        ("paid", "m", "cancelled", "", ""): 1,
        ("free", "m", "cancelled", "", ""): 1,
    }
    assert told(there).values[RUN_TIME.name]["paid", "m", "cancelled"][-1] == 4
    assert told(there).values[REQUEST_DURATION.name]["chat", "m", "cancelled"][-1] == 8
    assert not told(here).values[TASKS_ENDED.name]


def test_tasks_that_the_sweep_ends_or_requeues_are_counted(world: World) -> None:
    pool = Store(world)
    pool.submit("late", timeout_ms=5000)
    pool.submit("impatient", wait_ms=5000, queue="paid")
    pool.pass_time(6000)
    pool.run("lost")
    pool.pass_time(20_000)
    metrics = told(pool)
    assert metrics.values[TASKS_ENDED.name] == {
        ("free", "m", "failed", "TOTAL_TIMEOUT", "timeout_or_capacity"): 1,
        ("paid", "m", "failed", "QUEUE_TIMEOUT", "timeout_or_capacity"): 1,
    }
    assert metrics.values[TASKS_RETURNED.name] == {("free", "m", "lease"): 1}
    assert not metrics.values[RUN_TIME.name]


def test_returns_cooldowns_and_the_end_of_a_requeue_are_counted(world: World) -> None:
    pool = Store(world)
    pool.requeue(pool.run("a"))
    world.advance(1000)
    (grant,) = pool.take()
    pool.requeue(grant, "declined", hold_ms=500)
    world.advance(1000)
    (grant,) = pool.take()
    pool.append(grant, 4)
    assert pool.requeue(grant).outcome == "ended"
    assert pool.requeue(grant).outcome == "ended", "its reply was lost"
    metrics = told(pool)
    assert metrics.values[TASKS_RETURNED.name] == {("free", "m", "lost"): 1, ("free", "m", "declined"): 1}
    assert metrics.values[MODEL_COOLDOWNS.name] == {("m",): 1}
    assert metrics.values[TASKS_ENDED.name] == {("free", "m", "failed", "WORKER_LOST", "worker"): 1}
    assert metrics.values[REQUEST_DURATION.name]["chat", "m", "WORKER_LOST"][-1] == 2
