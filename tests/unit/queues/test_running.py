"""What `append`, `finish`, `renew`, `follow` and `requeue` answer for a running task."""

from collections.abc import Sequence

import pytest
from tests.support.audit import audit
from tests.support.direct import World, drive, fragment
from tests.support.ids import id_of
from tests.support.pool import Pool
from tests.support.servers import Server

from fairlane.queues.tasks import Append, Ended, State


def names(grants: Sequence[object]) -> list[str]:
    return [grant.task_id for grant in grants]  # type: ignore[attr-defined]


# ---- append ----------


def test_events_are_appended_once_and_without_a_hole(world: World) -> None:
    pool = Pool(world)
    grant = pool.run("a")
    assert pool.append(grant, 2, b"1", b"2") == ("ok", 0)
    assert pool.append(grant, 2, b"1", b"2") == ("ok", 0), "the reply was lost"
    assert pool.append(grant, 3, b"2", b"3") == ("ok", 0), "what arrived counts, the rest is added"
    assert pool.append(grant, 6, b"5") == ("hole", 4)
    assert pool.events("a") == [("1-1", "start"), ("1-2", "chunk"), ("1-3", "chunk"), ("1-4", "chunk")]
    assert [entry.data for entry in drive(pool.scheduler.page("a", id_of(grant, 1), 1000))] == [
        b"1",
        b"2",
        b"3",
    ]


def test_one_call_appends_to_the_logs_of_many_tasks_each_for_itself(world: World) -> None:
    pool = Pool(world)
    first, old, short, last = (pool.run(name) for name in "abcd")
    pool.requeue(old)
    one, two = [("chunk", b"1")], [("chunk", b"1"), ("chunk", b"2")]
    appends = [
        Append(first, 2, two, output=True),
        Append(old, 2, one, output=True),
        Append(short, 5, one, output=True),
        Append(last, 2, one, output=False),
    ]
    reply = pool.scheduler.append(appends).result()
    assert pool.scheduler.parse_append(reply) == [("ok", 0), ("stale", 0), ("hole", 1), ("ok", 0)]
    assert [len(pool.events(name)) for name in "abcd"] == [3, 1, 1, 2]


def test_the_first_output_drops_the_payload(world: World) -> None:
    pool = Pool(world)
    grant = pool.run("a", payload=b"body")
    assert drive(pool.scheduler.payload("a")) == b"body"
    pool.append(grant, 2, output=False)
    assert drive(pool.scheduler.payload("a")) == b"body"
    pool.append(grant, 3, output=True)
    assert drive(pool.scheduler.payload("a")) is None
    audit(world, ["a"])


def test_an_old_attempt_appends_nothing(world: World) -> None:
    pool = Pool(world)
    old = pool.run("a")
    pool.requeue(old)
    assert pool.append(old, 2) == ("stale", 0)
    (new,) = pool.take()
    assert (new.attempt, new.start_seq) == (2, 2)
    assert pool.append(old, 3) == ("stale", 0)
    assert pool.append(new._replace(token="guessed"), 3) == ("stale", 0)
    assert pool.append(new, 3) == ("ok", 0)
    assert pool.events("a") == [("1-1", "start"), ("2-2", "start"), ("2-3", "chunk")]
    assert pool.append(new._replace(task_id="nobody"), 3) == ("stale", 0)


def test_readers_elsewhere_hear_events_and_large_ones_by_id_only(world: World, any_server: Server) -> None:
    pool, reader = Pool(world), Pool(world, "r2", set_up=False)
    mine, theirs = pool.ears(any_server.socket_path), reader.ears(any_server.socket_path)
    try:
        grant = pool.run("a", follow=True)
        drive(reader.scheduler.follow("a"))
        pool.append(grant, 2, b"small", b"x" * 65_536, b"x" * 65_537)
        pool.finish(grant, 5)
        heard = theirs.drain()
        second, third, fourth, fifth = (id_of(grant, seq).encode() for seq in (2, 3, 4, 5))
        assert heard[0] == b"event\na\n%b\nchunk\nsmall" % second
        assert heard[1].startswith(b"event\na\n%b\nchunk\nxxx" % third)
        assert heard[2:] == [b"event_id\na\n" + fourth, b'event\na\n%b\ndone\n{"end":1}' % fifth]
        assert mine.drain() == [], "the writer's replica delivers to its own readers itself"
    finally:
        mine.close()
        theirs.close()


