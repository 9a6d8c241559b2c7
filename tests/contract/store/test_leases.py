"""Leases and time limits: renewals, the sweep, and a Redis that was unavailable for a while."""

from typing import Any

import pytest
from tests.contract.store.store import Store

GRACE_MS = 60_000
GAPS_MS = (1600, 4000, 60_000)


def test_a_grant_holds_three_seconds_and_a_renewed_one_fifteen(store: Store) -> None:
    grant = store.run("a")
    assert store.slots() == {"a": 3000}
    assert store.renew(grant) == [1]
    assert store.slots() == {"a": 15_000}


def test_a_lease_never_exceeds_the_deadline_and_its_grace(store: Store) -> None:
    grant = store.run("a", run_ms=6000)
    store.renew(grant)
    assert store.slots() == {"a": 11_000}
    store.world.advance(4000)
    store.renew(grant)
    assert store.slots() == {"a": 7000}


def test_a_renewal_returns_the_status_of_each_task(store: Store) -> None:
    running, cancelled, returned = store.run("a"), store.run("b"), store.run("c")
    store.cancel("b")
    store.requeue(returned)
    assert store.renew(running, cancelled, returned, returned.forged(task_id="nobody")) == [1, 2, 0, 0]


def test_a_reader_keeps_a_task_alive_only_while_it_renews(store: Store) -> None:
    store.sweep()
    running = store.run("running", linger_ms=4000, user="v")
    store.submit("queued", linger_ms=4000)
    for _ in range(10):
        store.renew(running, read=["queued", "running", "nobody"])
        store.pass_time(1000)
    assert (store.state("queued"), store.state("running")) == ("queued", "executing")
    for _ in range(4):
        store.renew(running)
        store.pass_time(1000)
    assert (store.state("queued"), store.state("running")) == ("cancelled", "cancelled")
    assert store.renew(running) == [2]


def test_the_first_follower_keeps_the_task_alive_immediately(store: Store) -> None:
    store.sweep()
    store.submit("a", linger_ms=2000)
    store.world.advance(1500)
    store.follow("a", keep_alive=True)
    store.world.advance(1500)
    store.sweep()
    assert store.state("a") == "queued"


# ---- what a sweep ends ----------


@pytest.mark.parametrize(
    ("limits", "end"),
    [
        ({"timeout_ms": 3000}, ("failed", "TOTAL_TIMEOUT")),
        ({"wait_ms": 3000}, ("failed", "QUEUE_TIMEOUT")),
        ({"linger_ms": 3000}, ("cancelled", "CANCELLED")),
        ({"timeout_ms": 3000, "wait_ms": 3000}, ("failed", "TOTAL_TIMEOUT")),
    ],
)
def test_a_waiting_task_ends_at_its_limit_to_the_millisecond(
    store: Store, limits: dict[str, Any], end: tuple[str, str]
) -> None:
    store.submit("a", **limits)
    assert store.sweep() == (1000, 0)
    store.pass_time(2000)
    store.world.advance(999)
    assert store.sweep() == (1, 0), "the next sweep is due at that instant"
    store.world.advance(1)
    assert store.sweep()[1] == 1
    assert store.end("a") == end


@pytest.mark.parametrize("limits", [{"timeout_ms": 2000}, {"run_ms": 2000}])
def test_a_running_task_ends_at_its_deadline_and_its_worker_is_stopped(
    store: Store, limits: dict[str, Any]
) -> None:
    store.sweep()
    store.heard()
    grant = store.run("a", **limits)
    store.renew(grant)
    store.pass_time(1999)
    assert store.state("a") == "executing"
    store.pass_time(1)
    assert store.end("a") == ("failed", "TOTAL_TIMEOUT")
    assert store.heard() == [("stop", "a", str(grant.epoch), "timeout")]
    assert store.slots() == {"a": GRACE_MS}


@pytest.mark.parametrize(("renewed", "lasts_ms", "tries"), [(False, 3000, 0), (True, 15_000, 1)])
def test_a_lease_that_is_not_renewed_ends_and_counts_as_a_try_if_the_worker_had_begun(
    store: Store, renewed: bool, lasts_ms: int, tries: int
) -> None:
    store.configure(1)
    store.sweep()
    grant = store.run("a")
    if renewed:
        store.renew(grant)
    store.pass_time(lasts_ms - 1)
    assert store.state("a") == "executing"
    store.pass_time(1)
    assert store.state("a") == "queued"
    store.offer("m")
    (grant,) = store.take()
    assert (grant.attempt, grant.tries) == (2, tries)


