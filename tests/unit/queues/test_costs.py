"""What is charged: the estimate at the start, what is used while running, the rest at the end; each exactly once."""

import pytest
from tests.support.direct import World
from tests.support.pool import Pool

from fairlane.queues.tasks import State


def lane_tag(pool: Pool, queue: str = "free", model: str = "m") -> int:
    """Start tag of a lane, waiting or idle, in units of cost / weight."""
    call, keys = pool.world.call, pool.world.keys
    tag = call("ZSCORE", keys("lanes", model=model), queue)
    return int(tag or call("HGET", keys("model", model=model), f"lane_tag:{queue}") or 0) // 4096


def flow_tag(pool: Pool, user: str = "u", queue: str = "free", model: str = "m") -> int:
    """Start tag of a flow, wherever it stands."""
    for kind in ("flows", "parked", "debts"):
        tag = pool.world.call("ZSCORE", pool.world.keys(kind, queue=queue, model=model), user)
        if tag is not None:
            return int(float(tag)) // 4096
    return 0


# ---- estimates ----------


@pytest.mark.parametrize(
    ("size", "most", "cost"), [(0, 0, 512), (100, 50, 200), (100, 100_000, 100 + 2 * 256), (0, 10, 20)]
)
def test_before_anything_is_known_a_task_pays_for_256_tokens_or_what_it_asks_for(
    world: World, size: int, most: int, cost: int
) -> None:
    pool = Pool(world)
    pool.run("a", estimated_input=size, max_output=most)
    assert (pool.charged(), flow_tag(pool)) == (cost, cost)


@pytest.mark.parametrize(("most", "ms"), [(0, 5120), (500, 10_000), (100_000, 81_920)])
def test_slot_seconds_are_guessed_from_the_output_until_some_are_known(
    world: World, most: int, ms: int
) -> None:
    pool = Pool(world)
    pool.configure(unit="slot_seconds")
    pool.run("a", max_output=most)
    assert pool.charged() == ms


def test_slot_seconds_are_settled_by_the_time_of_the_slot(world: World) -> None:
    pool = Pool(world)
    pool.configure(unit="slot_seconds")
    grant = pool.run("a")
    world.advance(2345)
    pool.finish(grant, used=(-1, -1))
    assert pool.charged() == 2345
    pool.run("b")
    assert pool.charged() == 2 * 2345, "the next is expected to take as long"


@pytest.mark.parametrize("how", ["failed", "late finish", "stop over", "after output"])
def test_slot_seconds_are_paid_however_the_task_ends(world: World, how: str) -> None:
    pool = Pool(world)
    pool.configure(unit="slot_seconds")
    grant = pool.run("a")
    if how == "after output":
        pool.append(grant, 2)
    if how in ("late finish", "stop over"):
        pool.cancel("a")
    pool.sweep()
    pool.pass_time(2000)
    match how:
        case "failed":
            pool.finish(grant, state=State.FAILED, used=(-1, -1))
        case "late finish":
            pool.finish(grant, used=(-1, -1))
        case "after output":
            pool.requeue(grant)
        case _:
            pool.pass_time(58_000)
    assert pool.charged() == (60_000 if how == "stop over" else 2000)


# ---- while running ----------


def test_a_stream_pays_while_it_runs_what_it_uses_beyond_its_estimate(world: World) -> None:
    pool = Pool(world)
    grant = pool.run("a", estimated_input=100, max_output=50)
    pool.renew(grant, output=40)
    assert (pool.charged(), flow_tag(pool)) == (200, 200), "nothing beyond the estimate yet"
    pool.renew(grant, output=500)
    cost = 100 + 2 * (500 + 128)
    assert (pool.charged(), flow_tag(pool), lane_tag(pool)) == (cost, cost, cost), (
        "half as far ahead, as it was wrong"
    )
    pool.renew(grant, output=500)
    pool.renew(grant, output=300)
    assert pool.charged() == cost, "once"
    pool.renew(grant)
    assert pool.charged() == cost


def test_absurd_usage_is_cut(world: World) -> None:
    pool = Pool(world)
    grant = pool.run("a")
    pool.renew(grant, output=10**15)
    assert pool.charged() == 2 * 4_194_304
    pool.finish(grant, used=(10**15, 10**15))
    assert pool.charged() == 3 * 4_194_304


# ---- a cold start ----------


@pytest.mark.parametrize("known", [False, True], ids=["cold model", "new user"])
def test_who_comes_while_a_new_user_floods_a_model_waits_for_few_of_its_tasks(
    world: World, known: bool
) -> None:
    """Short answers, charged before anything is known of them. What they were charged too much comes back to their user when they
    end, but not to who has come in the meantime, and stands behind it."""
    pool = Pool(world, limit=16)
    if known:
        grant = pool.run("first", user="other")
        world.advance(10)
        pool.finish(grant, used=(10, 10))
    for number in range(900):
        pool.submit(f"flood{number}", user="flood", estimated_input=10)
    running = pool.take(want=16)

    def end_one() -> None:
        world.advance(100)
        running.extend(pool.finish(running.pop(0), used=(10, 2), want=1).grants)

    for _ in range(16):
        end_one()
    pool.submit("late", user="late", estimated_input=10)
    before = 0
    while running[-1].user == "flood":
        end_one()
        before += 1
    assert before <= 64
