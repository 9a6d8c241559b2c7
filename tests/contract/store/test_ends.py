"""A task ends once: finish, cancel and requeue, their repetitions, and retries before the first output."""

from typing import Any

import pytest
from tests.contract.store.store import Store, fragment

GRACE_MS = 60_000
BAD_DAY = fragment("Bad day", "UPSTREAM_ERROR")


# ---- finish ----------


def test_a_finish_ends_the_task_and_takes_for_its_slot(store: Store) -> None:
    store.configure(1)
    grant = store.run("a")
    store.submit("b")
    answer = store.finish(grant, chunks=[b"1", b"2"], want=1, nonce="n")
    assert (answer.outcome, answer.event_id, answer.granted) == ("ok", grant.id(4), ["b"])
    assert store.finish(grant, chunks=[b"1", b"2"], want=1, nonce="n") == answer, "repeated"
    assert store.kinds("a") == ["start", "chunk", "chunk", "done"]
    assert (store.state("a"), list(store.slots())) == ("completed", ["b"])


def test_a_finish_with_lost_events_returns_the_end_of_the_log_and_changes_nothing(store: Store) -> None:
    grant = store.run("a")
    answer = store.finish(grant, 4)
    assert (answer.outcome, answer.top, store.state("a")) == ("hole", 1, "executing")
    assert store.finish(grant, 2, chunks=[b"1", b"2"]).outcome == "ok"


def test_a_finish_of_an_old_attempt_is_stale_and_still_takes(store: Store) -> None:
    old = store.run("a")
    store.requeue(old)
    store.take()
    store.submit("b")
    store.submit("c")
    answer = store.finish(old, want=1, nonce="n")
    assert (answer.outcome, answer.granted) == ("stale", ["b"])
    assert store.finish(old, want=1, nonce="n") == answer, "repeated"
    assert store.state("a") == "executing"


def test_a_slot_that_is_kept_at_the_end_is_free_when_the_worker_has_stopped(store: Store) -> None:
    grant = store.run("a")
    store.submit("b")
    for _ in range(2):
        store.finish(grant, state="failed", slot_ms=5000)
    assert (store.state("a"), list(store.slots())) == ("failed", ["a"])
    assert store.finish(grant, want=1).granted == ["b"]
    assert list(store.slots()) == ["b"]


def test_a_full_store_ends_what_runs(store: Store) -> None:
    store.world.bound(max_outbox=2)
    grants = [store.run(name) for name in "abcd"]
    for grant in grants[:2]:
        store.finish(grant)
    store.sweep()
    assert store.scheduler.outbox_full
    for grant in grants[2:]:
        assert store.finish(grant).outcome == "ok"
    store.world.check()
    store.record_first(3)
    store.sweep()
    assert not store.scheduler.outbox_full
    store.accept("e")
    store.world.accepted[:] = ["e"]
    store.world.empty()


# ---- cancel ----------


def test_a_queued_task_is_cancelled_immediately(store: Store) -> None:
    store.submit("a")
    answer = store.cancel("a")
    assert (answer.outcome, answer.state, answer.kind) == ("ended", "cancelled", "cancelled")
    assert answer.event_id == store.last("a").id
    again = store.cancel("a")
    assert (again.outcome, again.state) == ("over", "cancelled")
    assert store.take() == []
    assert store.cancel("nobody").outcome == "unknown"


def test_a_running_task_is_cancelled_immediately_and_its_replica_is_notified(store: Store) -> None:
    store.configure(1)
    store.heard()
    grant = store.run("a", follow=True)
    store.append(grant, 2)
    end = store.replica("r2").cancel("a").event_id
    event, stop = store.heard()
    assert event[:4] == ("event", "a", end, "cancelled")
    assert stop == ("stop", "a", str(grant.epoch), "client")
    assert store.slots() == {"a": GRACE_MS}, "the worker still runs it"
    assert store.append(grant, 3) == ("stale", 0)
    assert store.ttl_ms("a") == -1
    assert store.finish(grant).outcome == "late"
    assert store.slots() == {}
    assert store.ttl_ms("a") > 0


def test_a_stop_that_is_never_answered_frees_the_slot_after_a_grace(store: Store) -> None:
    """The record of a task that holds a slot does not expire, however short its time: the slot could not be freed."""
    store.configure(1)
    store.sweep()
    store.run("a", keep_ms=1000)
    store.cancel("a")
    assert store.ttl_ms("a") == -1
    store.pass_time(GRACE_MS)
    assert store.slots() == {}
    assert 0 < store.ttl_ms("a") <= 1000


# ---- requeue ----------


def test_a_task_returns_to_its_old_place(store: Store) -> None:
    grant = store.run("a")
    store.world.advance(1)
    store.submit("b")
    assert store.requeue(grant).outcome == "queued"
    assert store.requeue(grant).outcome == "stale", "repeated"
    assert store.taken(want=2) == ["a", "b"]


