"""Stages that run as several parts side by side: each is a task of its own, and the chain stands in no line meanwhile."""

import pytest
from tests.support.audit import audit
from tests.support.direct import World, drive
from tests.support.pool import Pool
from tests.support.servers import Server

from fairlane.queues.chains import Running, Stage, part_id, running
from fairlane.queues.ids import could_be_ours, new_task_id
from fairlane.queues.limits import pack
from fairlane.queues.scheduler import Limits
from fairlane.queues.tasks import Grant, Rejection, State, Submitted

PARTS = (b"p0", b"p1", b"p2")
GRACE = Limits().stop_grace_ms


@pytest.fixture
def pool(world: World) -> Pool:
    pool = Pool(world)
    pool.offer("n")
    return pool


def begun(pool: Pool, want: int = 3, **more: object) -> list[Grant]:
    """A chain whose first stage has three parts, of which so many run."""
    pool.start("c", parts=PARTS, **more)
    return pool.take("m", want=want)


def test_parts_run_side_by_side_and_the_last_one_takes_the_chain_on(world: World, pool: Pool) -> None:
    pool.start("c", parts=PARTS)
    audit(world, "c")
    assert (pool.state("c"), pool.place("c").position) == ("queued", 1)
    grants = pool.take("m", want=2)
    audit(world, "c")
    assert [running(grant) for grant in grants] == [Running("c", Stage(0, "first"), part) for part in (0, 1)]
    assert drive(pool.scheduler.payload(grants[1].task_id)) == b"p1"
    known = pool.chain("c")
    assert known is not None
    assert (known.parts, known.begun, known.done) == (3, 2, 0)
    assert pool.advance(grants[1], result=b"r1").outcome == "waits"
    audit(world, "c")
    assert pool.advance(grants[0], pool.entry(1), result=b"r0", told=[b"x"]).outcome == "waits"
    (last,) = pool.take("m", want=3)
    known = pool.chain("c")
    assert known is not None
    assert (known.begun, known.done, known.results) == (3, 2, {(0, 0): b"r0", (0, 1): b"r1"})
    before = {name: value for name, (_, value) in world.save().items()}
    assert pool.advance(last, result=b"r2").outcome == "next"
    assert {name: value for name, (_, value) in world.save().items()} == before
    answer = pool.advance(last, pool.entry(1, "n"), result=b"r2", chunks=[b"{}"], told=[b"x"])
    assert (answer.outcome, answer.event_id) == ("moved", pool.last_id("c"))
    audit(world, "c")
    assert pool.events("c") == [("1-1", "stage")], "of its parts their own logs tell"
    (grant,) = pool.take("n")
    assert (grant.task_id, grant.attempt, grant.start_seq) == ("c", 1, 2)
    assert pool.advance(grant, pool.end(), 3).outcome == "ended"
    audit(world, "c")
    rows = pool.recorded()
    assert sorted((row.task, row.part, row.chain) for row in rows.values()) == [
        ("c.0.00", 0, "c"),
        ("c.0.01", 1, "c"),
        ("c.0.02", 2, "c"),
        ("c.1", None, "c"),
    ]


def test_a_chain_may_go_from_its_stage_in_place_to_parts_and_end_with_them(world: World, pool: Pool) -> None:
    pool.start("c")
    (grant,) = pool.take()
    answer = pool.advance(grant, pool.entry(1, parts=PARTS[:2], payload=b""), want=1)
    assert answer.outcome == "moved"
    audit(world, "c")
    first, second = [*answer.grants, *pool.take(want=3)]
    pool.advance(first)
    repeated = pool.advance(second, pool.end(), told=[b"x"], nonce="n")
    assert repeated.outcome == "ended"
    assert pool.advance(second, pool.end(), told=[b"x"], nonce="n").event_id == repeated.event_id
    assert [kind for _, kind in pool.events("c")] == ["start", "stage", "done"]
    assert pool.state("c") == "completed"
    audit(world, "c")
    assert world.call("KEYS", "*payload:c*") == []


def test_parts_are_no_tasks_that_a_caller_may_know() -> None:
    chain = new_task_id(1_800_000_000_000)
    assert could_be_ours(chain, 1_800_000_000_000)
    assert not could_be_ours(part_id(chain, 0, 63), 1_800_000_000_000)


def test_a_part_that_fails_for_good_ends_the_chain_and_the_other_parts(
    world: World, pool: Pool, any_server: Server
) -> None:
    pool.start("c", parts=(*PARTS, b"p3"))
    grants = pool.take(want=3)
    pool.advance(grants[0])
    ears = pool.ears(any_server.socket_path)
    finished = pool.finish(grants[1], state=State.FAILED, code="UPSTREAM_ERROR")
    assert finished.outcome == "ok"
    assert b"stop\n" + grants[2].task_id.encode() in b"".join(ears.drain())
    ears.close()
    assert (pool.state("c"), pool.code("c")) == ("failed", "UPSTREAM_ERROR")
    audit(world, "c")
    assert [pool.state(part_id("c", 0, part)) for part in range(4)] == [
        *("completed", "failed", "cancelled", "cancelled")
    ]
    assert len(pool.slots()) == 1, "the other one is to stop"
    assert "c" not in {row.chain for row in pool.recorded().values() if row.part == 2}
    assert pool.advance(grants[2]).outcome == "late"
    assert pool.slots() == {}
    audit(world, "c")
    known = pool.chain("c")
    assert known is not None
    assert set(known.results) == {(0, 0)}


