"""A free slot with an eligible task is filled, or a replica with a free slot is woken; offers of models and their ends."""

import pytest
from tests.contract.store.store import ANY_MODEL, Store


def test_a_task_that_cannot_start_here_wakes_one_idle_replica(store: Store) -> None:
    second, third = store.replica("r2"), store.replica("r3")
    for replica in (second, third):
        replica.heard()
        replica.offer("m")
        assert replica.take(want=2) == []
        store.world.advance(1)
    store.submit("a")
    assert (second.heard(), third.heard()) == ([("wake", "m")], [])
    assert second.take("m", want=0) == [], "it has no slot after all and passes the wake-up on"
    assert (second.heard(), third.heard()) == ([], [("wake", "m")])
    assert third.taken(want=2) == ["a"]
    store.submit("b")
    assert third.heard() == [("wake", "m")], "it still has a free slot"


def test_a_replica_that_got_less_than_it_asked_for_is_woken_for_the_next_task(store: Store) -> None:
    other = store.replica("r2")
    store.offer("m", "m2")
    for name in "abc":
        store.submit(name)
    store.submit("d", "m2")
    assert other.take("m3") == []
    other.take("m2", want=2)
    other.heard()
    store.submit("e", "m2")
    assert other.heard() == [("wake", "m2")]


@pytest.mark.parametrize(
    "how", ["finish", "late finish", "requeue", "raised limit", "lease over", "stop over"]
)
def test_every_release_of_a_slot_wakes_an_idle_replica(store: Store, how: str) -> None:
    store.configure(1)
    other = store.replica("r2")
    grant = store.run("running")
    store.submit("next", user="v")
    store.sweep()
    other.offer("m")
    assert other.take("m") == []
    if how in ("late finish", "stop over"):
        store.cancel("running")
    assert other.heard() == []
    match how:
        case "finish" | "late finish":
            store.finish(grant)
        case "requeue":
            store.requeue(grant)
        case "raised limit":
            store.configure(2)
        case _:
            store.pass_time(70_000 if how == "stop over" else 3000)
    heard = other.heard()
    assert ("wake", "m") in heard or ("wake_all", "m") in heard


def test_the_sweep_repeats_wake_ups_to_all_replicas_once_a_second(store: Store) -> None:
    others = store.replica("r2"), store.replica("r3")
    for other, model in zip(others, ("m", ANY_MODEL), strict=True):
        other.heard()
        other.offer(model)
    store.submit("a")
    store.sweep()
    assert [other.heard() for other in others] == [[("wake_all", "m")]] * 2
    store.world.advance(500)
    store.sweep()
    assert others[0].heard() == []
    store.world.advance(500)
    store.sweep()
    assert others[0].heard() == [("wake_all", "m")]


def test_offers_end_by_themselves_and_a_withdrawal_may_have_a_grace(store: Store) -> None:
    store.world.advance(14_999)
    store.accept("a")
    store.world.advance(7001)
    answer = store.reject("b")
    assert (answer.reason, answer.retry_ms) == ("no_worker", 7000), "as long again as it has been gone"
    store.offer("m")
    store.offer(withdrawn=["m"], grace_ms=100_000)
    store.world.advance(99_999)
    store.accept("c")
    store.world.advance(1)
    assert store.reject("d").retry_ms == 1000


def test_a_dead_replica_leaves_nothing(store: Store) -> None:
    dead = store.replica("dead-replica")
    dead.offer("m")
    dead.take("m")
    store.sweep()
    for _ in range(80):
        store.offer("m")
        store.pass_time(1000)
    store.world.advance(10 * 60_000)
    store.offer("m")
    assert b"dead-replica" not in b"".join(store.world.contents().values())


def test_a_model_idle_for_an_hour_is_forgotten_with_its_fair_shares(bare: Store) -> None:
    bare.offer("some-model")
    bare.finish(bare.run("a", "some-model"), models=["some-model"])
    bare.pass_time(3_602_000, step_ms=4_000)
    assert not [name for name in bare.world.names(lasting=True) if "some-model" in name]
