"""Tasks that go on to another model: which, when, and what they keep."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.audit import audit
from tests.support.direct import World, drive
from tests.support.pool import Pool

from fairlane.queues.credits import Funds
from fairlane.queues.metrics import FALLBACKS
from fairlane.queues.tasks import Fragment, Grant, Rejection, State, Submitted

END = Fragment(b'"error":"no","code":"UPSTREAM_AUTH","retryable":false', "UPSTREAM_AUTH")
FALLS: dict[str, Any] = {"fallbacks": "b\t\nc\t", "fallback_after_ms": 1000, "asked": "route"}
"""A task that may go on to b, then c."""


def pool_of(world: World, *models: str) -> Pool:
    pool = Pool(world)
    pool.offer(*models)
    return pool


def moves_of(pool: Pool, task: str) -> list[tuple[str, str]]:
    lines = [line.split("\t") for line in pool.record(task)["fallback_history"].split("\n")]
    assert all(int(at) <= pool.world.now_ms for _, at, _ in lines)
    return [(model, why) for model, _, why in lines]


def model_of(pool: Pool, task: str) -> str:
    record = pool.record(task)
    return record.get("requested_model", record["model"])


def granted(pool: Pool, model: str) -> Grant:
    (grant,) = pool.take(model)
    return grant


@pytest.mark.parametrize("cause", ["failed", "falls"])
def test_a_task_falls_back_to_the_next_model_after_a_failed_attempt_and_not_back(
    world: World, cause: Any
) -> None:
    pool = pool_of(world, "a", "b", "c")
    grant = pool.run("t", "a", **FALLS)
    enqueued = grant.enqueued_ms
    for model, then in (("a", "b"), ("b", "c")):
        world.advance(500)
        assert pool.requeue(grant, cause, begun=True, end=END).outcome == "queued"
        assert model_of(pool, "t") == then
        assert pool.slots(model) == {}
        audit(world, ["t"])
        grant = granted(pool, then)
    last = grant
    assert (last.asked, last.enqueued_ms, last.has_fallback) == ("c", enqueued, False)
    outcome = pool.requeue(last, cause, begun=True, end=END)
    assert (outcome.outcome, pool.code("t")) == ("ended", "UPSTREAM_AUTH"), (
        "three tries, and no model is left"
    )
    audit(world, ["t"])


def test_an_error_that_only_another_model_can_fix_ends_the_task_without_one(world: World) -> None:
    pool = pool_of(world, "a")
    grant = pool.run("t", "a", **FALLS)
    assert pool.requeue(grant, "falls", begun=True, end=END).outcome == "ended"
    assert pool.code("t") == "UPSTREAM_AUTH"
    audit(world, ["t"])


def test_a_task_stays_with_its_model_after_a_lost_worker_while_others_serve_it(world: World) -> None:
    pool = pool_of(world, "a", "b")
    grant = pool.run("t", "a", **FALLS)
    pool.requeue(grant, "lost", begun=True)
    assert model_of(pool, "t") == "a"
    pool.offer(withdrawn=["a"])
    pool.requeue(granted(pool, "a"), "lost", begun=True)
    assert model_of(pool, "t") == "b"
    audit(world, ["t"])


def test_a_model_without_workers_is_skipped_and_tried_last(world: World) -> None:
    pool = pool_of(world, "b")
    answer = pool.submit("t", "a", want=1, **FALLS)
    assert isinstance(answer, Submitted)
    assert (answer.state, answer.model, answer.grants) == (State.QUEUED, "b", [])
    assert pool.record("t")["fallbacks"] == "c\t\na\t"
    assert granted(pool, "b").asked == "b"
    audit(world, ["t"])
    refused = Pool(world, "r2", set_up=False).submit("u", "x", fallbacks="y\t", fallback_after_ms=0)
    assert isinstance(refused, Rejection)
    assert refused.reason == "no_worker"


def test_a_task_leaves_a_model_in_a_long_cooldown_and_waits_for_a_short_one(world: World) -> None:
    pool = pool_of(world, "a", "b")
    short = pool.run("short", "a", **FALLS)
    pool.requeue(short, "declined", end=END, hold_ms=900)
    assert model_of(pool, "short") == "a"
    world.advance(1000)
    long = granted(pool, "a")
    pool.requeue(long, "declined", end=END, hold_ms=30_000)
    assert model_of(pool, "short") == "b"
    assert pool.record("short")["fallbacks"] == "c\t\na\t", "it may be asked again, last"
    pool.submit("new", "a", **FALLS)
    assert model_of(pool, "new") == "b"
    audit(world, ["short", "new"])


def test_waiting_tasks_move_when_their_model_stops_in_the_order_in_which_they_came(world: World) -> None:
    pool = pool_of(world, "a", "b")
    tasks = [f"t{n}" for n in range(250)]
    for task in tasks:
        pool.submit(task, "a", **FALLS)
        world.advance(1)
    pool.submit("stays", "a")
    pool.set_model("a", paused=True)
    before = [pool.record(task)["order"] for task in tasks]
    passes = 0
    while any(model_of(pool, task) == "a" for task in tasks):
        next_ms, _ = pool.sweep()
        passes += 1
        assert passes <= 5
        if any(model_of(pool, task) == "a" for task in tasks):
            assert next_ms == 0, "it goes on at once"
    assert passes == 3, "a hundred in each pass"
    assert model_of(pool, "stays") == "a"
    assert [pool.record(task)["order"] for task in tasks] == before
    audit(world, [*tasks, "stays"])
    assert [grant.task_id for grant in pool.take("b", want=64)] == tasks[:64]


def test_tasks_without_a_fallback_do_not_delay_those_behind_them(world: World) -> None:
    pool = pool_of(world, "a", "b")
    stuck = [f"s{n}" for n in range(150)]
    for task in stuck:
        pool.submit(task, "a", fallbacks="nobody\t", fallback_after_ms=0)
        world.advance(1)
    pool.submit("goes", "a", **FALLS)
    pool.set_model("a", paused=True)
    for _ in range(3):
        world.advance(1000)
        pool.sweep()
    assert model_of(pool, "goes") == "b"
    assert {model_of(pool, task) for task in stuck} == {"a"}
    audit(world, [*stuck, "goes"])


def test_a_record_lists_the_models_that_a_task_left_and_why(world: World) -> None:
    pool = pool_of(world, "a", "b", "c")
    pool.requeue(pool.run("failed", "a", **FALLS), "failed", begun=True, end=END)
    assert moves_of(pool, "failed") == [("a", "gone")]
    pool.requeue(pool.run("held", "a", **FALLS), "declined", end=END, hold_ms=30_000)
    assert moves_of(pool, "held") == [("a", "cooldown")]
    pool.set_model("b", paused=True)
    pool.sweep()
    assert moves_of(pool, "failed") == [("a", "gone"), ("b", "model_paused")]
    pool.submit("unserved", "nobody", **FALLS)
    assert (model_of(pool, "unserved"), moves_of(pool, "unserved")) == ("c", [("nobody", "no_worker")])
    pool.set_model("b", paused=False)
    for turn in range(12):
        for model in ("c", "b"):
            pool.set_model(model, paused=(model == "c") == (turn % 2 == 0))
        pool.sweep()
    assert len(moves_of(pool, "unserved")) == 10, "no more are kept"
    audit(world, ["failed", "held", "unserved"])


def pause(pool: Pool) -> None:
    pool.set_model("a", paused=True)


def withdraw(pool: Pool) -> None:
    pool.offer(withdrawn=["a"])


def cool_down(pool: Pool) -> None:
    pool.requeue(granted(pool, "a"), "declined", end=END, hold_ms=30_000)


def throttle(pool: Pool) -> None:
    pool.set_model("a", requests_per_minute=1)
    granted(pool, "a")


def expire(pool: Pool) -> None:
    pool.renew(granted(pool, "a"))
    pool.pass_time(pool.world.limits.lease_ms - 1000)
    pool.offer("a", "b")
    pool.pass_time(1000)


@pytest.mark.parametrize(
    ("stops", "cause"),
    [
        *((pause, "unavailable"), (withdraw, "unavailable"), (cool_down, "unavailable")),
        *((throttle, "unavailable"), (expire, "failed")),
    ],
)
def test_the_metric_shows_whether_a_model_was_unavailable_or_failed(
    world: World, stops: Callable[[Pool], None], cause: str
) -> None:
    pool = pool_of(world, "a", "b")
    if stops is not expire:
        pool.submit("first", "a")
    pool.submit("t", "a", **FALLS)
    stops(pool)
    pool.sweep()
    assert model_of(pool, "t") == "b"
    assert pool.scheduler.metrics.values[FALLBACKS.name] == {("a", "b", cause): 1}


def test_no_task_falls_back_after_output(world: World) -> None:
    pool = pool_of(world, "a", "b")
    grant = pool.run("t", "a", **FALLS)
    pool.append(grant, 2)
    assert pool.requeue(grant, "failed", begun=True, end=END).outcome == "ended"
    audit(world, ["t"])


def test_the_dearest_model_is_reserved_and_the_one_that_answered_is_paid(world: World) -> None:
    pool = pool_of(world, "a", "b")
    pool.sweep()
    drive(pool.scheduler.load_balance("k:acme", Funds(1000, 1), ""))
    dear, cheap = "2000000 2000000 2000000 2000000 0", "1000000 1000000 1000000 1000000 0"
    paid: dict[str, Any] = {"user": "acme/ann", "quota": "k", "estimated_input": 100, "max_output": 50}
    grant = pool.run("t", "a", price=cheap, fallbacks=f"b\t{dear}", fallback_after_ms=0, **paid)
    balance = drive(pool.scheduler.balance("k:acme"))
    assert balance.held == 300
    pool.requeue(grant, "failed", begun=True, end=END)
    pool.finish(granted(pool, "b"), used=(10, 5))
    balance = drive(pool.scheduler.balance("k:acme"))
    assert (balance.held, balance.balance) == (0, 1000 - 30)
    audit(world, ["t"])
