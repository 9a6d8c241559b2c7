"""An event id names one event for ever, also when the store forgets its last second."""

import pytest
from tests.support.direct import World, drive
from tests.support.ids import id_of
from tests.support.pool import Pool

from fairlane.queues.store.scripts import CLAMP
from fairlane.queues.tasks import State


def test_a_grant_that_the_store_forgot_shares_no_id_with_the_next_one(world: World) -> None:
    pool = Pool(world)
    pool.submit("a")
    before = world.save()
    (forgotten,) = pool.take()
    world.advance(0.001)
    world.restore(before)
    (grant,) = pool.take()
    assert (forgotten.attempt, grant.attempt) == (1, 1)
    assert grant.epoch > forgotten.epoch
    assert pool.append(forgotten, 2) == ("stale", 0)
    assert pool.renew(forgotten, grant) == [0, 1]
    assert pool.finish(forgotten).outcome == "stale"
    assert pool.requeue(forgotten).outcome == "stale"
    assert pool.append(grant, 2) == ("ok", 0)


def test_epochs_rise_also_when_the_clock_stops_or_is_set_back(world: World) -> None:
    pool = Pool(world)
    epochs = []
    pool.submit("a")
    for ms in (0, 0, -60_000, 1000):
        (grant,) = pool.take()
        epochs.append(grant.epoch)
        pool.requeue(grant, "declined")
        world.advance(ms)
    assert epochs == sorted(set(epochs))
    assert [id_ for id_, _ in pool.events("a")] == ["1-1", "2-2", "3-3", "4-4"]


@pytest.mark.parametrize("how", ["cancel", "sweep", "requeue", "release"])
def test_an_end_that_the_writer_did_not_write_never_takes_the_id_of_what_he_wrote(
    world: World, how: str
) -> None:
    """The log ends at 2, and readers have seen 3 and 4 of the same attempt."""
    pool = Pool(world)
    grant = pool.run("a")
    pool.renew(grant)
    pool.append(grant, 2)
    before = world.save()
    pool.append(grant, 3, b"3", b"4")
    world.restore(before)
    if how == "cancel":
        pool.cancel("a")
    elif how == "sweep":
        pool.pass_time(world.limits.lease_ms + 1000)
    elif how == "requeue":
        pool.requeue(grant)
    else:
        pool.finish(grant, 0, state=State.FAILED)
    end = pool.last_id("a")
    assert end.endswith("-3")
    assert end != id_of(grant, 3)
    assert pool.record("a")["end_id"] == end


def test_a_task_that_was_never_granted_ends_under_an_id_of_its_own(world: World) -> None:
    pool = Pool(world)
    pool.submit("a")
    assert pool.cancel("a").event_id == f"{world.now_us}-1"


def test_the_writers_own_end_has_the_same_id_when_the_store_forgot_it(world: World) -> None:
    pool = Pool(world)
    grant = pool.run("a")
    before = world.save()
    first = pool.finish(grant, 2, chunks=[b"1"], nonce="n")
    world.advance(1000)
    world.restore(before)
    again = pool.finish(grant, 2, chunks=[b"1"], nonce="n")
    assert first.event_id == again.event_id == id_of(grant, 3)
    assert pool.finish(grant, 2, chunks=[b"1"], nonce="n") == again, "repeated"


def test_a_repeated_requeue_names_the_same_end(world: World) -> None:
    pool = Pool(world)
    grant = pool.run("a")
    pool.append(grant, 2)
    ended = pool.requeue(grant)
    assert (ended.outcome, ended.event_id) == ("ended", pool.last_id("a"))
    assert pool.requeue(grant).event_id == ended.event_id


def test_ids_of_one_attempt_share_its_epoch_and_count_on(world: World) -> None:
    pool = Pool(world)
    first = pool.run("a")
    world.advance(5)
    pool.requeue(first)
    (second,) = pool.take()
    pool.finish(second, 3, chunks=[b"1"])
    entries = drive(pool.scheduler.page("a", "-", 1 << 30))
    assert [(entry.epoch, entry.seq) for entry in entries] == [
        (first.epoch, 1),
        (second.epoch, 2),
        (second.epoch, 3),
        (second.epoch, 4),
    ]


def test_a_clock_that_is_set_back_still_advances_for_scripts(world: World) -> None:
    script = CLAMP + "local t = {} for i, us in ipairs(ARGV) do t[i] = clamped(us + 0) end return t"
    assert world.call("EVAL", script, 0, 50, 60, 20, 25, 80) == [50, 60, 60, 65, 120]
