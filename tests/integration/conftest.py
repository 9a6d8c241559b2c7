"""Fixtures: gateways in this process on the Redis of this session."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.support.talk import Talk, talking


@pytest.fixture
def gateway(redis_url: str, tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[Talk]]:
    """Makes a gateway with settings: `async with gateway(max_queue_length=3) as talk`."""

    def make(**settings: Any) -> AbstractAsyncContextManager[Talk]:
        return talking(redis_url, tmp_path, **settings)

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
