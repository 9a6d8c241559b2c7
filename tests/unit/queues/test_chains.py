"""Chains: stages that run one behind the other under one task id, in place, and what becomes of them when something ends."""

import pytest
from tests.support.audit import audit
from tests.support.direct import World, drive
from tests.support.pool import Pool

from fairlane.queues.chains import MAX_BYTES, Running, Stage, running
from fairlane.queues.tasks import State, Submitted, Used


@pytest.fixture
def pool(world: World) -> Pool:
    pool = Pool(world)
    pool.offer("n")
    return pool


def test_stages_run_one_behind_the_other_in_the_lines_of_their_models(world: World, pool: Pool) -> None:
    assert isinstance(pool.start("c", payload=b"one"), Submitted)
    (grant,) = pool.take("m")
    assert running(grant) == Running("c", Stage(0, "first"), -1)
    assert '"stage":"first","index":1' in grant.start
    audit(world, "c")
    answer = pool.advance(
        grant, pool.entry(1, "n", payload=b"two"), result=b"1", chunks=[b"{}"], told=[b"a", b"b"], used=(5, 2)
    )
    assert (answer.outcome, answer.model) == ("moved", "n")
    audit(world, "c")
    assert (pool.state("c"), pool.payload("c")) == ("queued", b"two")
    assert pool.events("c") == [("1-1", "start"), ("1-2", "chunk"), ("1-3", "stage"), ("1-4", "stage")]
    assert answer.event_id == f"{grant.epoch}-3"
    assert pool.take("m") == []
    (second,) = pool.take("n")
    assert running(second) == Running("c", Stage(1, "stage1"), -1)
    assert (second.attempt, second.start_seq) == (2, 5)
    known = pool.chain("c")
    assert known is not None
    assert (known.stage, known.of, known.plan) == (Stage(1, "stage1"), 3, b"a plan")
    assert (known.results, known.used) == ({(0, -1): b"1"}, {(0, -1): Used(5, 2)})
    world.advance(100)
    answer = pool.advance(second, pool.end(), 6, result=b"22", told=[b"c"], used=(7, 3, 1, 1, True))
    assert (answer.outcome, answer.event_id) == ("ended", f"{second.epoch}-6")
    audit(world, "c")
    assert [kind for _, kind in pool.events("c")][-2:] == ["stage", "done"]
    known = pool.chain("c")
    assert known is not None
    assert (known.state, known.plan) == (State.COMPLETED, b"")
    assert known.used[1, -1] == Used(7, 3, 1, 1, True)
    light = pool.chain("c", contents=False)
    assert light is not None
    assert light.results == {(0, -1): b"", (1, -1): b""}
    rows = pool.recorded()
    assert [row.first_output is not None for row in rows.values()] == [True, False]
    assert [(row.task, row.chain, row.stage, row.stage_name, row.part) for row in rows.values()] == [
        ("c.0", "c", 0, "first", None),
        ("c.1", "c", 1, "stage1", None),
    ]
    assert [(row.model, row.state, row.input, row.attempts) for row in rows.values()] == [
        ("m", "completed", 5, 1),
        ("n", "completed", 7, 1),
    ]


def test_a_repeated_step_is_answered_as_before_and_an_older_one_is_stale(world: World, pool: Pool) -> None:
    pool.start("c", payload=b"one")
    pool.submit("other")
    (grant,) = pool.take()
    first = pool.advance(grant, pool.entry(1, "n"), told=[b"x"], nonce="once", want=1)
    assert [granted.task_id for granted in first.grants] == ["other"]
    again = pool.advance(grant, pool.entry(1, "n"), told=[b"x"], nonce="once", want=1)
    assert (again.outcome, again.event_id, again.model) == ("moved", first.event_id, "n")
    assert [granted.token for granted in again.grants] == [granted.token for granted in first.grants]
    assert pool.advance(grant, pool.entry(1, "n"), told=[b"x"], nonce="another").outcome == "stale"
    assert pool.finish(grant).outcome == "stale"
    assert pool.requeue(grant).outcome == "stale"
    (second,) = pool.take("n")
    assert pool.advance(grant, pool.entry(1, "n"), told=[b"x"], nonce="once").outcome == "moved"
    assert pool.advance(second, pool.entry(2, "n"), 4, nonce="twice").outcome == "moved"
    assert pool.advance(grant, pool.entry(1, "n"), told=[b"x"], nonce="once").outcome == "stale"
    (third,) = pool.take("n")
    ended = pool.advance(third, pool.end(), 5, told=[b"y"], nonce="thrice")
    assert pool.advance(third, pool.end(), 5, told=[b"y"], nonce="thrice").event_id == ended.event_id
    assert pool.advance(third, pool.end(), 5, nonce="other").outcome == "late"
    audit(world, ["c", "other"])


