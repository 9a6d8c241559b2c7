"""The archive: an ended task and its request are kept until the archive has them."""

from typing import Any

import pytest
from tests.contract.store.store import Store

pytestmark = pytest.mark.feature("archive")

HOUR_MS = 3_600_000


def end(store: Store, task: str, **more: Any) -> None:
    grant = store.run(task, **{"keep_ms": 60_000, "archive_ms": 72 * HOUR_MS, **more})
    store.finish(grant, chunks=[b"x" * 5000])
    store.offer("m")


def left_ms(store: Store, task: str) -> tuple[int, int]:
    """How long its record and log are still kept, the shorter and the longer time."""
    both = sorted((store.ttl_ms(task), store.ttl_ms(task, "log")))
    return both[0], both[1]


def test_a_task_is_kept_as_long_as_the_archive_would_until_that_has_it(store: Store) -> None:
    end(store, "a")
    end(store, "other", archive_ms=0)
    assert store.archive() == ["a"]
    assert left_ms(store, "a")[0] > 71 * HOUR_MS
    assert left_ms(store, "other")[1] <= 60_000
    both = store.kept_bytes()
    assert [store.archived("a"), store.archived("a")] == [1, 0]
    assert left_ms(store, "a")[1] <= 60_000
    assert (store.kept_bytes(), store.archive()) == (both, [])
    store.pass_time(62_000)
    assert store.kept_bytes() == 0


def test_a_task_expires_immediately_when_it_is_archived_late(store: Store) -> None:
    end(store, "a")
    store.sweep()
    store.world.advance(2 * HOUR_MS)
    store.archived("a")
    assert left_ms(store, "a")[1] <= 1000
    store.world.empty()


@pytest.mark.parametrize("runs", [True, False])
def test_the_request_is_kept_with_it_and_goes_with_the_end(store: Store, runs: bool) -> None:
    asked: dict[str, Any] = {"payload": b'{"secret":1}', "archive_ms": HOUR_MS, "archive_request": True}
    if runs:
        grant = store.run("a", **asked)
        store.append(grant, 2)
        assert (store.payload("a"), store.stored_bytes()) == (None, 0)
        store.finish(grant, 3)
    else:
        store.submit("a", **asked)
        store.cancel("a")
    assert (store.archive(), store.request("a")) == (["a"], b'{"secret":1}')
    assert store.ttl_ms("a", "request") > 0
    store.archived("a")
    assert store.request("a") is None
    store.sweep()


def test_a_task_is_archived_once_its_worker_has_stopped(store: Store) -> None:
    grant = store.run("a", archive_ms=HOUR_MS)
    store.cancel("a")
    assert store.archive() == []
    store.finish(grant, 1, state="cancelled")
    assert store.archive() == ["a"]


def test_beyond_the_budget_it_is_dropped_as_others_are(store: Store) -> None:
    store.world.bound(max_retained_bytes=20_000)
    for number in range(6):
        end(store, f"a{number}", archive_request=True)
        store.pass_time(1000)
    assert store.kept_bytes() <= 20_000
    assert (store.state("a0"), store.request("a0")) == ("", None)
    assert store.archived("a0", "a5") == 2
    assert store.state("a5")
    store.world.empty()


def test_a_task_that_was_read_before_it_was_archived_expires_early_when_it_is(store: Store) -> None:
    end(store, "a", after_read_ms=20_000)
    store.mark_read("a")
    assert left_ms(store, "a")[0] > 71 * HOUR_MS, "the archive does not have it"
    store.archived("a")
    assert left_ms(store, "a")[1] <= 20_000
    end(store, "short", after_read_ms=120_000)
    store.mark_read("short")
    store.archived("short")
    assert left_ms(store, "short")[1] <= 60_000, "reading makes nothing longer"
    store.sweep()


@pytest.mark.feature("idempotency")
def test_a_deleted_task_is_not_archived(store: Store) -> None:
    grant = store.run("a", archive_ms=72 * HOUR_MS, archive_log=True)
    assert store.delete("a") is False
    store.finish(grant)
    assert store.archive() == []
    assert left_ms(store, "a")[1] <= 1000