@pytest.mark.parametrize("more", [{}, {"max_tries": 1}])
def test_a_lost_lease_ends_a_task_that_may_not_be_tried_again(store: Store, more: dict[str, int]) -> None:
    store.sweep()
    grant = store.run("a", **more)
    if not more:
        store.append(grant, 2)
    store.pass_time(3000)
    assert store.end("a") == ("failed", "WORKER_LOST")


def test_many_tasks_are_swept_a_hundred_at_a_time(store: Store) -> None:
    store.sweep()
    for n in range(250):
        store.submit(f"t{n}", timeout_ms=1000)
    store.world.advance(1000)
    assert [store.sweep() for _ in range(4)] == [(0, 100), (0, 100), (1000, 50), (1000, 0)]


# ---- Redis was unavailable, or its clock moved ----------


def test_time_that_redis_was_down_is_not_lease_time(store: Store) -> None:
    store.sweep()
    running = store.run("running")
    store.renew(running)
    store.run("unknown")
    stopping = store.run("stopping")
    store.cancel("stopping")
    store.submit("read", linger_ms=4000, user="v")
    store.submit("late", timeout_ms=10_000, user="v")
    store.world.advance(120_000)
    store.sweep()
    states = [store.state(n) for n in ("running", "unknown", "read", "late")]
    assert states == ["executing", "executing", "queued", "failed"], "a deadline does not move"
    assert store.slots() == {"unknown": 2500, "running": 14_500, "stopping": GRACE_MS - 500}
    store.accept("new")
    assert store.renew(running) == [1]
    store.pass_time(3000)
    assert store.state("unknown") == "queued"
    assert store.finish(stopping).outcome == "late"


@pytest.mark.parametrize("gap_ms", GAPS_MS)
def test_grants_and_readers_outlive_the_time_in_which_redis_was_unavailable(
    store: Store, gap_ms: int
) -> None:
    """Another replica sweeps first; the owner returns a second and a half later, and renews."""
    other = store.replica("r2")
    store.sweep()
    quiet, writing = store.run("quiet"), store.run("writing", linger_ms=3000)
    store.append(writing, 2)
    store.submit("waits", linger_ms=3000)
    store.renew(read=["waits", "writing"])
    for ms in (900, gap_ms, 700, 700):
        store.world.advance(ms)
        other.sweep()
    assert store.renew(quiet, writing, read=["waits", "writing"]) == [1, 1]
    assert [store.state(task) for task in ("quiet", "writing", "waits")] == [
        "executing",
        "executing",
        "queued",
    ]


@pytest.mark.parametrize("late_ms", [1600, 10_000])
def test_sweeps_that_are_always_late_end_a_dead_lease_all_the_same(store: Store, late_ms: int) -> None:
    store.sweep()
    store.renew(store.run("dead"))
    store.submit("left", linger_ms=3000, user="v")
    sweeps = 0
    while store.state("dead") == "executing" or store.state("left") == "queued":
        store.world.advance(late_ms)
        store.offer("m")
        store.sweep()
        sweeps += 1
        assert sweeps <= 31, "each pass brings its end half a second nearer"


def test_offers_outlive_the_gap_if_they_held_before_it(store: Store) -> None:
    gone = store.replica("gone")
    store.sweep()
    gone.offer("m2", hold_ms=3000)
    grant = store.run("a", waiting=True)
    store.renew(grant)
    store.pass_time(4000)
    store.world.advance(20_000)
    store.sweep()
    assert store.reject("b", "m2").reason == "no_worker"
    assert store.requeue(grant).outcome == "queued", "its model is still offered"


def test_a_deadline_ends_its_task_in_the_pass_after_the_gap(store: Store) -> None:
    store.sweep()
    store.renew(store.run("a", timeout_ms=3000))
    store.submit("b", wait_ms=3000, user="v")
    store.world.advance(4000)
    store.sweep()
    assert (store.end("a")[1], store.end("b")[1]) == ("TOTAL_TIMEOUT", "QUEUE_TIMEOUT")


def test_a_grant_of_a_lost_reply_is_repeated_after_the_gap(store: Store) -> None:
    store.configure(1)
    store.sweep()
    grant = store.run("a")
    store.submit("b")
    store.cancel("a")
    answer = store.finish(grant, want=1, nonce="n")
    assert answer.granted == ["b"]
    store.world.advance(4000)
    store.sweep()
    assert store.finish(grant, want=1, nonce="n").grants == answer.grants
