"""Very many names: what no worker offers costs nothing to know, and what is left of walks goes a bounded way per pass.

Counted are the commands that a script calls, by the server's own statistics: no clock.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from tests.contract.store.store import ANY_MODEL, MAX_TAKEN, Store, World
from tests.support.servers import Server

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


def reconfigure(pool: Store, at: int) -> None:
    pool.apply(queues={"free": {"weight": float(at)}}, version=(at, at))


@pytest.mark.slow
def test_invented_names_cost_a_sweep_and_a_configuration_nothing(world: World) -> None:
    costs = {}
    for names in (1, INVENTED):
        world.empty()
        pool = Store(world, set_up=False)
        reconfigure(pool, 1)
        pool.offer(ANY_MODEL)
        for n in range(INVENTED):
            pool.submit(f"t{n}", f"name {n % names}", user=f"u{n % 100}")
        assert world.call("HGET", world.keys("queue", queue="free"), "waiting") == str(INVENTED).encode()
        pool.sweep()
        world.advance(1000)
        sweep = commands_of(world, pool.sweep)
        configure = commands_of(world, partial(reconfigure, pool, 2))
        costs[names] = (sweep, configure, world.call("DBSIZE"))
    assert costs[INVENTED] == costs[1]


def test_names_that_are_there_already_are_gone_through_in_bounded_passes(world: World) -> None:
    """As an older version left them, or as so many real models would be."""
    pool = Store(world, set_up=False)
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


def test_one_take_grants_a_bounded_number_and_the_next_continues(world: World) -> None:
    pool = Store(world)
    for n in range(1024):
        pool.submit(f"t{n}")
    taken = [len(pool.take(want=1024)) for _ in range(17)]
    assert taken == [MAX_TAKEN] * 16 + [0]


def test_many_leases_are_renewed_with_many_readers(world: World) -> None:
    pool = Store(world)
    tasks = [f"t{n}" for n in range(1300)]
    for task in tasks:
        pool.submit(task, user=task, linger_ms=10_000)
    grants = [grant for _ in range(11) for grant in pool.take(want=MAX_TAKEN)]
    world.advance(500)
    assert pool.renew(*grants, read=tasks) == [1] * len(grants)
    assert set(pool.slots().values()) == {15_000}
    assert pool.renew() == []
