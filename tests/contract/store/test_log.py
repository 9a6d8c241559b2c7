"""One log for each task: events are appended once and without a hole, ids never name two events, old attempts are fenced."""

import pytest
from tests.contract.store.store import Store


def test_events_are_appended_once_and_without_a_hole(store: Store) -> None:
    grant = store.run("a")
    assert store.append(grant, 2, b"1", b"2") == ("ok", 0)
    assert store.append(grant, 2, b"1", b"2") == ("ok", 0), "the reply was lost"
    assert store.append(grant, 3, b"2", b"3") == ("ok", 0), "what arrived counts, the rest is added"
    assert store.append(grant, 6, b"5") == ("hole", 4)
    assert store.events("a") == ["1.1 start", "1.2 chunk", "1.3 chunk", "1.4 chunk"]
    assert [event.data for event in store.read("a", grant.id(1)) or ()] == [b"1", b"2", b"3"]


def test_one_call_appends_to_the_logs_of_many_tasks_each_for_itself(store: Store) -> None:
    first, old, short, last = (store.run(name) for name in "abcd")
    store.requeue(old)
    answers = store.append_all(
        [
            (first, 2, [b"1", b"2"], True),
            (old, 2, [b"1"], True),
            (short, 5, [b"1"], True),
            (last, 2, [b"1"], False),
        ]
    )
    assert answers == [("ok", 0), ("stale", 0), ("hole", 1), ("ok", 0)]
    assert [len(store.events(name)) for name in "abcd"] == [3, 1, 1, 2]


def test_the_first_output_drops_the_payload(store: Store) -> None:
    grant = store.run("a", payload=b"body")
    store.append(grant, 2, output=False)
    assert store.payload("a") == b"body"
    store.append(grant, 3, output=True)
    assert store.payload("a") is None


def test_an_old_attempt_appends_nothing(store: Store) -> None:
    old = store.run("a")
    store.requeue(old)
    assert store.append(old, 2) == ("stale", 0)
    (new,) = store.take()
    assert (new.attempt, new.start_seq) == (2, 2)
    for other in (old, new.forged(token="guessed"), new.forged(task_id="nobody")):
        assert store.append(other, 3) == ("stale", 0)
    assert store.append(new, 3) == ("ok", 0)
    assert store.events("a") == ["1.1 start", "2.2 start", "2.3 chunk"]


def test_after_its_output_an_attempt_appends_without_a_script_until_it_ends(store: Store) -> None:
    grant = store.run("a")
    store.append(grant, 2, b"1")
    assert store.append_next(grant, 3, b"2")
    assert not store.append_next(grant, 3, b"2"), "it is in the log"
    assert store.append(grant, 3, b"2", b"3") == ("ok", 0), "the script counts what was added without it"
    assert store.append_next(grant, 5, b"4")
    assert store.append(grant, 7, b"6") == ("hole", 5)
    assert store.finish(grant, 7).outcome == "hole"
    assert store.task("a").top == 5
    store.cancel("a")
    assert not store.append_next(grant, 6), "the end is newer"
    assert [event.data for event in store.read("a", grant.id(1)) or ()][:4] == [b"1", b"2", b"3", b"4"]
    assert store.task("a").top == 6
    store.delete("a")
    assert not store.append_next(grant, 7)


def test_a_repeated_submit_gets_its_grant_while_the_attempt_appends_without_a_script(store: Store) -> None:
    nonce = store.nonce()
    (grant,) = store.submit("a", want=1, nonce=nonce).grants
    store.append(grant, 2, b"1")
    assert store.append_next(grant, 3)
    (again,) = store.submit("a", want=1, nonce=nonce).grants
    assert (again.token, again.start_seq) == (grant.token, 3)
    assert store.append_next(grant, 4)
    assert store.task("a").top == 4


# ---- readers ----------


def test_readers_elsewhere_get_events_and_large_ones_by_id_only(store: Store) -> None:
    reader = store.replica("r2")
    store.heard(), reader.heard()
    grant = store.run("a", follow=True)
    reader.follow("a")
    store.append(grant, 2, b"small", b"x" * 65_536, b"x" * 65_537)
    store.finish(grant, 5)
    assert reader.heard() == [
        ("event", "a", grant.id(2), "chunk", "small"),
        ("event", "a", grant.id(3), "chunk", "x" * 65_536),
        ("event_id", "a", grant.id(4)),
        ("event", "a", grant.id(5), "done", '{"end":1}'),
    ]
    joined = ("reader", "a", str(grant.epoch), "r2")
    assert store.heard() == [joined], "the replica of the writer delivers to its own readers itself"


