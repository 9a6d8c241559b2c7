"""What estimates are worth, and what a wrong one may be, in simulations that drive the real scripts."""

from dataclasses import replace

import pytest
from bench.fairness.checks import ONE_QUEUE
from bench.fairness.fairlane import Fairlane
from bench.fairness.measures import service
from bench.fairness.simulator import SECOND, simulate
from bench.fairness.waiting import PROMISED, honesty
from bench.fairness.workloads import WORKLOADS
from tests.integration.fairness.users import COST, HONEST, PLAIN, SLOTS
from tests.support.direct import World
from tests.support.servers import Server


@pytest.mark.parametrize("name", ["trace-like", "weighted", "increase"])
def test_nine_waits_of_ten_lie_within_the_bounds_that_were_told(redis_server: Server, name: str) -> None:
    workload = WORKLOADS[name]()
    world = World(redis_server.socket_path)
    weights = {request.queue: 1.0 for request in workload.requests}
    found = honesty([simulate(Fairlane(world, 20, weights), workload.requests)])
    world.close()
    assert found.told > 300
    assert found.within >= PROMISED, found
    assert found.width < 5, "bounds that say something"


UNKNOWN = 256
"""Tokens that a task of a user is charged ahead for of whom nothing is known."""


@pytest.mark.parametrize("told", [0, 4096, 100_000])
def test_who_comes_first_and_asks_for_too_much_gains_no_more_than_a_first_estimate(
    redis_server: Server, told: int
) -> None:
    """Alone on free slots, he moves the virtual time by what he is charged; others begin there, and he is refunded."""
    first = [replace(PLAIN, max_output=told)] * 300
    later = [replace(PLAIN, client=user, at_us=SECOND // 5) for _ in range(300) for user in HONEST]
    world = World(redis_server.socket_path)
    run = simulate(Fairlane(world, SLOTS, ONE_QUEUE), [*first, *later], slots=SLOTS, until_us=20 * SECOND)
    world.close()
    got = service(run, 0, 20 * SECOND)
    bound = SLOTS * (PLAIN.input + 2 * UNKNOWN) + 2 * COST
    assert got[PLAIN.client] <= got[HONEST[0]] + bound, got
