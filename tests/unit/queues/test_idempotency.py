"""Idempotency keys in the scripts: one key, one task; what ends lets the key go, and what does not."""

from typing import Any

import pytest
from tests.support.audit import Snapshot, audit
from tests.support.direct import World
from tests.support.pool import Pool

from fairlane.queues.failures import FAILURES
from fairlane.queues.idempotency import RELEASES_KEY, idempotency_name, pack
from fairlane.queues.limits import pack as pack_limits
from fairlane.queues.tasks import End, ExistingTask, Grant, Rejection, State, Submitted, Used

DAY_MS = 86_400_000
NAME = idempotency_name("key", "user", "order-7")
ASKED = pack(NAME, "print", DAY_MS)
OTHERWISE = pack(NAME, "other", DAY_MS)


def ready(world: World) -> Pool:
    """A replica of a pool whose model is offered for a long time."""
    pool = Pool(world)
    pool.offer("m", hold_ms=DAY_MS)
    return pool


def submit(pool: Pool, task: str, named: str = ASKED, **more: Any) -> Submitted | ExistingTask | Rejection:
    return pool.submit(task, idempotency=named, **more)


def again(pool: Pool, task: str = "again", **more: Any) -> ExistingTask:
    """Submit the same once more, which is known."""
    answer = submit(pool, task, **more)
    assert isinstance(answer, ExistingTask), answer
    return answer


def fail(pool: Pool, grant: Grant, code: str, *, retryable: bool = False, chunks: int = 0) -> None:
    """End a granted task in failure, `chunks` of output in the last call."""
    data = b'{"error":"it is no good","code":"%b","retryable":%b}' % (
        code.encode(),
        b"true" if retryable else b"false",
    )
    end = End(State.FAILED, code, ("error", data), Used(), pool.scheduler.nonce())
    pool.scheduler.finish(grant, 2, [("chunk", b"{}")] * chunks, end).result()


def named(world: World) -> dict[str, str]:
    """The tasks that keys name, by the names of the keys."""
    return {
        parts[0]: value.decode().split()[1] for parts, value in Snapshot(world).by_kind["idempotency"].items()
    }


def test_a_key_names_the_first_task_while_it_waits_runs_and_when_it_has_ended(world: World) -> None:
    here, there = ready(world), Pool(world, "r2", set_up=False)
    first = submit(here, "first", linger_ms=36_000)
    assert isinstance(first, Submitted)
    known = again(there)
    assert (known.task_id, known.state, known.enqueued_ms) == ("first", State.QUEUED, first.enqueued_ms)
    assert known.place.position == 1
    (grant,) = here.take()
    assert again(there).state is State.EXECUTING
    here.finish(grant)
    assert again(there).state is State.COMPLETED
    assert named(world) == {NAME: "first"}
    audit(world, ["first"])


def test_another_request_with_the_key_is_rejected_and_changes_nothing(world: World) -> None:
    pool = ready(world)
    submit(pool, "first")
    answer = submit(pool, "second", OTHERWISE)
    assert isinstance(answer, Rejection)
    assert answer.reason == "other"
    assert again(pool).task_id == "first"
    audit(world, ["first"])


def test_each_user_and_each_callers_key_has_keys_of_its_own() -> None:
    names = [
        idempotency_name(*whose)
        for whose in (("k", "u", "x"), ("k", "u2", "x"), ("k2", "u", "x"), ("ku", "", "x"))
    ]
    assert len(set(names)) == len(names)
    assert idempotency_name("a", "bc", "d") != idempotency_name("ab", "c", "d")


def test_a_submit_of_unknown_outcome_is_left_to_its_repetition(world: World) -> None:
    pool = ready(world)
    submit(pool, "first", linger_ms=36_000)
    assert pool.cancel("first", tombstone_ms=60_000).outcome == "over"
    assert again(pool).state is State.QUEUED
    world.advance(36_001)  # or nobody does
    pool.sweep()
    assert pool.record("first")["state"] == "cancelled"
    assert isinstance(submit(pool, "second"), Submitted)
    audit(world, ["first", "second"])


def test_a_repetition_takes_nothing_of_limits_and_uses_and_needs_no_worker(world: World) -> None:
    pool = ready(world)
    limits = pack_limits({"requests_per_day": 1})
    whose: dict[str, Any] = {"user": "k/a", "key_limits": limits, "uses": "1 60000 site/a"}
    assert isinstance(submit(pool, "first", **whose), Submitted)
    before = Snapshot(world).by_kind
    pool.offer(withdrawn=["m"])
    pool.configure(max_length=1)
    for number in range(3):
        known = again(pool, f"again{number}", **whose)
        assert known.task_id == "first"
        assert known.rate_limits is not None
        assert (known.rate_limits.requests or known.rate_limits.tokens) is not None
    after = Snapshot(world).by_kind
    for kind in ("limit", "uses", "task", "payload", "waits"):
        assert after[kind] == before[kind], kind


@pytest.mark.parametrize("code", sorted(RELEASES_KEY))
def test_a_failure_that_a_retry_may_fix_releases_the_key_if_there_was_no_output(
    world: World, code: str
) -> None:
    pool = ready(world)
    submit(pool, "first")
    (grant,) = pool.take()
    fail(pool, grant, code)
    assert named(world) == {}
    assert isinstance(submit(pool, "second"), Submitted)
    audit(world, ["first", "second"])


def test_a_worker_may_report_that_its_failure_is_retryable(world: World) -> None:
    pool = ready(world)
    submit(pool, "first")
    fail(pool, pool.take()[0], "OUT_OF_PAPER", retryable=True)
    assert named(world) == {}
    submit(pool, "second")
    fail(pool, pool.take()[0], "OUT_OF_PAPER")
    assert named(world) == {NAME: "second"}


