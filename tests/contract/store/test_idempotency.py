"""Idempotency keys: one key, one task. Some ends release the key."""

from typing import Any

import pytest
from tests.contract.store.store import Accepted, Answer, Existing, Rejected, Store, idempotency_key, uses

pytestmark = pytest.mark.feature("idempotency")

DAY_MS = 86_400_000
KEY, OTHERWISE, OTHER = (
    idempotency_key("order-7"),
    idempotency_key("order-7", "other"),
    idempotency_key("order-8"),
)


@pytest.fixture(autouse=True)
def day(store: Store) -> None:
    """The model is offered for a long time."""
    store.offer("m", hold_ms=DAY_MS)


def submit(store: Store, task: str, key: str = KEY, **more: Any) -> Answer:
    return store.submit(task, idempotency=key, **more)


def again(store: Store, key: str = KEY, **more: Any) -> Existing:
    return store.known("again", idempotency=key, **more)


def is_free(store: Store, task: str) -> bool:
    """Submit another task with the key. Return whether it is accepted."""
    return isinstance(submit(store, task), Accepted)


def test_a_key_names_the_first_task_while_it_waits_runs_and_when_it_has_ended(store: Store) -> None:
    other = store.replica("r2")
    first = store.accept("first", idempotency=KEY, linger_ms=36_000)
    known = again(other)
    assert (known.task_id, known.state, known.enqueued_ms) == ("first", "queued", first.enqueued_ms)
    assert known.place.position == 1
    (grant,) = store.take()
    assert again(other).state == "executing"
    store.finish(grant)
    assert (again(other).task_id, again(other).state) == ("first", "completed")


def test_another_request_with_the_key_is_rejected_and_changes_nothing(store: Store) -> None:
    submit(store, "first")
    assert store.reject("second", idempotency=OTHERWISE).reason == "other"
    assert again(store).task_id == "first"


def test_a_submit_of_unknown_outcome_is_left_to_its_repetition(store: Store) -> None:
    submit(store, "first", linger_ms=36_000)
    assert store.cancel("first", tombstone_ms=60_000).outcome == "over"
    assert again(store).state == "queued"
    store.world.advance(36_001)  # or it is never repeated
    store.sweep()
    assert store.state("first") == "cancelled"
    assert is_free(store, "second")


@pytest.mark.feature("limits")
def test_a_repetition_takes_nothing_of_limits_and_needs_no_worker(store: Store) -> None:
    limits: dict[str, Any] = {"user": "k/a", "key_limits": {"requests_per_day": 1}, "uses": uses("k/a", 1)}
    submit(store, "first", **limits)
    store.offer(withdrawn=["m"])
    store.configure(max_length=1)
    before = store.world.contents()
    for _ in range(3):
        known = again(store, **limits)
        assert (known.task_id, known.requests is not None) == ("first", True)
    assert store.world.contents() == before


@pytest.mark.parametrize(
    ("code", "retryable", "released"),
    [
        *(
            (code, False, True)
            for code in ("WORKER_LOST", "NO_WORKER", "MODEL_TOO_BUSY", "STORE_LOST", "TOTAL_TIMEOUT")
        ),
        ("OUT_OF_PAPER", True, True),
        *(
            (code, False, False)
            for code in ("OUT_OF_PAPER", "CONTEXT_LENGTH", "BAD_REQUEST", "OUTPUT_TOO_LARGE")
        ),
    ],
)
def test_a_failure_that_a_retry_may_fix_releases_the_key(
    store: Store, code: str, retryable: bool, released: bool
) -> None:
    submit(store, "first")
    store.fail(store.take()[0], code, retryable=retryable)
    assert is_free(store, "second") == released


@pytest.mark.parametrize("with_the_end", [True, False])
def test_after_output_the_key_stays(store: Store, with_the_end: bool) -> None:
    submit(store, "first")
    (grant,) = store.take()
    if not with_the_end:
        store.append(grant, 2)
    store.fail(grant, "WORKER_LOST", retryable=True, chunks=[b"{}"])
    assert again(store).state == "failed"


def test_a_key_whose_readers_left_is_free_while_the_worker_still_stops(store: Store) -> None:
    submit(store, "first", linger_ms=36_000)
    (grant,) = store.take()
    store.append(grant, 2)
    for _ in range(36):
        store.renew(grant)
        store.pass_time(1000)
    store.pass_time(1000)
    assert store.state("first") == "cancelled"
    assert is_free(store, "second")
    store.finish(grant, 3)
    assert again(store).task_id == "second", "the late end of the first does not release the second's"


def test_task_and_log_are_kept_as_long_as_the_key_from_the_submission_on(store: Store) -> None:
    submit(store, "first", keep_ms=300_000)
    store.world.advance(3_600_000)
    store.finish(store.take()[0])
    for kind in ("task", "log"):
        assert DAY_MS - 3_660_000 < store.ttl_ms("first", kind) <= DAY_MS - 3_600_000  # type: ignore[arg-type]


def test_an_expired_key_stays_for_a_minute_after_the_end(store: Store) -> None:
    key = idempotency_key("order-7", ttl_ms=60_000)
    submit(store, "first", key, keep_ms=1000)
    store.world.advance(600_000)
    assert again(store, key).state == "queued"
    store.finish(store.take()[0])
    assert 1000 < store.ttl_ms("first") <= 60_000
    assert again(store, key).state == "completed"


def test_a_deleted_task_releases_its_key(store: Store) -> None:
    submit(store, "first")
    store.finish(store.take()[0])
    store.delete("first")
    assert is_free(store, "second")
    store.world.empty()


def test_a_task_whose_record_was_dropped_is_known_all_the_same(store: Store) -> None:
    submit(store, "first")
    store.finish(store.take()[0])
    store.world.bound(max_retained_bytes=0)
    store.sweep()
    assert (again(store).task_id, again(store).state) == ("first", "")
    store.world.empty()


def test_a_user_has_a_number_of_keys_that_return_evenly_and_others_have_their_own(store: Store) -> None:
    def bring(number: int, user: str = "acme") -> str:
        key = idempotency_key(f"{user}-{number}", ttl_ms=60_000, most=4, period_ms=60_000)
        answer = submit(store, f"{user}-{number}-{store.world.now_ms}", key, user=user)
        return f"{answer.reason} {answer.retry_ms}" if isinstance(answer, Rejected) else type(answer).__name__

    assert [bring(n) for n in range(5)] == ["Accepted"] * 4 + ["idempotency_keys 15000"]
    store.world.advance(1)
    assert bring(3) == "Existing", "a known one is no new one"
    assert bring(0, "other") == "Accepted"
    store.accept("none", user="acme")
    store.world.advance(14_989)
    assert bring(4) == "idempotency_keys 10"
    store.world.advance(10)
    assert [bring(4), bring(5)] == ["Accepted", "idempotency_keys 15000"]


def test_a_rejected_task_takes_no_key(store: Store) -> None:
    for n in range(9):
        key = idempotency_key(f"x-{n}", ttl_ms=60_000, most=4, period_ms=60_000)
        assert store.reject(f"x-{n}", "nobody-offers-it", idempotency=key).reason == "no_worker"
    assert is_free(store, "first")
