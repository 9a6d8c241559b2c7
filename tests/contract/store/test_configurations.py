"""Replicas with different files: the newest configuration holds, whichever connects last."""

import pytest
from tests.contract.store.store import Store


def bring(store: Store, replica: str, version: tuple[int, int], weight: float) -> str:
    """A replica connects, with a file of that time."""
    queues = {"free": {"weight": weight}, "paid": {"weight": 8.0}}
    return store.replica(replica).apply(queues=queues, version=version)[0]


def weight(store: Store) -> object:
    return store.settings("queue", "free")[0]["weight"]


def test_a_configuration_that_is_left_out_no_longer_holds(store: Store) -> None:
    store.configure(1)
    store.submit("a")
    store.submit("b")
    assert len(store.take(want=2)) == 1
    store.apply()
    assert len(store.take(want=2)) == 1


def test_an_older_configuration_never_replaces_a_newer_one(bare: Store) -> None:
    assert bring(bare, "old", (1000, 5000), 1.0) == "set"
    assert bring(bare, "new", (2000, 4000), 9.0) == "set"
    for _ in range(2):  # it connects again, during a rollout
        queues = {"free": {"weight": 1.0}}
        assert bare.replica("old").apply(queues=queues, version=(1000, 5000)) == ("older", "new")
        assert weight(bare) == 9.0


def test_a_rollout_is_rolled_back_when_its_replicas_are_gone(bare: Store) -> None:
    bring(bare, "old", (1000, 5000), 1.0)
    bring(bare, "new", (2000, 4000), 9.0)
    outcomes = []
    for _ in range(17):
        outcomes.append(bring(bare, "old", (1000, 5000), 1.0))
        bare.pass_time(1000)
    assert outcomes == ["older"] * 15 + ["set", "same"]
    assert weight(bare) == 1.0


def test_a_rejected_configuration_names_a_replica_that_lives_and_has_the_newer_one(bare: Store) -> None:
    stays = bare.replica("stays")
    bring(bare, "stays", (1000, 1000), 9.0)
    bring(bare, "goes", (3000, 3000), 9.0)
    for _ in range(16):
        stays.offer("m")
        stays.pass_time(1000)
    late = bare.replica("late").apply(queues={"free": {"weight": 1.0}}, version=(2000, 2000))
    assert late == ("older", "stays")


def test_a_lone_replica_may_be_given_an_older_file(bare: Store) -> None:
    bring(bare, "alone", (2000, 2000), 9.0)
    assert bring(bare, "alone", (1000, 3000), 1.0) == "set"
    assert weight(bare) == 1.0


@pytest.mark.parametrize(("read", "outcome"), [(4000, "older"), (5000, "set")])
def test_of_files_of_one_time_the_one_read_later_counts(bare: Store, read: int, outcome: str) -> None:
    bring(bare, "a", (1000, 4500), 1.0)
    assert bring(bare, "b", (1000, read), 9.0) == outcome


def test_an_equal_configuration_changes_nothing_but_its_age(bare: Store) -> None:
    bring(bare, "a", (1000, 1000), 9.0)
    assert bring(bare, "b", (3000, 3000), 9.0) == "same"
    assert bring(bare, "c", (500, 500), 9.0) == "same"
    assert bring(bare, "d", (2000, 2000), 1.0) == "older"
    assert bring(bare, "e", (4000, 2000), 1.0) == "set"


def test_a_store_that_lost_its_data_is_configured_again(bare: Store) -> None:
    bring(bare, "a", (1000, 1000), 9.0)
    bare.world.empty()
    assert bring(bare, "a", (1000, 1000), 9.0) == "set"
    assert weight(bare) == 9.0


@pytest.mark.feature("overrides")
def test_overrides_stay_whichever_file_holds(bare: Store) -> None:
    bring(bare, "a", (1000, 1000), 1.0)
    bare.set_queue("free", weight=5.0)
    bring(bare, "b", (2000, 2000), 9.0)
    assert weight(bare) == 5.0
    bare.set_queue("free", weight=None)
    assert weight(bare) == 9.0