def test_nothing_happens_without_what_follows_or_with_a_hole_in_the_log(world: World, pool: Pool) -> None:
    pool.start("c")
    (grant,) = pool.take()
    before = {name: value for name, (_, value) in world.save().items()}
    assert pool.advance(grant).outcome == "next"
    answer = pool.advance(grant, pool.entry(1), 4)
    assert (answer.outcome, answer.top) == ("hole", 1)
    assert pool.advance(grant, pool.entry(1), result=b"x" * (MAX_BYTES - 5)).outcome == "too_large"
    assert {name: value for name, (_, value) in world.save().items()} == before
    assert pool.advance(grant, pool.entry(1), result=b"x" * (MAX_BYTES - 6)).outcome == "moved"
    audit(world, "c")


def test_the_request_that_is_kept_for_the_archive_takes_nothing_of_what_a_chain_may_have(
    world: World, pool: Pool
) -> None:
    pool.start("c", request=b"q" * (MAX_BYTES // 2), archive_ms=1000, archive_request=True)
    (grant,) = pool.take()
    assert pool.advance(grant, pool.entry(1), result=b"x" * (MAX_BYTES - 5)).outcome == "too_large"
    assert pool.advance(grant, pool.entry(1), result=b"x" * (MAX_BYTES - 6)).outcome == "moved"
    audit(world, "c")
    assert pool.cancel("c").outcome == "ended"
    assert world.call("HGET", world.keys("pool"), "bytes") == b"0"


def test_a_chain_keeps_the_age_of_its_submission_in_its_users_line(world: World, pool: Pool) -> None:
    pool.start("c")
    (grant,) = pool.take()
    world.advance(1000)
    pool.submit("later", "n")
    pool.submit("urgent", "n", priority=5)
    pool.advance(grant, pool.entry(1, "n"))
    assert pool.place("c").position == 2
    assert pool.taken("n", want=3) == ["urgent", "c", "later"]


def test_the_next_stage_may_take_the_freed_slot_immediately(world: World, pool: Pool) -> None:
    pool.start("c")
    (grant,) = pool.take()
    answer = pool.advance(grant, pool.entry(1), want=1)
    assert [(one.task_id, one.attempt) for one in answer.grants] == [("c", 2)]
    audit(world, "c")


def test_each_stage_has_its_own_tries_limits_and_output(world: World, pool: Pool) -> None:
    pool.start("c", run_ms=60_000)
    for _ in range(2):
        (grant,) = pool.take()
        assert pool.requeue(grant, "failed", begun=True).outcome == "queued"
    (grant,) = pool.take()
    pool.append(grant, 4, b"{}")
    assert pool.payload("c") is None
    pool.advance(grant, pool.entry(1, "n", run_ms=5000, payload=b"two"), 5, chunks=[b"{}"])
    record = pool.record("c")
    assert not {"tries", "first_output_at", "history", "worker", "granted_at"} & set(record)
    assert (record["attempts_before"], record["run_limit"], pool.payload("c")) == ("3", "5000", b"two")
    for left in (2, 1, 0):
        (grant,) = pool.take("n")
        assert grant.left_ms == 5000
        ended = pool.requeue(grant, "failed", begun=True)
        assert ended.outcome == ("queued" if left else "ended")
        audit(world, "c")
    assert b'"failedStage":"stage1"' in ended.data
    assert pool.chain("c").results == {(0, -1): b'"r"'}  # type: ignore[union-attr]
    rows = pool.recorded()
    assert [(row.state, row.attempts, row.tries) for row in rows.values()] == [
        ("completed", 3, 2),
        ("failed", 3, 3),
    ]


def test_output_of_a_stage_ends_its_retries_and_with_them_the_chain(world: World, pool: Pool) -> None:
    pool.start("c")
    (grant,) = pool.take()
    pool.advance(grant, pool.entry(1))
    (grant,) = pool.take()
    pool.append(grant, 3, b"{}")
    ended = pool.requeue(grant, "lost")
    assert (ended.outcome, ended.kind, b'"failedStage":"stage1"' in ended.data) == ("ended", "error", True)
    assert pool.code("c") == "WORKER_LOST"
    audit(world, "c")


@pytest.mark.parametrize("running", [False, True])
def test_a_chain_is_cancelled_in_any_stage(world: World, pool: Pool, running: bool) -> None:
    pool.start("c")
    (grant,) = pool.take()
    pool.advance(grant, pool.entry(1, "n"))
    held = pool.take("n") if running else []
    assert pool.cancel("c").outcome == "ended"
    audit(world, "c")
    for grant in held:
        assert pool.advance(grant, pool.entry(2), 3).outcome == "late"
    audit(world, "c")
    assert [row.state for row in pool.recorded().values()] == ["completed", "cancelled"]
    assert pool.slots("n") == {}


def test_a_stage_that_cannot_begin_ends_the_chain_and_is_recorded(world: World, pool: Pool) -> None:
    pool.start("c")
    (grant,) = pool.take()
    end = pool.end(State.FAILED, "X", stage=Stage(2, "match"), model="n", queue="paid")
    assert pool.advance(grant, end, told=[b"s"]).outcome == "ended"
    audit(world, "c")
    rows = list(pool.recorded().values())
    assert [(row.task, row.state, row.code, row.model, row.queue, row.attempts) for row in rows] == [
        ("c.0", "completed", "", "m", "free", 1),
        ("c.2", "failed", "X", "n", "paid", 0),
    ]
    assert pool.chain("c").stage == Stage(2, "match")  # type: ignore[union-attr]


def test_a_stage_without_workers_waits_in_an_async_chain_and_ends_a_sync_one(
    world: World, pool: Pool
) -> None:
    pool.start("c")
    pool.start("d", waiting=True)
    first, second = pool.take(want=2)
    assert pool.advance(first, pool.entry(1, "nobody's")).outcome == "moved"
    assert pool.advance(second, pool.entry(1, "nobody's")).outcome == "no_worker"
    other = pool.entry(1, "nobody's", fallbacks="n\t", fallback_after_ms=0, asked="a route")
    answer = pool.advance(second, other)
    assert (answer.outcome, answer.model) == ("moved", "n")
    assert pool.taken("n") == ["d"]
    pool.offer("nobody's")
    assert pool.taken("nobody's") == ["c"]
    audit(world, "cd")


def test_a_stage_may_fall_to_another_model_by_its_own_route(world: World, pool: Pool) -> None:
    pool.start("c", fallbacks="m2\t", asked="a")
    (grant,) = pool.take()
    pool.advance(grant, pool.entry(1, "m", fallbacks="n\t", asked="b"))
    (grant,) = pool.take()
    assert pool.requeue(grant, "falls", begun=True, why="X").outcome == "queued"
    assert pool.record("c")["fallback_history"].startswith("m\t")
    (grant,) = pool.take("n")
    pool.advance(grant, pool.entry(2), 4)
    record = pool.record("c")
    assert not {"fallbacks", "fallback_history", "route", "fallback_after"} & set(record)
    assert [row.route for row in pool.recorded().values()] == ["a", "b"]
    audit(world, "c")


def test_each_stage_waits_for_as_long_as_it_may(world: World, pool: Pool) -> None:
    pool.start("c", wait_ms=5000)
    (grant,) = pool.take()
    world.advance(4000)
    pool.renew(grant)
    pool.sweep()
    pool.advance(grant, pool.entry(1, "n", wait_ms=3000))
    pool.pass_time(2900)
    assert pool.state("c") == "queued"
    pool.pass_time(200)
    assert (pool.state("c"), pool.code("c")) == ("failed", "QUEUE_TIMEOUT")
    audit(world, "c")


def test_the_total_deadline_is_the_chains(world: World, pool: Pool) -> None:
    pool.start("c", timeout_ms=8000)
    (grant,) = pool.take()
    pool.pass_time(4000)
    pool.renew(grant)
    pool.advance(grant, pool.entry(1, "n"))
    pool.pass_time(4100)
    assert (pool.state("c"), pool.code("c")) == ("failed", "TOTAL_TIMEOUT")
    audit(world, "c")


def test_bodies_and_results_are_counted_until_the_end(world: World, pool: Pool) -> None:
    pool.start(
        "c",
        payload=b"x" * 20_000,
        head=b"h" * 10,
        request=b"q" * 30_000,
        archive_ms=1000,
        archive_request=True,
    )
    audit(world, "c")
    (grant,) = pool.take()
    pool.advance(grant, pool.entry(1, "n", payload=b"y" * 17_000), result=b"r" * 50_000)
    audit(world, "c")
    (grant,) = pool.take("n")
    pool.append(grant, 3, b"{}")
    audit(world, "c")
    pool.advance(grant, pool.end(), 4)
    audit(world, "c")
    assert drive(pool.scheduler.request("c")) == b"q" * 30_000
    assert pool.world.call("HGET", world.keys("pool"), "bytes") == b"0"
