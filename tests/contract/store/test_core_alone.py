"""The store's library without any feature."""

from collections.abc import Iterator

import pytest
from tests.contract.store.store import Store, World
from tests.support.servers import Server

from fairlane.gateway.features import BY_NAME


@pytest.fixture
def core(redis_server: Server) -> Iterator[Store]:
    world = World(redis_server.socket_path, disabled=BY_NAME)
    world.empty()
    yield Store(world)
    world.check()
    world.close()


def test_tasks_run_return_and_end(core: Store) -> None:
    core.configure(2)
    first, second = core.run("a"), core.run("b")
    core.accept("c")
    assert core.append(first, 2, b'{"delta":"x"}')[0] == "ok"
    core.finish(first, 3)
    assert core.requeue(second, "failed", begun=True).outcome == "queued"
    assert sorted(core.taken(want=9)) == ["b", "c"]
    core.cancel("b")
    core.world.advance(60_000)
    core.pass_time(3000)


def test_a_provider_that_asks_for_pauses_uses_up_the_tries_of_a_task(core: Store) -> None:
    outcomes = []
    core.accept("a")
    for _ in range(3):
        (grant,) = core.take()
        outcomes.append(core.requeue(grant, "declined", begun=True, hold_ms=5000).outcome)
    assert outcomes == ["queued", "queued", "ended"], "no feature makes it wait for the provider"
