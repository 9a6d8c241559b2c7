"""Fallbacks: which model a task moves to, when, and what it keeps."""

from typing import Any

import pytest
from tests.contract.store.store import Grant, Store, fallbacks, fragment, price

pytestmark = pytest.mark.feature("fallbacks")

END = fragment("no", "UPSTREAM_AUTH")
FALLS: dict[str, Any] = {"fallbacks": fallbacks("b", "c"), "fallback_after_ms": 1000, "asked": "route"}
"""A task that may fall back to b, then c."""


def model_of(store: Store, task: str) -> str:
    return store.task(task).model


def granted(store: Store, model: str) -> Grant:
    (grant,) = store.take(model)
    return grant


@pytest.mark.parametrize("cause", ["failed", "falls"])
def test_a_task_falls_back_after_a_failed_attempt_and_not_back(store: Store, cause: Any) -> None:
    store.offer("a", "b", "c")
    grant = store.run("t", "a", **FALLS)
    enqueued_ms = grant.enqueued_ms
    for model, then in (("a", "b"), ("b", "c")):
        store.world.advance(500)
        assert store.requeue(grant, cause, begun=True, end=END).outcome == "queued"
        assert (model_of(store, "t"), store.slots(model)) == (then, {})
        store.world.check()
        grant = granted(store, then)
    assert (grant.asked, grant.enqueued_ms, grant.has_fallback) == ("c", enqueued_ms, False)
    assert store.requeue(grant, cause, begun=True, end=END).outcome == "ended", (
        "three tries, and no model is left"
    )
    assert store.end("t") == ("failed", "UPSTREAM_AUTH")
    assert store.task("t").moves == [("a", "gone"), ("b", "gone")]


def test_an_error_that_only_another_model_can_fix_ends_the_task_without_one(store: Store) -> None:
    store.offer("a")
    assert store.requeue(store.run("t", "a", **FALLS), "falls", begun=True, end=END).outcome == "ended"
    assert store.end("t") == ("failed", "UPSTREAM_AUTH")


def test_a_task_stays_with_its_model_after_a_lost_worker_while_others_serve_it(store: Store) -> None:
    store.offer("a", "b")
    store.requeue(store.run("t", "a", **FALLS), "lost", begun=True)
    assert model_of(store, "t") == "a"
    store.offer(withdrawn=["a"])
    store.requeue(granted(store, "a"), "lost", begun=True)
    assert model_of(store, "t") == "b"


def test_a_model_without_workers_is_skipped_and_tried_last(store: Store) -> None:
    store.offer("b")
    answer = store.accept("t", "a", want=1, **FALLS)
    assert (answer.state, answer.model, answer.grants) == ("queued", "b", [])
    assert store.task("t").fallbacks == ["c", "a"]
    assert granted(store, "b").asked == "b"
    assert store.reject("u", "x", fallbacks=fallbacks("y"), fallback_after_ms=0).reason == "no_worker"


@pytest.mark.feature("pacing")
def test_a_task_leaves_a_model_in_a_long_cooldown_and_waits_for_a_short_one(store: Store) -> None:
    store.offer("a", "b")
    store.requeue(store.run("short", "a", **FALLS), "declined", end=END, hold_ms=900)
    assert model_of(store, "short") == "a"
    store.world.advance(1000)
    store.requeue(granted(store, "a"), "declined", end=END, hold_ms=30_000)
    assert (model_of(store, "short"), store.task("short").fallbacks) == ("b", ["c", "a"])
    assert store.accept("new", "a", **FALLS).model == "b"


def test_waiting_tasks_move_in_their_order_when_their_model_stops(store: Store) -> None:
    store.offer("a", "b")
    tasks = [f"t{n}" for n in range(250)]
    for task in tasks:
        store.submit(task, "a", **FALLS)
        store.world.advance(1)
    store.submit("stays", "a")
    store.set_model("a", paused=True)
    for left in (150, 50, 0):
        next_ms, _ = store.sweep()
        assert sum(model_of(store, task) == "a" for task in tasks) == left, "a hundred in each pass"
        assert not left or next_ms == 0, "the next pass follows immediately"
    assert model_of(store, "stays") == "a"
    assert store.taken("b", want=64) == tasks[:64]


def test_tasks_without_an_open_fallback_do_not_delay_those_behind_them(store: Store) -> None:
    store.offer("a", "b")
    stuck = [f"s{n}" for n in range(150)]
    for task in stuck:
        store.submit(task, "a", fallbacks=fallbacks("nobody"), fallback_after_ms=0)
        store.world.advance(1)
    store.submit("goes", "a", **FALLS)
    store.set_model("a", paused=True)
    store.pass_time(3000)
    assert model_of(store, "goes") == "b"
    assert {model_of(store, task) for task in stuck} == {"a"}


@pytest.mark.parametrize(
    "why",
    [
        *("model_paused", "no_worker"),
        *(pytest.param(why, marks=pytest.mark.feature("pacing")) for why in ("cooldown", "throttled")),
        pytest.param("lease", id="a lease is over"),
    ],
)
def test_a_waiting_task_falls_back_when_its_model_starts_nothing(store: Store, why: str) -> None:
    store.offer("a", "b")
    if why != "lease":
        store.submit("first", "a")
    store.submit("t", "a", **FALLS)
    match why:
        case "model_paused":
            store.set_model("a", paused=True)
        case "no_worker":
            store.offer(withdrawn=["a"])
        case "cooldown":
            store.requeue(granted(store, "a"), "declined", end=END, hold_ms=30_000)
        case "throttled":
            store.set_model("a", requests_per_minute=1)
            granted(store, "a")
        case _:
            store.renew(granted(store, "a"))
            store.pass_time(14_000)
            store.offer("a", "b")
            store.pass_time(1000)
    store.sweep()
    assert model_of(store, "t") == "b"
    assert store.task("t").moves[0][0] == "a"


def test_no_task_falls_back_after_output(store: Store) -> None:
    store.offer("a", "b")
    grant = store.run("t", "a", **FALLS)
    store.append(grant, 2)
    assert store.requeue(grant, "failed", begun=True, end=END).outcome == "ended"


@pytest.mark.feature("credits")
def test_the_dearest_model_is_reserved_and_the_one_that_answered_is_paid(store: Store) -> None:
    store.offer("a", "b")
    store.sweep()
    store.fund()
    cheap, dear = (price(*4 * (n * 1_000_000,)) for n in (1, 2))
    paid: dict[str, Any] = {"user": "acme/ann", "quota": "k", "estimated_input": 100, "max_output": 50}
    grant = store.run(
        "t", "a", price=cheap, fallbacks=fallbacks("b", prices=[dear]), fallback_after_ms=0, **paid
    )
    assert store.balance().reserved == 300
    store.requeue(grant, "failed", begun=True, end=END)
    store.finish(granted(store, "b"), used=(10, 5))
    assert (store.balance().reserved, store.balance().balance) == (0, 1000 - 30)