# ---- finish ----------


def test_a_finish_ends_the_task_and_takes_for_its_slot(world: World) -> None:
    pool = Pool(world, limit=1)
    grant = pool.run("a")
    pool.submit("b")
    answer = pool.finish(grant, chunks=[b"1", b"2"], want=1, nonce="n")
    assert (answer.outcome, answer.event_id, names(answer.grants)) == ("ok", id_of(grant, 4), ["b"])
    assert pool.finish(grant, chunks=[b"1", b"2"], want=1, nonce="n") == answer, "repeated"
    assert [kind for _, kind in pool.events("a")] == ["start", "chunk", "chunk", "done"]
    assert (pool.state("a"), list(pool.slots())) == ("completed", ["b"])
    audit(world, ["a", "b"])


def test_a_finish_with_lost_events_returns_the_end_of_the_log_and_changes_nothing(world: World) -> None:
    pool = Pool(world)
    grant = pool.run("a")
    answer = pool.finish(grant, 4)
    assert (answer.outcome, answer.top) == ("hole", 1)
    assert pool.state("a") == "executing"
    assert pool.finish(grant, 2, chunks=[b"1", b"2"]).outcome == "ok"


def test_a_finish_of_an_old_attempt_is_stale_and_still_takes(world: World) -> None:
    pool = Pool(world)
    old = pool.run("a")
    pool.requeue(old)
    pool.take()
    pool.submit("b")
    pool.submit("c")
    answer = pool.finish(old, want=1, nonce="n")
    assert (answer.outcome, names(answer.grants)) == ("stale", ["b"])
    assert pool.finish(old, want=1, nonce="n") == answer, "repeated"
    assert pool.state("a") == "executing"


def test_an_ended_task_is_kept_as_long_as_it_asked(world: World) -> None:
    pool = Pool(world)
    pool.finish(pool.run("a", keep_ms=5000))
    for key in ("task", "log"):
        assert 4000 < world.call("PTTL", world.keys(key, id="a")) <= 5000


# ---- renew ----------


def test_a_grant_holds_three_seconds_and_a_renewed_one_fifteen(world: World) -> None:
    pool = Pool(world)
    grant = pool.run("a")
    assert pool.slots() == {"a": 3000}
    assert pool.renew(grant) == [1]
    assert pool.slots() == {"a": 15_000}


def test_a_lease_never_goes_past_the_deadline_and_its_grace(world: World) -> None:
    pool = Pool(world)
    grant = pool.run("a", run_ms=6000)
    pool.renew(grant)
    assert pool.slots() == {"a": 11_000}
    world.advance(4000)
    pool.renew(grant)
    assert pool.slots() == {"a": 7000}


def test_renewal_tells_what_became_of_each_task(world: World) -> None:
    pool = Pool(world)
    running, cancelled, given_back = pool.run("a"), pool.run("b"), pool.run("c")
    pool.cancel("b")
    pool.requeue(given_back)
    gone = given_back._replace(task_id="nobody")
    assert pool.renew(running, cancelled, given_back, gone) == [1, 2, 0, 0]
    audit(world, "abc")


def test_a_reader_keeps_a_task_alive_only_while_it_renews(world: World) -> None:
    pool = Pool(world)
    pool.sweep()
    running = pool.run("running", linger_ms=4000, user="v")
    pool.submit("queued", linger_ms=4000)
    for _ in range(10):
        pool.renew(running, read=["queued", "running", "nobody"])
        pool.pass_time(1000)
    assert (pool.state("queued"), pool.state("running")) == ("queued", "executing")
    for _ in range(4):
        pool.renew(running)
        pool.pass_time(1000)
    assert (pool.state("queued"), pool.state("running")) == ("cancelled", "cancelled")
    assert pool.renew(running) == [2]
    audit(world, ["queued", "running"])


# ---- follow ----------


