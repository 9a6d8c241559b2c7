"""Rules about who may start: pause, running tasks per queue, reserved and lent slots. Each holds from the next decision on."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.audit import audit
from tests.support.direct import Subscription, World
from tests.support.pool import Pool

from fairlane.queues.tasks import Grant

# ---- pause ----------


def backlog(pool: Pool, queue: str, number: int, *, user: str = "", model: str = "m") -> list[str]:
    """`number` waiting tasks of a queue, of one user each unless `user` is given. They ask for what `serve` says they use."""
    ids = [f"{queue}{model}{user}{n:03d}" for n in range(number)]
    for task in ids:
        pool.submit(task, model, queue=queue, user=user or task, max_output=128)
    return ids


def queues_of(grants: list[Grant]) -> list[str]:
    return [grant.queue for grant in grants]


def serve(pool: Pool, running: list[Grant], number: int, used: tuple[int, int] = (0, 128)) -> list[Grant]:
    """`number` times: the oldest of `running` ends and the next starts. Returns what was started."""
    started = []
    for _ in range(number):
        grant = running.pop(0)
        pool.world.advance(10)
        finished = pool.finish(grant, used=used, want=1)
        running.extend(finished.grants)
        started.extend(finished.grants)
    return started


def test_a_paused_queue_starts_nothing_and_others_go_on(world: World) -> None:
    pool = Pool(world)
    pool.submit("a", queue="paid")
    pool.submit("b", queue="free")
    pool.set_queue("paid", paused=True)
    assert pool.taken(want=2) == ["b"]
    pool.set_queue("paid", paused=False)
    assert pool.taken(want=2) == ["a"]
    audit(world, ["a", "b"])


@pytest.mark.parametrize("what", ["queue", "model"])
def test_resuming_wakes_an_idle_replica_and_pausing_does_not(
    world: World, ears: Callable[[Pool], Subscription], what: str
) -> None:
    pool, other = Pool(world), Pool(world, "r2", set_up=False)
    other.offer("m")
    hears = ears(other)
    assert other.take() == []
    change = pool.set_queue if what == "queue" else pool.set_model
    name = "free" if what == "queue" else "m"
    change(name, paused=True)
    pool.submit("a")
    assert hears.drain() == []
    change(name, paused=None)
    assert hears.drain() == [b"wake\nm"]
    assert other.taken() == ["a"]


# ---- running tasks of a queue ----------


def test_a_queue_runs_so_many_over_all_models(world: World) -> None:
    pool = Pool(world)
    pool.offer("m", "m2")
    pool.set_queue("free", max_running=2)
    for task, model in (("a", "m"), ("b", "m2"), ("c", "m"), ("d", "m2")):
        pool.submit(task, model)
    pool.submit("p", "m", queue="paid")
    grants = pool.take("m", "m2", want=5)
    assert sorted(grant.task_id for grant in grants) == ["a", "b", "p"]
    assert pool.take("m", "m2", want=5) == []
    of = {grant.task_id: grant for grant in grants}
    pool.finish(of["a"])
    assert pool.taken("m", "m2", want=5) == ["c"]
    pool.requeue(of["b"])
    assert pool.taken("m", "m2", want=5) == ["b"]
    audit(world, ["a", "b", "c", "d", "p"])


def test_tasks_that_ran_before_a_rule_was_set_count_for_it(world: World) -> None:
    pool = Pool(world)
    first = pool.run("a")
    pool.submit("b")
    pool.set_queue("free", max_running=1)
    assert pool.take() == []
    audit(world, ["a", "b"])
    pool.finish(first)
    assert pool.taken() == ["b"]
    audit(world, ["a", "b"])


def test_a_freed_slot_lets_its_queue_start_on_another_model_immediately(
    world: World, ears: Callable[[Pool], Subscription]
) -> None:
    """`max_running` is over all models: who waits on another one is woken."""
    pool, other = Pool(world), Pool(world, "r2", set_up=False)
    pool.offer("m")
    other.offer("m2")
    hears = ears(other)
    pool.set_queue("free", max_running=1)
    grant = pool.run("a", "m")
    pool.submit("b", "m2")
    assert other.take("m2") == []
    assert hears.drain() == []
    pool.finish(grant, want=1)
    assert hears.drain() == [b"wake\nm2"]


def test_a_paused_queue_saves_no_turns(world: World) -> None:
    """Two queues of one weight; one is paused for a while. Resumed, it gets half, not everything."""
    pool = Pool(world, limit=1)
    pool.set_queue("paid", weight=1.0)
    backlog(pool, "paid", 60)
    backlog(pool, "free", 120)
    running = pool.take()
    serve(pool, running, 10)
    pool.set_queue("paid", paused=True)
    assert set(queues_of(serve(pool, running, 40)[1:])) == {"free"}
    pool.set_queue("paid", paused=None)
    after = queues_of(serve(pool, running, 40))
    assert 19 <= after.count("paid") <= 21


def test_a_queue_at_its_cap_saves_no_turns(world: World) -> None:
    pool = Pool(world, limit=4)
    pool.set_queue("paid", weight=1.0, max_running=1)
    backlog(pool, "paid", 80)
    backlog(pool, "free", 160)
    running = pool.take(want=4)
    started = queues_of(serve(pool, running, 80))
    assert 15 <= started.count("paid") <= 25, "one slot of four"
    pool.set_queue("paid", max_running=None)
    after = queues_of(serve(pool, running, 40))
    assert 18 <= after.count("paid") <= 24


def test_a_queue_whose_slots_are_on_another_model_saves_no_turns(world: World) -> None:
    pool = Pool(world, limit=4)
    pool.offer("m", "m2")
    pool.set_queue("paid", weight=1.0, max_running=3)
    backlog(pool, "paid", 3, model="m2")
    elsewhere = pool.take("m2", want=3)
    backlog(pool, "paid", 80)
    backlog(pool, "free", 160)
    running = pool.take(want=4)
    assert set(queues_of(serve(pool, running, 40))) == {"free"}
    for grant in elsewhere:
        pool.finish(grant)
    assert 18 <= queues_of(serve(pool, running, 40)).count("paid") <= 22


def test_a_queue_does_not_pay_later_for_its_reserve(world: World) -> None:
    """By its weight `free` gets a fifth of the slots, by its reserve half of them."""
    pool = Pool(world, limit=4)
    pool.set_queue("free", reserved=2)
    backlog(pool, "free", 60)
    backlog(pool, "paid", 120)
    running = pool.take(want=4)
    assert 19 <= queues_of(serve(pool, running, 40)).count("free") <= 21
    pool.set_queue("free", reserved=None)
    assert 6 <= queues_of(serve(pool, running, 40)).count("free") <= 10


def test_turns_out_of_a_reserve_push_no_other_queue_back(world: World) -> None:
    """A third queue that comes is lifted to where the others are, not to where the reserved one is."""
    pool = Pool(world, limit=4)
    pool.set_queue("paid", weight=1.0, reserved=2)
    backlog(pool, "paid", 100, user="x")
    running = pool.take(want=4)
    serve(pool, running, 20)
    backlog(pool, "free", 100)
    started = queues_of(serve(pool, running, 40))
    assert 15 <= started.count("free") <= 25


def test_raising_a_limit_wakes_for_every_rule(world: World, ears: Callable[[Pool], Subscription]) -> None:
    pool, other = Pool(world, limit=2), Pool(world, "r2", set_up=False)
    other.offer("m")
    hears = ears(other)
    changes: list[tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = [
        (pool.set_queue, {"max_running": 1}, {"max_running": 2}),
        (pool.set_model, {"concurrency": 1}, {"concurrency": 2}),
        (pool.set_model, {"max_running_per_user": 1}, {"max_running_per_user": None}),
    ]
    for number, (change, lowered, raised) in enumerate(changes):
        name = "free" if change == pool.set_queue else "m"
        change(name, **lowered)
        grant = pool.run(f"a{number}")
        pool.submit(f"b{number}")
        assert other.take() == [], lowered
        assert hears.drain() == [], lowered
        change(name, **raised)
        assert hears.drain() == [b"wake\nm"], raised
        pool.finish(grant)
        pool.finish(*other.take())
        change(name, **dict.fromkeys([*lowered, *raised]))
        hears.drain()