def test_a_follower_gets_the_task_and_the_events_to_come(store: Store) -> None:
    grant = store.run("a")
    store.append(grant, 2, b"1", b"2")
    task = store.follow("a")
    assert task is not None
    assert (task.state, task.readers, task.top) == ("executing", ["r1"], 3)
    assert store.follow("nobody") is None
    store.finish(grant, 4)
    late = store.replica("r2").follow("a")
    assert late is not None
    assert late.readers == ["r1"], "an ended task takes no more readers"


def test_a_task_of_another_owner_is_as_unknown(store: Store) -> None:
    store.submit("a", user="acme/ann", key="acme")
    assert store.follow("a", owner=("acme", "acme/ann")) is not None
    for owner in (("acme", "acme/bob"), ("other", "acme/ann")):
        assert store.follow("a", owner=owner) is None


def test_a_page_ends_with_the_event_that_reaches_its_size(store: Store) -> None:
    grant = store.run("a")
    sizes = [10, 100_000, 20, 3_000_000, 5, *([50] * 700), 200_000, 1]
    for at, size in enumerate(sizes):
        store.append(grant, at + 2, b"x" * size)
    after, seen = "-", []
    while page := store.read("a", after, 128 * 1024):
        assert sum(len(event.data) + 64 for event in page[:-1]) < 128 * 1024
        seen += page
        after = page[-1].id
    assert [event.seq for event in seen] == list(range(1, len(sizes) + 2))
    assert [len(event.data) for event in seen[1:]] == sizes


def test_a_page_after_an_event_that_the_log_lacks_is_rejected(store: Store) -> None:
    grant = store.run("a")
    store.append(grant, 2, b"1")
    older = f"{grant.epoch - 1}-1"
    assert [event.seq for event in store.read("a", grant.id(1)) or ()] == [2]
    assert store.read("a", grant.id(2)) == []
    assert store.read("a", grant.id(3)) is store.read("a", older) is None
    assert [event.seq for event in store.read("a", older, held=False) or ()] == [1, 2]
    assert store.read("nobody") == []


# ---- ids ----------


def test_a_grant_that_the_store_lost_shares_no_id_with_the_next_one(store: Store) -> None:
    store.submit("a")
    before = store.world.save()
    (lost,) = store.take()
    store.world.advance(0.001)
    store.world.restore(before)
    (grant,) = store.take()
    assert (lost.attempt, grant.attempt) == (1, 1)
    assert grant.epoch > lost.epoch
    assert store.append(lost, 2) == ("stale", 0)
    assert store.renew(lost, grant) == [0, 1]
    assert store.finish(lost).outcome == store.requeue(lost).outcome == "stale"
    assert store.append(grant, 2) == ("ok", 0)


def test_epochs_rise_also_when_the_clock_stops_or_is_set_back(store: Store) -> None:
    epochs = []
    store.submit("a")
    for ms in (0, 0, -60_000, 1000):
        (grant,) = store.take()
        epochs.append(grant.epoch)
        store.requeue(grant, "declined")
        store.world.advance(ms)
    assert epochs == sorted(set(epochs))
    assert store.events("a") == ["1.1 start", "2.2 start", "3.3 start", "4.4 start"]


@pytest.mark.parametrize("how", ["cancel", "sweep", "requeue", "release"])
def test_an_end_that_the_writer_did_not_write_never_takes_the_id_of_one_of_its_events(
    store: Store, how: str
) -> None:
    """The log ends at 2 after a loss; readers have seen 3 and 4 of the same attempt."""
    grant = store.run("a")
    store.renew(grant)
    store.append(grant, 2)
    before = store.world.save()
    store.append(grant, 3, b"3", b"4")
    store.world.restore(before)
    match how:
        case "cancel":
            store.cancel("a")
        case "sweep":
            store.pass_time(16_000)
        case "requeue":
            store.requeue(grant)
        case _:
            store.finish(grant, 0, state="failed")
    end = store.last("a")
    assert (end.seq, store.task("a").end_id) == (3, end.id)
    assert end.id != grant.id(3)


def test_a_task_that_was_never_granted_ends_under_an_id_of_its_own(store: Store) -> None:
    store.submit("a")
    assert store.cancel("a").event_id == f"{store.world.now_us}-1"


def test_the_writers_own_end_has_the_same_id_when_the_store_lost_it(store: Store) -> None:
    grant = store.run("a")
    before = store.world.save()
    first = store.finish(grant, 2, chunks=[b"1"], nonce="n")
    store.world.advance(1000)
    store.world.restore(before)
    again = store.finish(grant, 2, chunks=[b"1"], nonce="n")
    assert first.event_id == again.event_id == grant.id(3)
    assert store.finish(grant, 2, chunks=[b"1"], nonce="n") == again, "repeated"
