"""Limits per user of a model: running tasks beyond the cap wait, parked; waiting ones beyond theirs are refused."""

import pytest
from tests.support.audit import audit
from tests.support.direct import World
from tests.support.pool import Pool

from fairlane.queues.tasks import Rejection, State, Submitted


def parked(pool: Pool, queue: str = "free", model: str = "m") -> list[str]:
    key = pool.world.keys("parked", queue=queue, model=model)
    return [user.decode() for user in pool.world.call("ZRANGE", key, 0, -1)]


def test_a_user_at_the_cap_is_passed_over_and_others_go_on(world: World) -> None:
    pool = Pool(world)
    pool.set_model(max_running_per_user=2)
    for task in "abcd":
        pool.submit(task, user="u")
    pool.submit("x", user="v")
    first = pool.take(want=9)
    assert [grant.task_id for grant in first] == ["a", "x", "b"]
    assert parked(pool) == ["u"]
    audit(world, "abcdx")
    pool.finish(first[0])
    assert (parked(pool), pool.taken(want=9)) == ([], ["c"])
    audit(world, "abcdx")


def test_the_cap_counts_over_all_queues_of_a_model_and_for_each_model_alone(world: World) -> None:
    pool = Pool(world)
    pool.offer("m", "m2")
    for model in ("m", "m2"):
        pool.set_model(model, max_running_per_user=1)
    for queue in ("free", "paid"):
        for model in ("m", "m2"):
            pool.submit(f"{queue}-{model}", model, queue=queue)
            pool.submit(f"{queue}-{model}-2", model, queue=queue)
    grants = pool.take("m", "m2", want=9)
    assert sorted(grant.model for grant in grants) == ["m", "m2"]
    assert parked(pool, "free") == parked(pool, "paid") == ["u"]
    of = {grant.model: grant for grant in grants}
    pool.finish(of["m"])
    assert len(pool.take("m", "m2", want=9)) == 1
    assert (parked(pool, "free", "m2"), parked(pool, "paid", "m2")) == (["u"], ["u"])


def test_a_task_of_a_parked_user_waits_its_time_and_no_longer(world: World) -> None:
    pool = Pool(world)
    pool.set_model(max_running_per_user=1)
    grant = pool.run("a")
    pool.submit("b", wait_ms=2000)
    assert pool.take() == []
    pool.renew(grant)
    pool.sweep()
    pool.pass_time(2000)
    assert (pool.state("b"), pool.code("b"), parked(pool)) == (State.FAILED, "QUEUE_TIMEOUT", [])
    audit(world, "ab")


@pytest.mark.parametrize(("cap", "then"), [(3, 2), (2, 1), (None, 3)])
def test_a_cap_raised_or_removed_brings_parked_users_back(world: World, cap: int | None, then: int) -> None:
    pool = Pool(world)
    pool.set_model(max_running_per_user=1)
    for task in "abcd":
        pool.submit(task)
    assert pool.taken(want=9) == ["a"]
    pool.set_model(max_running_per_user=cap)
    assert parked(pool) == []
    assert len(pool.take(want=9)) == then
    audit(world, "abcd")


def test_many_users_at_their_cap_do_not_stop_others(world: World) -> None:
    """More than are parked in one look: the next finds the rest."""
    pool = Pool(world)
    pool.configure(max_length=5000)
    pool.set_model(max_running_per_user=1)
    for n in range(1100):
        pool.submit(f"a{n}", user=f"u{n:04d}")
    assert sum(len(pool.take(want=64)) for _ in range(18)) == 1100
    for n in range(1100):
        pool.submit(f"b{n}", user=f"u{n:04d}")
    pool.submit("last", user="z")
    assert pool.taken() + pool.taken() == ["last"]


def test_a_user_has_so_many_waiting_tasks_and_others_are_let_in(world: World) -> None:
    pool = Pool(world)
    pool.set_model(max_waiting_per_user=2)
    pool.submit("a", queue="free")
    pool.submit("b", queue="paid")
    refused = pool.submit("c", queue="free")
    assert isinstance(refused, Rejection)
    assert (refused.reason, refused.waiting, refused.limit) == ("user_full", 2, 2)
    assert refused.retry_ms > 0
    assert isinstance(pool.submit("d", user="v"), Submitted)
    pool.take()
    assert isinstance(pool.submit("e", queue="free"), Submitted)
    audit(world, "abde")


def test_all_parked_users_return_when_the_cap_is_removed(world: World) -> None:
    pool = Pool(world)
    pool.configure(max_length=10_000)
    pool.set_model(max_running_per_user=1)
    for number in range(1200):
        for turn in "ab":
            pool.submit(f"{turn}{number:04}", user=f"u{number:04}")
    while pool.take(want=500):
        pass
    assert len(parked(pool)) == 1200
    pool.set_model(max_running_per_user=None)
    assert len(parked(pool)) == 200, "no step is longer than it may be"
    pool.pass_time(1000)
    assert parked(pool) == []
