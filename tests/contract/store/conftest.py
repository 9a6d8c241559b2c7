"""One replica of an empty pool for each test. After the test the whole store is audited."""

from collections.abc import Iterator

import pytest
from tests.contract.store.store import Store, World


@pytest.fixture
def store(world: World) -> Iterator[Store]:
    """A replica whose workers serve the model `m`; the queues are `paid` (weight 4) and `free` (1)."""
    yield Store(world)
    world.check()


@pytest.fixture
def bare(world: World) -> Iterator[Store]:
    """A replica of a pool in which nothing is configured or offered."""
    yield Store(world, set_up=False)
    world.check()
