"""Very many names: what no worker offers costs nothing to know, and what is left of walks goes a bounded way per pass.

Counted are the commands that a script calls, by the server's own statistics: no clock.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from tests.contract.store.store import World, drive
from tests.support.pool import Pool
from tests.support.servers import Server

from fairlane.queues.keys import ANY_MODEL
from fairlane.queues.rules import Value
from fairlane.queues.scheduler import MAX_RENEWED, MAX_TAKEN
from fairlane.queues.tasks import TaskSpec
from fairlane.queues.versions import Version

NAMES = 50_000
INVENTED = 10_000
MAX_PER_PASS = 20_000
"""Commands of one script at most: some ten milliseconds."""


@pytest.fixture
def world(redis_server: Server) -> Iterator[World]:
    world = World(redis_server.socket_path, max_queue_length=10 * NAMES)
    world.empty()
    yield world
    world.close()


def commands_of(world: World, act: Callable[[], Any]) -> int:
    """How many commands the scripts called that `act` ran."""
    world.call("CONFIG", "RESETSTAT")
    act()
    lines = world.call("INFO", "commandstats").decode().splitlines()
    calls = [line.partition("calls=")[2].partition(",")[0] for line in lines if line.startswith("cmdstat_")]
    return sum(map(int, calls))


def submit_many(pool: Pool, names: list[str]) -> None:
    link = pool.world.link
    calls = []

    class Collects:
        def run(self, name: str, *args: Any) -> None:
            calls.append(link.words(name, *args))

    scheduler = pool.scheduler
    kept, scheduler._link = scheduler._link, Collects()  # type: ignore[assignment]
    for n, name in enumerate(names):
        scheduler.submit(TaskSpec(f"t{n}", name, "free", f"u{n % 100}", b"{}"), 0, f"n{n}")
    scheduler._link = kept
    for at in range(0, len(calls), 1000):
        pool.world.connection.pipeline(calls[at : at + 1000])


def reconfigure(pool: Pool, at: int) -> Any:
    queues: dict[str, dict[str, Value]] = {"free": {"weight": float(at)}}
    return drive(pool.scheduler.configure(queues, {}, Version(at, at)))


@pytest.mark.slow
def test_invented_names_cost_a_sweep_and_a_configuration_nothing(world: World) -> None:
    costs = {}
    for names in (1, INVENTED):
        world.empty()
        pool = Pool(world, set_up=False)
        reconfigure(pool, 1)
        pool.offer(ANY_MODEL)
        submit_many(pool, [f"name {n % names}" for n in range(INVENTED)])
        assert world.call("HGET", world.keys("queue", queue="free"), "waiting") == str(INVENTED).encode()
        pool.sweep()
        world.advance(1000)
        sweep = commands_of(world, pool.sweep)
        configure = commands_of(world, partial(reconfigure, pool, 2))
        costs[names] = (sweep, configure, world.call("DBSIZE"))
    assert costs[INVENTED] == costs[1]


def test_names_that_are_there_already_are_gone_through_in_bounded_passes(world: World) -> None:
    """As an older version left them, or as so many real models would be."""
    pool = Pool(world, set_up=False)
    reconfigure(pool, 1)
    pool.offer("m")
    for at in range(0, NAMES, 1000):
        batch = range(at, at + 1000)
        world.connection.pipeline(
            [
                ("HSET", world.keys("model", model=f"m{n}"), "virtual_time", "0", "lane_vtime:free", "0")
                for n in batch
            ]
        )
        world.call(
            "ZADD", world.keys("models"), *(text for n in batch for text in (world.now_ms - 10**7, f"m{n}"))
        )
    assert commands_of(world, lambda: reconfigure(pool, 2)) < MAX_PER_PASS
    passes, most = 0, 0
    while world.call("ZCARD", world.keys("models")) > 0:
        world.advance(1000)
        most = max(most, commands_of(world, pool.sweep))
        passes += 1
        assert passes < 2000
    assert most < MAX_PER_PASS
    for _ in range(2):
        world.advance(1000)
        pool.sweep()
    assert world.call("HGET", world.keys("pool"), "ruling") is None, "the change has reached all of them"


def test_a_change_of_a_queue_reaches_all_models_in_the_end(world: World) -> None:
    """Tasks that run already count for a rule; those of very many models do so after some passes."""
    pool = Pool(world, set_up=False)
    pool.configure()
    pool.sweep()
    models = [f"m{n}" for n in range(700)]
    pool.offer(*models)
    for model in models:
        pool.submit(model, model, want=1, user=model)

    def counted() -> int:
        return sum(pool.record(model)["account"].endswith(" 1") for model in models)

    assert counted() == 0
    pool.set_queue("free", max_running=5000)
    assert 499 <= counted() < 700, "(nothing of `m` runs)"
    for _ in range(2):
        pool.pass_time(1000)
    assert counted() == 700


def test_one_take_grants_a_bounded_number_and_the_next_continues(world: World) -> None:
    pool = Pool(world)
    for n in range(1024):
        pool.submit(f"t{n}")
    taken = [len(pool.take(want=1024)) for _ in range(17)]
    assert taken == [MAX_TAKEN] * 16 + [0]


def test_many_renewals_are_several_short_calls(world: World) -> None:
    pool = Pool(world)
    for n in range(1300):
        pool.submit(f"t{n}", user=f"u{n}", linger_ms=10_000)
    grants = [grant for _ in range(11) for grant in pool.take(want=MAX_TAKEN)]
    sizes = []
    run = world.link.run

    def watched(name: str, *args: Any) -> Any:
        sizes.append(int(args[2]) + len(args) - 3 - 6 * int(args[2]))
        return run(name, *args)

    world.link.run = watched  # type: ignore[method-assign]
    readers = [f"t{n}" for n in range(1300)]
    before = {task: int(pool.record(task)["linger_at"]) for task in readers}
    world.advance(500)
    assert pool.renew(*grants, read=readers) == [1] * len(grants)
    assert sum(sizes) == len(grants) + len(readers)
    assert max(sizes) <= MAX_RENEWED
    assert all(int(pool.record(task)["linger_at"]) == before[task] + 500 for task in readers)
    assert pool.renew() == []
