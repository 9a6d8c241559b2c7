"""Fixtures: anyio on asyncio, a `FakeGateway` for each test."""

from collections.abc import AsyncIterator

import pytest

from fairlane.workers.testing import FakeGateway


@pytest.fixture
async def gateway() -> AsyncIterator[FakeGateway]:
    async with FakeGateway() as gateway:
        yield gateway
