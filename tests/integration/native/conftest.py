"""Fixtures: a Redis of this session, emptied before each test, and gateways on it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.support.talk import PrivateRedis, Talk, private_redis, talking


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def redis_server() -> Iterator[PrivateRedis]:
    with private_redis() as server:
        yield server


@pytest.fixture
def store(redis_server: PrivateRedis) -> str:
    """The URL of an empty Redis."""
    with redis_server.client() as client:
        client.flushall()
    return redis_server.url


@pytest.fixture
def gateway(store: str, tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[Talk]]:
    """Makes a gateway with settings: `async with gateway(task_timeout_ms=300) as talk`."""

    def make(**settings: Any) -> AbstractAsyncContextManager[Talk]:
        return talking(store, tmp_path, **settings)

    return make