def test_a_follower_gets_the_record_and_the_events_to_come(world: World) -> None:
    pool = Pool(world)
    grant = pool.run("a")
    pool.append(grant, 2, b"1", b"2")
    record = drive(pool.scheduler.follow("a"))
    assert (record.state, record.fields["readers"], record.number("top_seq")) == (State.EXECUTING, "r1", 3)
    assert drive(pool.scheduler.follow("nobody")) is None
    pool.finish(grant, 4)
    record = drive(Pool(world, "r2", set_up=False).scheduler.follow("a"))
    assert record.fields["readers"] == "r1", "an ended task takes no more readers"


# ---- pages ----------


def test_a_page_ends_with_the_event_that_reaches_its_size(world: World) -> None:
    pool = Pool(world)
    grant = pool.run("a")
    sizes = [10, 100_000, 20, 3_000_000, 5, *([50] * 700), 200_000, 1]
    for at, size in enumerate(sizes):
        pool.append(grant, at + 2, b"x" * size)
    after, seen = "-", []
    while page := drive(pool.scheduler.page("a", after, 128 * 1024)):
        assert sum(len(event.data) + 64 for event in page[:-1]) < 128 * 1024
        seen += page
        after = f"{page[-1].epoch}-{page[-1].seq}"
    assert [event.seq for event in seen] == list(range(1, len(sizes) + 2))
    assert [len(event.data) for event in seen[1:]] == sizes


def test_a_page_after_an_event_that_the_log_lacks_is_rejected(world: World) -> None:
    pool = Pool(world)
    grant = pool.run("a")
    pool.append(grant, 2, b"1")
    assert [event.seq for event in drive(pool.scheduler.page("a", id_of(grant, 1), 1000))] == [2]
    assert drive(pool.scheduler.page("a", id_of(grant, 2), 1000)) == []
    for event_id in (id_of(grant, 3), f"{grant.epoch - 1}-1"):
        assert drive(pool.scheduler.page("a", event_id, 1000)) is None
    assert [
        event.seq for event in drive(pool.scheduler.page("a", f"{grant.epoch - 1}-1", 1000, held=False))
    ] == [1, 2]
    assert drive(pool.scheduler.page("nobody", "-", 1000)) == []


# ---- follow, and linger ----------


def test_the_first_follower_keeps_the_task_alive_immediately(world: World) -> None:
    pool = Pool(world)
    pool.sweep()
    pool.submit("a", linger_ms=2000)
    world.advance(1500)
    drive(pool.scheduler.follow("a", keep_alive=True))
    world.advance(1500)
    pool.sweep()
    assert pool.state("a") == "queued"


# ---- requeue ----------


def test_a_task_goes_back_to_its_old_place(world: World) -> None:
    pool = Pool(world)
    grant = pool.run("a")
    world.advance(1)
    pool.submit("b")
    assert pool.requeue(grant) == Ended("queued")
    assert pool.requeue(grant).outcome == "stale", "repeated"
    assert names(pool.take(want=2)) == ["a", "b"]
    audit(world, "ab")


@pytest.mark.parametrize("how", ["told", "renewed"])
def test_a_task_is_tried_three_times(world: World, how: str) -> None:
    pool = Pool(world)
    pool.submit("a")
    for attempt in (1, 2, 3):
        (grant,) = pool.take()
        assert (grant.attempt, grant.tries) == (attempt, attempt - 1)
        if how == "renewed":
            pool.renew(grant)
        answer = pool.requeue(grant, "failed", begun=how == "told", end=fragment("Bad day", "UPSTREAM_ERROR"))
    assert (answer.outcome, answer.event_id, answer.kind) == ("ended", pool.last_id("a"), "error")
    assert b"Bad day" in answer.data
    assert pool.requeue(grant, "failed", begun=True, end=fragment("Bad day", "UPSTREAM_ERROR")) == answer, (
        "repeated"
    )
    assert (pool.state("a"), pool.code("a")) == ("failed", "UPSTREAM_ERROR")
    audit(world, "a")


def test_a_declined_grant_and_one_that_never_began_cost_no_try(world: World) -> None:
    pool = Pool(world)
    pool.submit("a")
    for _ in range(5):
        (grant,) = pool.take()
        assert pool.requeue(grant, "declined", begun=True).outcome == "queued"
        (grant,) = pool.take()
        assert pool.requeue(grant, "lost", begun=False).outcome == "queued"
    assert len(pool.record("a")["history"]) <= 2100


