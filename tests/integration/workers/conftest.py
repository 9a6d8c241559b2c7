"""Fixtures: a gateway in this process on an empty Redis, and callers of it."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from tests.support.rawworkers import Callers, callers_of
from tests.support.serving import Served, serving
from tests.support.talk import Talk

Start = Callable[..., AbstractAsyncContextManager[Talk]]


@pytest.fixture
def start(request: pytest.FixtureRequest, gateway: Start, shared_gateway: Start) -> Start:
    """A gateway with settings: one of the test alone, or one that those marked `shared` have together.

    They also lose no tasks of a version 2 worker: the fifth loss of one begins its rest.
    """
    return shared_gateway if request.node.get_closest_marker("shared") else gateway


@pytest.fixture
async def served(start: Start) -> AsyncIterator[Served]:
    async with start(heartbeat_ms=1000, dead_after_ms=20_000) as talk:
        yield talk.served


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
