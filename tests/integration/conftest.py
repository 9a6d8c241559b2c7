"""Fixtures: gateways in this process on the Redis of this session, and some that the tests of a module share."""

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.support.databases import Postgres
from tests.support.servers import Server, running_server
from tests.support.sharing import Sharing
from tests.support.talk import Talk, talking


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
async def sharing(shared_redis: Server, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Sharing]:
    """The gateways that the tests of a module share."""
    sharing = Sharing(shared_redis, lambda: tmp_path_factory.mktemp("shared"))
    yield sharing
    await sharing.close()


@pytest.fixture(scope="module")
def shared_gateway(sharing: Sharing) -> Callable[..., AbstractAsyncContextManager[Talk]]:
    """A gateway that the tests of a module share, one for each kind of settings: used as `gateway` is.

    At the end of a test its workers go and its tasks end. What else it leaves the next one must not notice: tasks that have
    ended, means of durations, counters, rows of the database. So it is not for tests that change settings of the gateway,
    drain it, hang up its Redis, or count all that there is. A second of it costs half of a start, also while it idles: nor is
    it for a few tests among many that wait long.
    """
    return sharing.gateway


@pytest.fixture(scope="module")
def shared_replicas(sharing: Sharing) -> Callable[..., AbstractAsyncContextManager[tuple[Talk, Talk]]]:
    """Two gateways on one Redis, shared likewise: `async with shared_replicas() as (here, there)`."""
    return sharing.replicas


@pytest.fixture(scope="module")
def shared_names() -> Iterator[str]:
    """Names of databases of this module: another one each time, as an older one may still be in use."""
    return map("shared_{}".format, itertools.count(1))


@pytest.fixture(scope="module")
def shared_database(
    database_kind: str, request: pytest.FixtureRequest, shared_names: Iterator[str]
) -> dict[str, str]:
    """Settings of gateways that the tests of a module share: with a database on each kind."""
    if database_kind == "sqlite":
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