@pytest.mark.parametrize("renewed", [False, True])
def test_a_task_is_tried_three_times(store: Store, renewed: bool) -> None:
    store.submit("a")
    for attempt in (1, 2, 3):
        (grant,) = store.take()
        assert (grant.attempt, grant.tries) == (attempt, attempt - 1)
        if renewed:
            store.renew(grant)
        answer = store.requeue(grant, "failed", begun=not renewed, end=BAD_DAY)
    assert (answer.outcome, answer.event_id, answer.kind) == ("ended", store.last("a").id, "error")
    assert b"Bad day" in answer.data
    assert store.requeue(grant, "failed", begun=True, end=BAD_DAY) == answer, "repeated"
    assert store.end("a") == ("failed", "UPSTREAM_ERROR")


def test_the_end_of_a_task_that_began_with_its_submit_can_be_repeated(store: Store) -> None:
    (grant,) = store.accept("a", want=1).grants
    answer = store.finish(grant, nonce="n")
    assert store.finish(grant, nonce="n") == answer


@pytest.mark.parametrize(
    ("tries", "cause", "begun", "state"),
    [
        (1, "lost", True, "failed"),
        (1, "lost", False, "failed"),  # a renewal may have been lost with its replica
        (1, "failed", True, "failed"),
        (1, "declined", False, "queued"),
        (2, "failed", True, "queued"),
        (2, "lost", False, "queued"),
        (0, "lost", True, "queued"),
    ],
)
def test_a_task_of_one_try_is_never_begun_twice(
    store: Store, tries: int, cause: Any, begun: bool, state: str
) -> None:
    grant = store.run("a", max_tries=tries)
    assert grant.max_tries == tries
    store.requeue(grant, cause, begun=begun)
    assert store.state("a") == state


def test_a_task_has_as_many_tries_as_it_asks_for(store: Store) -> None:
    store.submit("a", max_tries=5)
    for number in range(5):
        store.requeue(store.take()[0], "failed", begun=True)
        assert store.state("a") == ("failed" if number == 4 else "queued")


def test_a_declined_grant_and_one_that_never_began_cost_no_try(store: Store) -> None:
    store.submit("a")
    for _ in range(5):
        for cause, begun in (("declined", True), ("lost", False)):
            assert store.requeue(store.take()[0], cause, begun=begun).outcome == "queued"  # type: ignore[arg-type]
    assert store.task("a").tries == 0


def test_after_output_there_is_no_retry(store: Store) -> None:
    grant = store.run("a")
    store.append(grant, 2)
    ended = store.requeue(grant)
    assert (ended.outcome, ended.event_id) == ("ended", store.last("a").id)
    assert store.requeue(grant).event_id == ended.event_id, "repeated"
    assert store.end("a") == ("failed", "WORKER_LOST")


def test_grants_of_a_task_name_the_worker_that_it_may_have_killed(store: Store) -> None:
    store.submit("a")
    (grant,) = store.take(worker="w1")
    assert grant.last_lost == ""
    for suspicion in ("of the first", ""):
        assert store.requeue(grant, "lost", begun=True, suspicion=suspicion).outcome == "queued"
        (grant,) = store.take(worker="w2")
        assert grant.last_lost == "of the first"
    assert store.requeue(grant, "declined", unsent=True, aside_ms=2000).outcome == "queued"
    assert not store.take(worker="w2"), "it stands aside"
    store.pass_time(3000)
    (grant,) = store.take(worker="w2")
    assert grant.last_lost == "of the first"
    assert store.requeue(grant, "declined").outcome == "queued"
    (grant,) = store.take(worker="w2")
    assert grant.last_lost == "", "its worker has survived it"
    assert store.requeue(grant, "lost", begun=True).outcome == "ended", "its tries are used up"


def test_a_task_that_lost_the_only_worker_waits_for_one_during_the_grace(store: Store) -> None:
    for grant in [store.run(name, waiting=True) for name in ("a", "b")]:
        store.offer(withdrawn=["m"])
        assert store.requeue(grant, "lost", begun=True, grace_ms=4000).outcome == "queued"
    store.pass_time(3000)
    store.offer("m")
    assert store.taken() == ["a"]
    store.offer(withdrawn=["m"])
    store.pass_time(2000)
    assert store.end("b") == ("failed", "NO_WORKER")
    assert store.state("a") == "executing"


def test_without_workers_a_sync_task_ends_and_an_async_task_waits(store: Store) -> None:
    waiting, alone = store.run("waiting", waiting=True), store.run("alone")
    store.offer(withdrawn=["m"])
    assert store.requeue(waiting).outcome == "ended"
    assert store.end("waiting") == ("failed", "NO_WORKER")
    assert store.requeue(alone).outcome == "queued"


def test_running_is_not_waiting(store: Store) -> None:
    """The limit of the wait continues where it stopped at the grant."""
    store.sweep()
    store.submit("a", wait_ms=5000)
    store.pass_time(3000)
    (grant,) = store.take()
    store.renew(grant)
    store.pass_time(8000)
    assert store.requeue(grant, "failed").outcome == "queued"
    store.pass_time(1000)
    assert store.state("a") == "queued"
    store.pass_time(1000)
    assert store.end("a") == ("failed", "QUEUE_TIMEOUT")


def test_the_history_of_attempts_can_be_read_whatever_the_worker_is_called(store: Store) -> None:
    store.submit("a")
    store.requeue(store.take(worker="we|ird;name")[0])
    assert store.task("a").history == [("we|ird;name", "gone")]
