"""Fixtures: gateways in this process on the Redis of this session, and some that the tests of a module share."""

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.databases import Postgres
from tests.support.servers import Server, running_server
from tests.support.serving import Served, serving
from tests.support.talk import Talk, caller_of, end_all, talking


@pytest.fixture
def gateway(redis_url: str, tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[Talk]]:
    """Makes a gateway with settings: `async with gateway(max_queue_length=3) as talk`."""

    def make(**settings: Any) -> AbstractAsyncContextManager[Talk]:
        return talking(redis_url, tmp_path, **settings)

    return make


@pytest.fixture(scope="session")
def shared_redis() -> Iterator[Server]:
    """A server for gateways that tests share: it is not emptied for each."""
    with running_server() as server:
        yield server


@pytest.fixture(scope="module")
async def shared_gateway(
    shared_redis: Server, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Callable[..., AbstractAsyncContextManager[Talk]]]:
    """A gateway that the tests of a module share, one for each kind of settings: used as `gateway` is.

    At the end of a test its workers go and its tasks end. What else it leaves the next one must not notice: tasks that have
    ended, means of durations, counters, rows of the database. So it is not for tests that change settings of the gateway,
    drain it, hang up its Redis, or count all that there is.
    """
    idle: list[tuple[dict[str, Any], Served]] = []
    started = 0
    async with AsyncExitStack() as stack:

        async def start(settings: dict[str, Any]) -> Served:
            nonlocal started
            with shared_redis.client() as client:
                client.select(started)
                client.flushdb()
            url, started = f"{shared_redis.url}?db={started}", started + 1
            return await stack.enter_async_context(
                serving(url, tmp_path_factory.mktemp("shared"), **settings)
            )

        @asynccontextmanager
        async def share(**settings: Any) -> AsyncIterator[Talk]:
            found = next((one for one in idle if one[0] == settings), None)
            if found:
                idle.remove(found)
            served = found[1] if found else await start(settings)
            async with caller_of(served) as talk:
                yield talk
            await end_all(served)
            idle.append((settings, served))  # not after a test that failed: who knows what it has left

        yield share


@pytest.fixture(scope="module")
def shared_names() -> Iterator[str]:
    """Names of databases of this module: another one each time, as an older one may still be in use."""
    return map("shared_{}".format, itertools.count(1))


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def shared_database(request: pytest.FixtureRequest, shared_names: Iterator[str]) -> dict[str, str]:
    """Settings of gateways that the tests of a module share: with a database on each kind."""
    if request.param == "sqlite":
        return {}
    server: Postgres = request.getfixturevalue("postgres")
    return {"database_url": server.new(next(shared_names))}


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
