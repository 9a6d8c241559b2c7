"""Ended tasks are kept for the time they ask for, within a budget; a task is erased or deleted as soon as its slot is free."""

from typing import Any

from tests.contract.store.store import Store

HOUR_MS = 3_600_000


def ended(store: Store, *ids: str, size: int = 5000, **more: Any) -> None:
    """Tasks that end one second after the other, with so much output."""
    for task in ids:
        store.finish(store.run(task, **more), chunks=[b"x" * size])
        store.offer("m")
        store.pass_time(1000)


def there(store: Store, *ids: str) -> list[str]:
    return [task for task in ids if store.position(task)]


def forget(store: Store, *ids: str) -> None:
    """The store may have dropped these."""
    store.world.accepted[:] = [task for task in store.world.accepted if task not in ids]


def test_an_ended_task_is_kept_as_long_as_it_asked(store: Store) -> None:
    store.finish(store.run("a", keep_ms=5000))
    for kind in ("task", "log"):
        assert 4000 < store.ttl_ms("a", kind) <= 5000  # type: ignore[arg-type]


def test_ended_tasks_are_counted_until_they_expire(store: Store) -> None:
    store.sweep()
    ended(store, "a", "b", keep_ms=60_000)
    ended(store, "long", keep_ms=24 * HOUR_MS)
    assert 15_000 < store.kept_bytes() < 40_000
    store.world.check()
    store.pass_time(60_000)
    assert 5000 < store.kept_bytes() < 14_000, "the long one is there"
    store.pass_time(24 * HOUR_MS, step_ms=HOUR_MS)
    store.pass_time(3000)
    assert store.kept_bytes() == 0


def test_beyond_the_budget_tasks_that_ended_first_are_dropped_first(store: Store) -> None:
    """However long their clients want them: one that asks for a day does not cost others their minutes."""
    store.world.bound(max_retained_bytes=60_000)
    store.sweep()
    greedy, others = [f"greedy{n}" for n in range(12)], [f"other{n}" for n in range(3)]
    ended(store, *greedy, keep_ms=24 * HOUR_MS)
    ended(store, *others, keep_ms=60_000)
    assert store.kept_bytes() <= 60_000
    gone = len(greedy) - len(there(store, *greedy))
    assert 3 <= gone < 12
    assert there(store, *greedy) == greedy[gone:]
    assert there(store, *others) == others
    assert [store.read(task) for task in greedy[:gone]] == [[]] * gone, "log and record go together"
    assert store.follow(greedy[0]) is None
    store.world.empty()


def test_metadata_counts_too(store: Store) -> None:
    store.submit("small")
    store.cancel("small")
    small = store.kept_bytes()
    store.submit("large", metadata='"' + "x" * 8000 + '"')
    store.cancel("large")
    assert store.kept_bytes() - small > 8000


def test_a_pass_drops_a_bounded_number_and_the_next_follows_immediately(store: Store) -> None:
    store.sweep()
    ids = [f"t{n}" for n in range(1200)]
    for task in ids:
        store.submit(task, user=task)
        store.cancel(task)
    store.world.bound(max_retained_bytes=0)
    found = [(store.sweep()[0] == 0, len(there(store, *ids))) for _ in range(4)]
    assert found[:3] == [(True, 700), (True, 200), (found[2][0], 0)]
    assert not found[3][0]
    store.world.empty()


def test_a_running_task_is_never_dropped(store: Store) -> None:
    """One that was cancelled holds its slot until its worker has stopped, and its record as long."""
    store.world.bound(max_retained_bytes=0)
    store.sweep()
    grant = store.run("a")
    store.renew(grant)
    store.cancel("a")
    store.submit("queued")
    store.pass_time(2000)
    assert (store.state("a"), store.state("queued")) == ("cancelled", "queued")
    store.finish(grant, state="cancelled")
    store.pass_time(2000)
    assert (store.state("a"), store.slots()) == ("", {})
    forget(store, "a")
    store.world.empty()


# ---- erasing, deleting, reading ----------


def test_a_task_that_its_worker_still_has_is_erased_when_it_is_released(store: Store) -> None:
    stopping = store.run("stopping", user="u")
    store.cancel("stopping")
    for _ in range(2):
        assert store.erase("u") == (0, 1)
    assert store.finish(stopping).outcome == "late"
    assert store.erase("u") == (1, 0)
    assert not [name for name in store.world.names() if "stopping" in name]
    assert store.erase("u") == (0, 0)
    store.world.empty()


def test_an_ended_task_is_deleted_immediately(store: Store) -> None:
    for task in "ab":
        ended(store, task, keep_ms=60_000)
    assert store.kept_bytes() > 9000
    assert store.delete("a")
    assert store.delete("b")
    assert there(store, "a") == []
    store.pass_time(62_000)
    assert store.kept_bytes() == 0
    assert store.delete("a"), "it is gone"
    store.world.empty()


def test_a_waiting_or_running_task_is_deleted_as_soon_as_it_has_ended(store: Store) -> None:
    grant = store.run("runs")
    store.submit("waits")
    for task in ("runs", "waits"):
        assert store.delete(task) is False
        store.cancel(task)
    assert store.ttl_ms("runs") == -1, "its worker is still to stop"
    assert not store.delete("runs")
    store.finish(grant, 1, state="cancelled")
    assert max(store.ttl_ms("runs"), store.ttl_ms("waits")) <= 1000
    store.world.empty()


def test_a_task_whose_end_was_read_is_kept_for_a_shorter_time_if_it_asked_for_that(store: Store) -> None:
    ended(store, "a", keep_ms=60_000, after_read_ms=20_000)
    ended(store, "b", keep_ms=60_000)
    for task in ("a", "b", "unknown"):
        store.mark_read(task)
    assert max(store.ttl_ms("a"), store.ttl_ms("a", "log")) <= 20_000
    assert store.ttl_ms("b") > 50_000
    both = store.kept_bytes()
    store.mark_read("a")
    assert store.kept_bytes() == both
    store.pass_time(22_000)
    assert 0 < store.kept_bytes() < both
    store.world.empty()


def test_an_end_that_was_read_before_its_slot_was_free_expires_early(store: Store) -> None:
    grant = store.run("a", keep_ms=48 * HOUR_MS, after_read_ms=20_000)
    store.cancel("a")
    store.mark_read("a")
    assert store.state("a"), "the slot is not free"
    store.finish(grant, 1, state="cancelled")
    assert 0 < store.ttl_ms("a") <= 20_000
