"""What a wrong estimate may be worth, in simulations that drive the real scripts."""

from dataclasses import replace

import pytest
from bench.fairness.checks import ONE_QUEUE
from bench.fairness.fairlane import Fairlane
from bench.fairness.measures import service
from bench.fairness.simulator import SECOND, simulate
from tests.contract.store.store import World
from tests.integration.fairness.users import COST, HONEST, PLAIN, SLOTS
from tests.support.servers import Server

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
