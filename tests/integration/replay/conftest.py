"""Fixtures: two gateways on one Redis, and somebody who reads from both."""

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.support.servers import Server
from tests.support.talk import Talk, talking

Pair = tuple[Talk, Talk]
MakePair = Callable[..., AbstractAsyncContextManager[Pair]]


@pytest.fixture
def store(redis_server: Server, redis_url: str) -> Iterator[Any]:
    """A client of the shared Redis, which is empty at first."""
    with redis_server.client() as client:
        yield client


SETTINGS = {"stream_flush_interval_ms": 0, "stream_flush_size": 1}
"""Every worker chunk becomes an event of its own."""


@pytest.fixture
def pair(redis_url: str, tmp_path: Path) -> MakePair:
    """Makes two gateways with settings. Every worker chunk becomes an event of its own unless they say otherwise."""

    @contextlib.asynccontextmanager
    async def make(**settings: Any) -> AsyncIterator[Pair]:
        settings = {**SETTINGS, **settings}
        async with (
            talking(redis_url, tmp_path / "a", **settings) as a,
            talking(redis_url, tmp_path / "b", **settings) as b,
        ):
            yield a, b

    return make


@pytest.fixture
def shared_pair(shared_replicas: MakePair) -> MakePair:
    """Makes two gateways as `pair` does, which the tests of a module share."""
    return functools.partial(shared_replicas, **SETTINGS)
