"""Fixtures: anyio on asyncio, a `FakeGateway` for each test."""

from collections.abc import AsyncIterator

import pytest

from fairlane.workers.testing import FakeGateway


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def gateway() -> AsyncIterator[FakeGateway]:
    async with FakeGateway() as gateway:
        yield gateway
