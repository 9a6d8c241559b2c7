"""Replicas with different files: the newest configuration holds, whoever connects last."""

import pytest
from tests.contract.store.store import World, drive
from tests.support.pool import Pool

from fairlane.queues.overrides import Actor
from fairlane.queues.rules import Value
from fairlane.queues.versions import ConfigStatus, Configuration, Version, hash_of, read_configuration

Queues = dict[str, dict[str, Value]]


def bring(world: World, replica: str, version: tuple[int, int], weight: float) -> ConfigStatus:
    """A replica connects, with a file of that time."""
    queues: Queues = {"free": {"weight": weight}, "paid": {"weight": 8.0}}
    standing: ConfigStatus = drive(world.scheduler(replica).configure(queues, {}, Version(*version)))
    return standing


def weight(world: World) -> float:
    settled = drive(world.scheduler("any").effective("queue", "free"))
    return float(settled.values["weight"])


def test_an_older_configuration_never_replaces_a_newer_one(world: World) -> None:
    assert bring(world, "old", (1000, 5000), 1.0).outcome == "set"
    newer = bring(world, "new", (2000, 4000), 9.0)
    assert (newer.outcome, weight(world)) == ("set", 9.0)
    for _ in range(2):  # it connects again, during a rollout
        standing = bring(world, "old", (1000, 5000), 1.0)
        assert standing == ConfigStatus("older", newer.effective, newer.born)
        assert weight(world) == 9.0
    assert standing.effective[:2] == (2000, 4000)
    assert standing.effective.replica == "new"


def test_a_rollout_is_rolled_back_when_its_replicas_are_gone(world: World) -> None:
    old = Pool(world, "old", set_up=False)
    bring(world, "old", (1000, 5000), 1.0)
    bring(world, "new", (2000, 4000), 9.0)
    outcomes = []
    for _ in range(17):
        outcomes.append(bring(world, "old", (1000, 5000), 1.0).outcome)
        old.pass_time(1000)
    assert outcomes == ["older"] * 15 + ["set", "same"]
    assert weight(world) == 1.0


def test_who_is_overruled_hears_of_a_replica_that_lives_and_not_of_the_dead_one_that_brought_it(
    world: World,
) -> None:
    pool = Pool(world, "stays", set_up=False)
    bring(world, "stays", (1000, 1000), 9.0)
    bring(world, "goes", (3000, 3000), 9.0)
    for _ in range(16):
        pool.offer("m")
        pool.pass_time(1000)
    standing = bring(world, "late", (2000, 2000), 1.0)
    assert (standing.outcome, standing.effective[:2]) == ("older", (3000, 3000))
    assert standing.effective.replica == "stays"


def test_a_lone_replica_may_be_given_an_older_file(world: World) -> None:
    bring(world, "alone", (2000, 2000), 9.0)
    assert bring(world, "alone", (1000, 3000), 1.0).outcome == "set"
    assert weight(world) == 1.0


@pytest.mark.parametrize("read", [4000, 5000])
def test_of_files_of_one_time_the_one_read_later_counts(world: World, read: int) -> None:
    bring(world, "a", (1000, 4500), 1.0)
    assert bring(world, "b", (1000, read), 9.0).outcome == ("older" if read == 4000 else "set")


def test_an_equal_configuration_changes_nothing_but_its_age(world: World) -> None:
    bring(world, "a", (1000, 1000), 9.0)
    world.call("HSET", world.keys("queue", queue="free"), "weight", "5")  # seen if it were set again
    assert bring(world, "b", (3000, 3000), 9.0).outcome == "same"
    assert weight(world) == 5.0
    assert bring(world, "c", (500, 500), 9.0).outcome == "same"
    assert bring(world, "d", (2000, 2000), 1.0).outcome == "older"
    assert bring(world, "e", (4000, 2000), 1.0).outcome == "set"


def test_a_store_that_lost_its_data_is_configured_again(world: World) -> None:
    bring(world, "a", (1000, 1000), 9.0)
    world.empty()
    assert bring(world, "a", (1000, 1000), 9.0).outcome == "set"
    assert weight(world) == 9.0


def test_changes_while_running_stay_whichever_file_holds(world: World) -> None:
    bring(world, "a", (1000, 1000), 1.0)
    drive(world.scheduler("a").override("queue", "free", {"weight": 5.0}, Actor("ops", "")))
    bring(world, "b", (2000, 2000), 9.0)
    assert weight(world) == 5.0
    drive(world.scheduler("a").override("queue", "free", {"weight": None}, Actor("ops", "")))
    assert weight(world) == 9.0


def test_who_runs_what_is_known_as_long_as_a_replica_lives(world: World) -> None:
    pool = Pool(world, set_up=False)
    bring(world, "r1", (2000, 2000), 9.0)
    bring(world, "old", (1000, 1000), 1.0)

    def known() -> dict[str, Configuration]:
        flat = world.call("HGETALL", world.keys("versions"))
        return {flat[i].decode(): read_configuration(flat[i + 1]) for i in range(0, len(flat), 2)}

    assert {name: version[:2] for name, version in known().items()} == {
        "r1": (2000, 2000),
        "old": (1000, 1000),
    }
    assert known()["r1"].hash != known()["old"].hash
    for _ in range(90):
        pool.offer("m")
        pool.pass_time(1000)
    assert set(known()) == {"r1"}


def test_the_hash_names_what_is_said_not_in_which_order() -> None:
    assert hash_of(["a", 1, "b", 2]) == hash_of(["b", 2, "a", 1])
    assert len({hash_of([]), hash_of(["a", 1]), hash_of(["a", 2]), hash_of(["b", 1])}) == 4
