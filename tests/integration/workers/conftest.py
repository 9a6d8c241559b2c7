"""Fixtures: a gateway in this process on an empty Redis, and callers of it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.rawworkers import Callers, callers_of
from tests.support.serving import Served, serving


@pytest.fixture
async def served(redis_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(redis_url, tmp_path, heartbeat_ms=1000, dead_after_ms=20_000) as served:
        yield served


@pytest.fixture
async def callers(served: Served) -> AsyncIterator[Callers]:
    async with callers_of(served) as callers:
        yield callers


@pytest.fixture
async def second(redis_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    """Another gateway on the same Redis."""
    async with serving(redis_url, tmp_path / "second") as served:
        yield served


@pytest.fixture
async def elsewhere(second: Served) -> AsyncIterator[Callers]:
    """Its callers."""
    async with callers_of(second) as callers:
        yield callers