def test_grants_of_a_task_say_why_it_is_suspect(world: World) -> None:
    pool = Pool(world)
    pool.submit("a")
    (grant,) = pool.take(worker="w1")
    assert grant.last_lost == ""
    for suspicion in ("of the first", ""):
        assert pool.requeue(grant, "lost", begun=True, suspicion=suspicion).outcome == "queued"
        (grant,) = pool.take(worker="w2")
        assert grant.last_lost == "of the first"
    assert pool.requeue(grant, "declined", begun=False, unsent=True, aside_ms=2000).outcome == "queued"
    assert not pool.take(worker="w2"), "it stands aside"
    pool.pass_time(3000)
    (grant,) = pool.take(worker="w2")
    assert grant.last_lost == "of the first"
    assert pool.requeue(grant, "declined", begun=False).outcome == "queued"
    (grant,) = pool.take(worker="w2")
    assert grant.last_lost == "", "its worker has survived it"
    assert pool.requeue(grant, "lost", begun=True).outcome == "ended", "its tries are used up"
    assert pool.code("a") == "WORKER_LOST"


def test_a_task_that_lost_the_only_worker_waits_for_one_during_the_grace(world: World) -> None:
    pool = Pool(world)
    for grant in [pool.run(name, waiting=True) for name in ("a", "b")]:
        pool.offer(withdrawn=["m"])
        assert pool.requeue(grant, "lost", begun=True, grace_ms=4000).outcome == "queued"
    pool.pass_time(3000)
    pool.offer("m")
    assert [grant.task_id for grant in pool.take()] == ["a"]
    pool.offer(withdrawn=["m"])
    pool.pass_time(2000)
    assert (pool.state("b"), pool.code("b")) == ("failed", "NO_WORKER")
    assert pool.state("a") == "executing"
    audit(world, ["a", "b"])


def test_a_slot_that_is_kept_at_the_end_is_free_when_the_worker_has_stopped(world: World) -> None:
    pool = Pool(world)
    grant = pool.run("a")
    pool.submit("b")
    assert pool.finish(grant, state=State.FAILED, slot_ms=5000).outcome == "ok"
    assert pool.finish(grant, state=State.FAILED, slot_ms=5000).outcome in ("ok", "late"), "repeated"
    assert pool.state("a") == "failed"
    assert world.call("ZCARD", world.keys("slots", model="m")) == 1
    assert [g.task_id for g in pool.finish(grant, want=1).grants] == ["b"]
    assert world.call("ZCARD", world.keys("slots", model="m")) == 1


def test_after_output_there_is_no_retry(world: World) -> None:
    pool = Pool(world)
    grant = pool.run("a")
    pool.append(grant, 2)
    assert pool.requeue(grant).outcome == "ended"
    assert pool.code("a") == "WORKER_LOST"
    audit(world, "a")


def test_without_workers_a_sync_task_ends_and_an_async_task_waits(world: World) -> None:
    pool = Pool(world)
    waiting, alone = pool.run("waiting", waiting=True), pool.run("alone")
    pool.offer(withdrawn=["m"])
    assert pool.requeue(waiting).outcome == "ended"
    assert pool.code("waiting") == "NO_WORKER"
    assert pool.requeue(alone).outcome == "queued"
    audit(world, ["waiting", "alone"])


def test_running_is_not_waiting(world: World) -> None:
    """The limit of the wait goes on where it stopped at the grant."""
    pool = Pool(world)
    pool.sweep()
    pool.submit("a", wait_ms=5000)
    pool.pass_time(3000)
    (grant,) = pool.take()
    pool.renew(grant)
    pool.pass_time(8000)
    assert pool.requeue(grant, "failed").outcome == "queued"
    pool.pass_time(1000)
    assert pool.state("a") == "queued"
    pool.pass_time(1000)
    assert (pool.state("a"), pool.code("a")) == ("failed", "QUEUE_TIMEOUT")


def test_the_history_of_attempts_can_be_read_whatever_the_worker_is_called(world: World) -> None:
    pool = Pool(world)
    pool.submit("a")
    (grant,) = pool.take(worker="we|ird;name")
    pool.requeue(grant)
    (entry,) = pool.record("a")["history"].split(";")
    assert entry.split("|") == ["we_ird_name", str(world.now_ms), str(world.now_ms), "gone"]
