"""Fixtures: a Redis of this session, emptied before each test, and one or two gateways on it."""

from collections.abc import AsyncIterator, Callable, Iterator
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
    """Makes a gateway with settings: `async with gateway(max_queue_length=3) as talk`."""

    def make(**settings: Any) -> AbstractAsyncContextManager[Talk]:
        return talking(store, tmp_path, **settings)

    return make


@pytest.fixture
async def here(gateway: Callable[..., AbstractAsyncContextManager[Talk]]) -> AsyncIterator[Talk]:
    """Where the operator and the callers are."""
    async with gateway() as talk:
        yield talk


@pytest.fixture
async def there(gateway: Callable[..., AbstractAsyncContextManager[Talk]]) -> AsyncIterator[Talk]:
    """Where the worker is."""
    async with gateway() as talk:
        yield talk
