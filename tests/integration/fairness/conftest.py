"""Two gateways, four workers and their Redis for all tests of this folder; each test has a model of its own."""

from collections.abc import AsyncIterator

import pytest
from bench.fairness.live_stack import Key, Stack, running
from tests.integration.fairness.users import EVERYBODY, SLOTS


@pytest.fixture(scope="session")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """Workers with two slots more than the tests' models may use."""
    keys: list[Key] = EVERYBODY
    async with running(tmp_path_factory.mktemp("live"), keys, SLOTS + 2) as live:
        yield live
