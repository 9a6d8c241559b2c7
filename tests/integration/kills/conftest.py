"""Fixtures: an external Redis of each test's own, because these tests stop, kill and empty it."""

from collections.abc import Iterator

import pytest
from tests.support.servers import Server, free_port, redis_binary, running_server, valkey_binary


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def own_redis() -> Iterator[Server]:
    """A Redis without persistence, on a unix socket and a TCP port, for one test alone."""
    binary = redis_binary() or valkey_binary() or "redis-server"
    with running_server(binary, port=free_port()) as server:
        yield server
