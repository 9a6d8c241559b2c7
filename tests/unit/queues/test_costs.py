"""What is charged: the estimate at the start, what is used while running, the rest at the end; each exactly once."""

import pytest
from tests.support.audit import audit
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


def test_slot_seconds_are_settled_by_the_time_the_slot_was_held(world: World) -> None:
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


def test_a_stream_pays_ahead_for_the_next_fifteen_seconds_by_the_pace_of_its_model(world: World) -> None:
    pool = Pool(world)
    grant = pool.run("a", user="other")
    world.advance(10_000)
    pool.finish(grant, used=(0, 400))
    before = pool.charged()
    grant = pool.run("b")
    assert pool.charged() - before == 2 * 600, "40 tokens a second"
    for output in (300, 900):
        pool.renew(grant, output=output)
        assert pool.charged() - before == 2 * (output + 600)
    pool.finish(grant, used=(0, 1000))
    assert pool.charged() - before == 2 * 1000


@pytest.mark.parametrize(("most", "due"), [(0, 400), (150, 150), (5000, 400)])
def test_it_pays_ahead_for_no_more_than_is_likely_to_come(world: World, most: int, due: int) -> None:
    """By the mean of its user, and what it asks for."""
    pool = Pool(world)
    grant = pool.run("a")
    world.advance(400)
    pool.finish(grant, used=(0, 400))
    before = pool.charged()
    grant = pool.run("b", max_output=most)
    assert pool.charged() - before == 2 * due
    pool.renew(grant, output=100)
    assert pool.charged() - before == 2 * due


def test_a_lift_forgives_a_stream_once(world: World) -> None:
    """Others were served while its user was idle; from where they are it pays for all that it goes on to write."""
    pool = Pool(world, limit=2)
    stream = pool.run("stream", user="long", max_output=10)
    for n in range(8):
        pool.submit(f"s{n}", user="short", max_output=100)
    running = pool.take()
    for _ in range(7):
        world.advance(10_000)
        running = pool.finish(running[0], used=(0, 100), want=1).grants
    pool.submit("next", user="long", max_output=10)
    assert flow_tag(pool, "long") > 1000
    for output in (500, 1000, 1500, 2000, 2500):
        pool.renew(stream, output=output)
    assert flow_tag(pool, "long") == 2 * (2500 + 75)


@pytest.mark.parametrize("used", [(100, 700), (100, 10), (-1, -1), (0, 0)])
@pytest.mark.parametrize("renewed", [(), (60,), (60, 900), (900, 900, 950)])
def test_all_charges_of_a_task_together_are_its_cost(
    world: World, used: tuple[int, int], renewed: tuple[int, ...]
) -> None:
    pool = Pool(world)
    grant = pool.run("a", estimated_input=100, max_output=50)
    for output in renewed:
        pool.renew(grant, output=output)
    pool.finish(grant, used=used)
    known = used != (-1, -1)
    cost = used[0] + 2 * used[1] if known else max(200, *(100 + 2 * (n + 128) for n in renewed), 0)
    assert (pool.charged(), lane_tag(pool), flow_tag(pool)) == (cost, cost, cost)
    audit(world, "a")


def test_absurd_usage_is_cut(world: World) -> None:
    pool = Pool(world)
    grant = pool.run("a")
    pool.renew(grant, output=10**15)
    assert pool.charged() == 2 * 4_194_304
    pool.finish(grant, used=(10**15, 10**15))
    assert pool.charged() == 3 * 4_194_304


# ---- another unit ----------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("tokens", "requests"),
        ("requests", "tokens"),
        ("tokens", "slot_seconds"),
        ("slot_seconds", "requests"),
    ],
)
def test_another_unit_of_cost_leaves_nobody_behind(world: World, before: str, after: str) -> None:
    """Turns counted in thousands of tokens mean nothing in requests: both lanes and both users go on evenly."""
    pool = Pool(world, limit=2)
    pool.configure(2, before)
    pool.set_queue("paid", weight=1.0)
    for n in range(60):
        for queue in ("free", "paid"):
            for user in ("u", "v"):
                pool.submit(
                    f"{queue}{user}{n}", queue=queue, user=user, estimated_input=9000, max_output=4000
                )
    running = pool.take(want=2)

    def serve(number: int) -> list[tuple[str, str]]:
        served = []
        for _ in range(number):
            world.advance(500)
            grant = running.pop(0)
            served.append((grant.queue, grant.user))
            running.extend(pool.finish(grant, used=(9000, 100), want=1).grants)
        return served

    serve(9)
    pool.set_model(cost=after)
    served = serve(48)[4:]
    for queue in ("free", "paid"):
        for user in ("u", "v"):
            assert 9 <= served.count((queue, user)) <= 13, (queue, user)
    audit(world, [f"{q}{u}{n}" for n in range(60) for q in ("free", "paid") for u in "uv"])


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
