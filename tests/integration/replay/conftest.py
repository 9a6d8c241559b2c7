"""Fixtures: two gateways on one Redis, and somebody who reads from both."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.support.servers import Server, redis_binary, running_server, valkey_binary
from tests.support.talk import Talk, talking

Pair = tuple[Talk, Talk]
MakePair = Callable[..., AbstractAsyncContextManager[Pair]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server]:
    with running_server(redis_binary() or valkey_binary() or "redis-server") as server:
        yield server


@pytest.fixture
def store(redis_server: Server) -> Iterator[Any]:
    """A client of the shared Redis, which is empty at first."""
    with redis.Redis(unix_socket_path=redis_server.socket_path) as client:
        client.flushall()
        yield client


@pytest.fixture
def pair(redis_server: Server, store: object, tmp_path: Path) -> MakePair:
    """Makes two gateways with settings. Every worker chunk becomes an event of its own unless they say otherwise."""

    @contextlib.asynccontextmanager
    async def make(**settings: Any) -> AsyncIterator[Pair]:
        settings = {"stream_flush_interval_ms": 0, "stream_flush_size": 1, **settings}
        async with (
            talking(redis_server.url, tmp_path / "a", **settings) as a,
            talking(redis_server.url, tmp_path / "b", **settings) as b,
        ):
            yield a, b

    return make
