"""What a wrong estimate may be worth, in a simulation that drives the real scripts."""

from dataclasses import replace

import pytest
from bench.fairness.checks import ONE_QUEUE
from bench.fairness.fairlane import Fairlane
from bench.fairness.measures import service
from bench.fairness.simulator import SECOND, simulate
from tests.integration.fairness.users import COST, HONEST, PLAIN, SLOTS
from tests.support.direct import World
from tests.support.servers import Server


@pytest.mark.xfail(
    strict=True,
    reason="who is estimated too high alone moves the virtual time, to which others are lifted; the refund is its own",
)
def test_who_comes_first_and_asks_for_too_much_is_not_served_alone(redis_server: Server) -> None:
    first = [replace(PLAIN, max_output=4096)] * 300
    later = [replace(PLAIN, client=user, at_us=SECOND // 5) for _ in range(300) for user in HONEST]
    world = World(redis_server.socket_path)
    policy = Fairlane(world, SLOTS, ONE_QUEUE)
    run = simulate(policy, [*first, *later], slots=SLOTS, until_us=10 * SECOND)
    world.close()
    got = service(run, 0, 10 * SECOND)
    assert got[PLAIN.client] <= got[HONEST[0]] + (2 + 2 * SLOTS) * COST, got