@pytest.mark.parametrize("at_once", [True, False])
def test_behind_output_and_at_a_final_failure_the_key_stays(world: World, at_once: bool) -> None:
    pool = ready(world)
    submit(pool, "first")
    (grant,) = pool.take()
    if not at_once:
        pool.append(grant, 2)
    fail(pool, grant, "WORKER_LOST", retryable=True, chunks=1)
    assert again(pool).state is State.FAILED
    other = pack(idempotency_name("key", "user", "other"), "print", DAY_MS)
    submit(pool, "final", other)
    fail(pool, pool.take()[0], "CONTEXT_LENGTH")
    assert again(pool, named=other).task_id == "final"


def test_all_time_outs_let_a_key_go_and_no_fault_of_a_request_does() -> None:
    assert {code for code in FAILURES if code.endswith("_TIMEOUT")} | {"STREAM_STALLED"} <= RELEASES_KEY
    assert {"NO_WORKER", "MODEL_TOO_BUSY", "WORKER_LOST", "STORE_LOST", "GATEWAY_STOPPING"} <= RELEASES_KEY
    final = {
        "BAD_REQUEST",
        "CONTEXT_LENGTH",
        "CONTENT_FILTERED",
        "CANCELLED",
        "WORKER_ERROR",
        "OUTPUT_TOO_LARGE",
    }
    assert not final & RELEASES_KEY


def test_a_key_whose_readers_left_is_free_while_the_worker_still_stops(world: World) -> None:
    pool = ready(world)
    submit(pool, "first", linger_ms=36_000)
    (grant,) = pool.take()
    pool.append(grant, 2)
    for _ in range(36):
        pool.renew(grant)
        pool.pass_time(1000)
    pool.pass_time(1000)
    assert pool.record("first")["state"] == "cancelled"
    assert isinstance(submit(pool, "second"), Submitted)
    pool.finish(grant, 3)
    assert named(world) == {NAME: "second"}, "the late end of the first is none of the second's"
    audit(world, ["first", "second"])


def test_record_and_log_are_kept_as_long_as_the_key_and_that_from_the_submission_on(world: World) -> None:
    pool = ready(world)
    submit(pool, "first", keep_ms=300_000)
    shot = Snapshot(world)
    assert shot.ttl("idempotency", NAME) > DAY_MS, "while it lives, its key does"
    world.advance(3_600_000)
    pool.finish(pool.take()[0])
    shot = Snapshot(world)
    for kind, part in (("idempotency", NAME), ("task", "first"), ("log", "first")):
        assert DAY_MS - 3_660_000 < shot.ttl(kind, part) <= DAY_MS - 3_600_000, kind


def test_an_expired_key_stays_for_a_minute_after_the_end(world: World) -> None:
    pool = ready(world)
    submit(pool, "first", pack(NAME, "print", 60_000), keep_ms=1000)
    world.advance(600_000)
    assert again(pool).state is State.QUEUED
    pool.finish(pool.take()[0])
    shot = Snapshot(world)
    assert 1000 < shot.ttl("idempotency", NAME) <= 60_000
    assert 1000 < shot.ttl("task", "first") <= 60_000


def test_a_task_that_was_dropped_for_want_of_room_is_known_all_the_same(world: World) -> None:
    pool = ready(world)
    submit(pool, "first")
    pool.finish(pool.take()[0])
    world.call("UNLINK", f"{world.prefix}task:first", f"{world.prefix}log:first")
    known = again(pool)
    assert (known.task_id, known.state) == ("first", None)


def test_who_polls_does_not_make_a_named_task_go_before_the_archive_has_it(world: World) -> None:
    pool = ready(world)
    submit(pool, "first", archive_ms=3_600_000, keep_ms=300_000)
    pool.finish(pool.take()[0])
    assert Snapshot(world).ttl("task", "first") > 3_600_000
    assert again(pool).state is State.COMPLETED


def brought(pool: Pool, number: int, *, user: str = "acme", ttl_ms: int = 60_000, task: str = "") -> str:
    """What becomes of a task with a new key."""
    named = pack(idempotency_name("key", user, f"n-{number}"), "print", ttl_ms, 4, 60_000)
    answer = submit(pool, task or f"{user}-{number}", named, user=user)
    if isinstance(answer, ExistingTask):
        return "ExistingTask"
    return f"{answer.reason} {answer.retry_ms}" if isinstance(answer, Rejection) else "Submitted"


def test_a_user_has_so_many_keys_and_others_have_their_own(world: World) -> None:
    pool = ready(world)
    assert [brought(pool, n) for n in range(4)] == ["Submitted"] * 4
    assert brought(pool, 4) == "idempotency_keys 15000"
    assert brought(pool, 3, task="again") == "ExistingTask", "a known one is no new one"
    assert brought(pool, 0, user="other") == "Submitted"
    assert isinstance(submit(pool, "none", "", user="acme"), Submitted)
    world.advance(14_990)
    assert brought(pool, 4) == "idempotency_keys 10"
    world.advance(10)
    assert brought(pool, 4) == "Submitted", "they come back evenly"
    assert brought(pool, 5) == "idempotency_keys 15000"
    world.advance(60_000)
    assert [brought(pool, n) for n in range(5, 10)] == ["Submitted"] * 4 + ["idempotency_keys 15000"]


def test_a_rejected_task_takes_no_key(world: World) -> None:
    pool = ready(world)
    for n in range(9):
        other = pack(idempotency_name("key", "acme", f"x-{n}"), "print", 60_000, 4, 60_000)
        answer = pool.submit(f"x-{n}", "nobody-offers-it", idempotency=other, user="acme")
        assert isinstance(answer, Rejection)
        assert answer.reason == "no_worker"
    assert brought(pool, 0) == "Submitted"
