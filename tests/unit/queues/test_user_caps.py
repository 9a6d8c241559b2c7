"""Limits per user of a model: running tasks beyond the cap wait, parked; waiting ones beyond theirs are refused."""

from collections.abc import Callable

import pytest
from tests.support.audit import audit
from tests.support.direct import World
from tests.support.pool import Pool
from tests.support.servers import Server

from fairlane.queues.tasks import Grant, Refused, State, Submitted


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


HOWS = [
    "finish",
    "cancel, then finish",
    "cancel, then requeue",
    "requeue",
    "lease over",
    "deadline over",
    "stop over",
]


@pytest.mark.parametrize("how", HOWS)
def test_a_parked_user_returns_however_the_task_ends(world: World, any_server: Server, how: str) -> None:
    pool, other = Pool(world), Pool(world, "r2", set_up=False)
    pool.set_model(max_running_per_user=1)
    grant = pool.run("a", timeout_ms=5000 if how == "deadline over" else 0)
    for queue in ("free", "paid"):
        pool.submit(f"b-{queue}", queue=queue)
    other.offer("m")
    assert other.take(want=2) == []
    assert parked(pool, "free") == parked(pool, "paid") == ["u"]
    pool.sweep()
    hears = other.ears(any_server.socket_path)
    if "cancel" in how or "stop" in how:
        pool.cancel("a")
        assert other.take(want=2) == [], "its worker still runs it"
    if "finish" in how:
        pool.finish(grant)
    elif "requeue" in how:
        pool.requeue(grant)
    else:
        if how == "deadline over":
            pool.renew(grant)
        pool.pass_time({"lease over": 3000, "deadline over": 66_000, "stop over": 61_000}[how])
        assert pool.slots() == {}
    assert b"w\nm" in hears.drain()
    hears.close()
    assert parked(pool, "free") == parked(pool, "paid") == []
    assert len(other.take(want=2)) == 1
    audit(world, ["a", "b-free", "b-paid"])


def test_a_parked_user_whose_last_waiting_task_goes_is_parked_no_more(world: World) -> None:
    pool = Pool(world)
    pool.set_model(max_running_per_user=1)
    grant = pool.run("a")
    pool.submit("b")
    assert pool.take() == []
    pool.cancel("b")
    assert parked(pool) == []
    audit(world, "ab")
    pool.submit("c")
    assert pool.take() == []
    pool.finish(grant)
    assert pool.taken() == ["c"]
    audit(world, "abc")


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


def test_a_task_given_back_by_its_parked_user_goes_to_its_old_place(world: World) -> None:
    pool = Pool(world)
    pool.set_model(max_running_per_user=1)
    grant = pool.run("a")
    world.advance(1)
    pool.submit("b")
    assert pool.take() == []
    pool.requeue(grant, "declined")
    assert pool.taken() == ["a"]
    assert pool.take() == []
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


def test_a_cap_set_or_lowered_counts_what_runs_already(world: World) -> None:
    pool = Pool(world)
    for task in "abcde":
        pool.submit(task)
    first: list[Grant] = pool.take(want=3)
    pool.set_model(max_running_per_user=2)
    assert pool.take() == []
    pool.finish(first[0])
    assert pool.take() == [], "two run still"
    audit(world, "abcde")
    pool.finish(first[1])
    assert pool.taken() == ["d"]
    pool.set_model(max_running_per_user=1)
    pool.finish(first[2])
    assert pool.take() == []
    audit(world, "abcde")


def test_a_parked_user_saves_no_turns_and_loses_none(world: World) -> None:
    pool = Pool(world, limit=2)
    pool.set_model(max_running_per_user=1, cost="requests")
    for n in range(40):
        pool.submit(f"u{n:02d}", user="u")
        pool.submit(f"v{n:02d}", user="v")
        pool.submit(f"w{n:02d}", user="w")
    running = pool.take(want=2)
    users: list[str] = []
    for _ in range(60):
        users.extend(grant.user for grant in running[:1])
        world.advance(10)
        running = running[1:] + pool.finish(running[0], want=1).grants
        assert len({grant.user for grant in running}) == len(running) == 2
    assert {users.count(user) for user in "uvw"} <= {19, 20, 21}


def test_many_users_at_their_cap_stop_nobody_else(world: World) -> None:
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
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.waiting, refused.limit) == ("user_full", 2, 2)
    assert refused.retry_ms > 0
    assert isinstance(pool.submit("d", user="v"), Submitted)
    pool.take()
    assert isinstance(pool.submit("e", queue="free"), Submitted)
    audit(world, "abde")


def test_a_task_given_back_is_never_refused_by_its_users_own_limit(world: World) -> None:
    pool = Pool(world)
    pool.set_model(max_waiting_per_user=1)
    grant = pool.run("a")
    pool.submit("b")
    assert pool.requeue(grant).outcome == "queued"
    refused = pool.submit("c")
    assert isinstance(refused, Refused)
    assert (refused.waiting, refused.limit) == (2, 1)


def test_a_lowered_limit_of_waiting_tasks_drops_none(world: World) -> None:
    pool = Pool(world)
    for task in "abc":
        pool.submit(task)
    pool.set_model(max_waiting_per_user=1)
    assert isinstance(pool.submit("d"), Refused)
    pool.set_model(max_waiting_per_user=None)
    assert isinstance(pool.submit("d"), Submitted)
    audit(world, "abcd")


Change = Callable[[Pool], object]


@pytest.mark.parametrize(
    "change",
    [
        lambda pool: pool.set_model(max_running_per_user=None, paused=True),
        lambda pool: pool.set_queue("free", paused=True),
        lambda pool: pool.set_model(concurrency=1),
    ],
)
def test_other_changes_leave_parked_users_countable(world: World, change: Change) -> None:
    pool = Pool(world)
    pool.set_model(max_running_per_user=1)
    grant = pool.run("a")
    pool.submit("b")
    assert pool.take() == []
    change(pool)
    audit(world, "ab")
    pool.finish(grant)
    audit(world, "ab")
    pool.set_model(paused=None)
    pool.set_queue("free", paused=None)
    assert pool.taken() == ["b"]


@pytest.mark.parametrize("cap", [None, 1])
def test_a_cap_changes_nothing_about_what_its_user_owes(world: World, cap: int | None) -> None:
    """A lift forgives what a running task turns out to cost, whether its user was parked meanwhile or idle."""
    pool = Pool(world, limit=2)
    if cap:
        pool.set_model(max_running_per_user=cap)
    pool.submit("long", user="u", max_output=0)
    (long,) = pool.take()
    if cap:
        pool.submit("next", user="u")
    for number in range(20):
        pool.submit(f"v{number:02}", user="v")
    for number in range(20):
        (grant,) = pool.take()
        if number < 19:
            pool.finish(grant, used=(0, 500))
    for number in range(20, 60):
        pool.submit(f"v{number:02}", user="v")
    pool.finish(long, used=(0, 5000))
    if not cap:
        pool.submit("next", user="u")
    pool.finish(grant, used=(0, 500))
    turns = []
    while "u" not in turns:
        (grant,) = pool.take()
        turns.append(grant.user)
        pool.finish(grant, used=(0, 500))
    assert len(turns) <= 3


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