def test_readers_of_a_chain_get_the_end_of_a_part(world: World, pool: Pool) -> None:
    grants = begun(pool)
    for _ in range(3):
        ended = pool.requeue(grants[0], "failed", begun=True)
        if ended.outcome == "queued":
            grants[0] = pool.take(want=1)[0]
    assert ended.outcome == "ended"
    last = drive(pool.scheduler.last_event("c"))
    assert (last.kind, last.data[:16]) == ("error", b'{"taskId":"c","t')
    assert b'"code":"WORKER_LOST"' in last.data
    assert b'"failedStage":"first"' in last.data
    audit(world, "c")


@pytest.mark.parametrize("run", [0, 2, 3])
def test_a_chain_is_cancelled_while_parts_wait_and_run(world: World, pool: Pool, run: int) -> None:
    grants = begun(pool, run) if run else []
    if not run:
        pool.start("c", parts=PARTS)
    for grant in grants[:1]:
        pool.advance(grant)
    assert pool.cancel("c").outcome == "ended"
    audit(world, "c")
    assert pool.take(want=3) == []
    assert pool.renew(*grants[1:]) == [2] * len(grants[1:])
    for grant in grants[1:]:
        assert pool.finish(grant, state=State.CANCELLED).outcome == "late"
        audit(world, "c")
    assert pool.cancel("c").outcome == "over"
    assert {key.split(b":")[-2] for key in world.call("KEYS", "*") if b"c" in key.split(b":")[-1]} >= {
        b"task"
    }
    assert world.call("PTTL", world.keys("chain", id="c")) > 0


def test_the_chains_deadline_and_the_wait_of_parts(world: World, pool: Pool) -> None:
    pool.start("c", parts=PARTS, timeout_ms=5000)
    pool.start("d", parts=PARTS, wait_ms=3000)
    grants = pool.take(want=4)
    pool.pass_time(3100)
    assert (pool.state("d"), pool.code("d")) == ("failed", "QUEUE_TIMEOUT")
    pool.renew(*grants)
    audit(world, "cd")
    pool.pass_time(2000)
    assert (pool.state("c"), pool.code("c")) == ("failed", "TOTAL_TIMEOUT")
    audit(world, "cd")
    pool.pass_time(GRACE + 1000)
    assert pool.slots() == {}
    audit(world, "cd")


def test_parts_share_the_age_and_the_limits_of_their_chain(world: World, pool: Pool) -> None:
    limits = pack({"max_running": 2, "max_waiting": 1, "tokens_per_minute": 100_000})
    pool.start("c", parts=PARTS, key_limits=limits)
    audit(world, "c")
    refused = pool.submit("other", key_limits=limits)
    assert isinstance(refused, Rejection)
    assert refused.reason == "rate_limited", "the chain waits, as one"
    grants = pool.take(want=3)
    assert len(grants) == 2, "so many may run"
    audit(world, "c")
    pool.advance(grants[0], used=(100, 50))
    (third,) = pool.take(want=3)
    pool.advance(grants[1], used=(100, 50))
    pool.advance(third, pool.entry(1), used=(100, 50))
    audit(world, "c")
    (grant,) = pool.take()
    pool.advance(grant, pool.end(), used=(20, 10))
    left = {a.setting: a.remaining for a in drive(pool.scheduler.allowance("u", limits, ""))}
    assert left["tokens_per_minute"] == 100_000 - 480
    audit(world, "c")


def test_what_a_cancelled_chain_was_charged_comes_back_if_nothing_had_begun(world: World, pool: Pool) -> None:
    limits = pack({"requests_per_minute": 10, "tokens_per_minute": 100_000})

    def used() -> dict[str, int]:
        return {a.setting: a.limit - a.remaining for a in drive(pool.scheduler.allowance("u", limits, ""))}

    pool.start("c", parts=PARTS, key_limits=limits)
    assert used()["requests_per_minute"] == 1
    assert used()["tokens_per_minute"] > 0
    pool.cancel("c")
    assert used() == {"requests_per_minute": 0, "tokens_per_minute": 0}
    pool.start("d", parts=PARTS, key_limits=limits)
    pool.take()
    pool.cancel("d")
    assert used() == {"requests_per_minute": 1, "tokens_per_minute": 0}
    audit(world, "cd")


def test_a_queue_takes_the_parts_of_a_chain_together_or_not(world: World, pool: Pool) -> None:
    pool.configure(max_length=4)
    pool.start("a", parts=PARTS * 3)
    assert pool.place("a").position == 1, "where nobody waits a chain has room, however many its parts"
    refused = pool.start("b", parts=PARTS, user="other")
    assert isinstance(refused, Rejection)
    assert refused.reason == "full"
    audit(world, "a")
    pool.take(want=8)
    assert isinstance(pool.start("c", parts=PARTS * 2), Rejection), "twice as many at most"
    pool.start("d", parts=PARTS)
    audit(world, "ad")


def test_a_part_cannot_be_finished_as_if_it_were_a_task(world: World, pool: Pool) -> None:
    (grant, *_) = begun(pool)
    with pytest.raises(Exception, match="completes by advance"):
        pool.finish(grant)
    audit(world, "c")


def test_parts_of_one_user_leave_others_their_part_of_a_queue(world: World, pool: Pool) -> None:
    pool.configure(max_length=100)
    pool.offer("n")
    for number in range(4):
        pool.start(f"c{number}")
        (grant,) = pool.take("m")
        entry = pool.entry(1, "n", parts=[b"p"] * 64, queue="paid")
        assert pool.advance(grant, entry).outcome == "moved"
    audit(world, [f"c{number}" for number in range(4)])
    assert isinstance(pool.submit("own", "n", queue="paid"), Rejection)
    for number in range(50):
        assert isinstance(pool.submit(f"other{number}", "n", queue="paid", user="v"), Submitted) == (
            number < 50 - 17
        )
