"""Limits of running tasks of a key and of its users, over all models: who is at the limit waits, held, and nobody else does."""

from collections import Counter
from typing import Any

import pytest
from tests.support.audit import Snapshot, audit
from tests.support.direct import World
from tests.support.pool import Pool

from fairlane.queues.limits import pack
from fairlane.queues.tasks import State, Submitted

FAR_MS = 10**12


def of(running: int = 0, user_running: int = 0) -> dict[str, str]:
    """Limits of a key and of its users."""
    return {"key_limits": pack({"max_running": running}), "user_limits": pack({"max_running": user_running})}


def pool_of(world: World, *models: str, limit: int = 0) -> Pool:
    pool = Pool(world, limit=limit)
    pool.offer(*(models or ("m",)), hold_ms=FAR_MS)
    return pool


def held(world: World) -> dict[tuple[str, str], list[str]]:
    """Users that are held, by lane."""
    shot = Snapshot(world)
    return {
        (queue, model): sorted(users)
        for (queue, _, model, _), users in shot.by_kind["at_limit_flows"].items()
    }


@pytest.mark.parametrize(
    ("running", "user_running", "expected"), [(3, 0, 3), (0, 1, 3), (2, 1, 2), (9, 2, 6)]
)
def test_no_more_tasks_run_over_all_models_users_and_replicas(
    world: World, running: int, user_running: int, expected: int
) -> None:
    pool, other = pool_of(world, "m", "m2"), Pool(world, "r2", set_up=False)
    tasks = []
    for number in range(24):
        tasks.append(f"t{number:02}")
        user = f"acme/{'abc'[number % 3]}"
        pool.submit(tasks[-1], ("m", "m2")[number % 2], user=user, **of(running, user_running))
    pool.submit("else", user="else")
    grants = pool.take("m", "m2", want=2) + other.take("m", "m2", want=64)
    assert len([grant for grant in grants if grant.user != "else"]) == expected
    assert "else" in {grant.task_id for grant in grants}, "who has no limit passes"
    audit(world, [*tasks, "else"])
    ended = 0
    while grants:
        world.advance(1)
        pool.renew(*grants)
        replica = (pool, other)[ended % 2]
        grants = grants[1:] + replica.finish(grants[0], want=1, models=["m", "m2"]).grants
        ended += 1
        audit(world, [*tasks, "else"])
        users = Counter(grant.user for grant in grants if grant.user != "else")
        assert sum(users.values()) <= (running or 99)
        assert not user_running or max(users.values(), default=0) <= user_running
    assert ended == 25, "and each has its turn"


def test_a_submit_with_a_free_slot_waits_at_the_limit(world: World) -> None:
    pool = pool_of(world)
    first, second = (pool.submit(task, want=1, user="acme", **of(1)) for task in "ab")
    assert isinstance(first, Submitted)
    assert isinstance(second, Submitted)
    assert ([g.task_id for g in first.grants], second.grants) == (["a"], [])
    assert (second.state, second.place.position) == (State.QUEUED, 1)
    assert pool.finish(first.grants[0], want=1).grants[0].task_id == "b"
    audit(world, "ab")


def test_the_next_parked_user_follows_when_the_first_leaves(world: World) -> None:
    pool = pool_of(world)
    running = pool.run("a", user="acme/a", **of(1))
    for name in "bcd":
        pool.submit(name, user=f"acme/{name}", **of(1))
    assert pool.take(want=3) == []
    assert held(world) == {("free", "m"): ["acme/b", "acme/c", "acme/d"]}
    pool.finish(running)
    (came_back,) = {"acme/b", "acme/c", "acme/d"} - set(held(world)["free", "m"])
    pool.cancel(came_back[-1])
    audit(world, "abcd")
    assert len(pool.take(want=3)) == 1
    audit(world, "abcd")
    for name in "bcd":
        pool.cancel(name)
    pool.pass_time(70_000)
    assert held(world) == {}
    audit(world, "abcd")


def test_held_users_of_a_key_have_their_turns_by_lane_and_user(world: World) -> None:
    pool = pool_of(world)
    pool.configure(0, "requests", max_length=5000)
    pool.offer("m", hold_ms=FAR_MS)
    for number in range(60):
        for user in "ab":
            pool.submit(f"{user}{number:02}", user=f"acme/{user}", queue="free", **of(1))
        pool.submit(f"p{number:02}", user="acme/p", queue="paid", **of(1))
    (running,) = pool.take(want=9)
    turns: list[str] = []
    for _ in range(60):
        turns.append(running.user[-1])
        world.advance(10)
        (running,) = pool.finish(running, want=1).grants
    found = Counter(turns)
    assert abs(found["p"] - 48) <= 2, "by the weights of the queues, 4 to 1"
    assert abs(found["a"] - found["b"]) <= 1


def test_many_users_of_a_key_at_its_limit_do_not_stop_others(world: World) -> None:
    pool = pool_of(world)
    pool.configure(max_length=5000)
    pool.offer("m", hold_ms=FAR_MS)
    for number in range(1500):
        pool.submit(f"a{number}", user=f"acme/u{number:04}", **of(2))
    first = pool.take(want=2)
    pool.submit("last", user="z")
    assert pool.taken() + pool.taken() == ["last"], "1,000 are looked at in a step"
    commands = []
    for grant in first:
        pool.finish(grant)
        commands.append(len(pool.take(want=9)))
    assert commands == [1, 1]
    assert len(held(world)["free", "m"]) >= 1490, "each is looked at once, not all again"


def test_tasks_from_before_a_limit_do_not_count_and_are_not_lost(world: World) -> None:
    pool = pool_of(world)
    pool.submit("a", user="acme")
    none: dict[str, Any] = {}
    for task, limits in (("b", of(1)), ("c", none), ("d", of(1))):
        pool.submit(task, user="acme", **limits)
    grants = pool.take(want=9)
    assert [grant.task_id for grant in grants] == ["a", "b", "c"]
    audit(world, "abcd")
    pool.finish(grants[1])
    assert pool.taken(want=9) == ["d"]
    audit(world, "abcd")
