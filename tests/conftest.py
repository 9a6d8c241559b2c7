"""Fixtures that many tests share: real servers of Redis and Valkey, one each per test session, empty for each test."""

from collections.abc import Iterator

import pytest
from tests.support.direct import World
from tests.support.servers import Server, redis_binary, running_server, valkey_binary


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="long runs of the property tests (or FAIRLANE_LONG=1)"
    )


def _binaries() -> dict[str, str]:
    found = {"redis": redis_binary(), "valkey": valkey_binary()}
    return {name: path for name, path in found.items() if path}


@pytest.fixture(scope="session", params=sorted(_binaries()) or ["none"])
def any_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server, one of each kind that this machine has: tests that use it run on all of them."""
    binary = _binaries().get(request.param)
    if binary is None:
        pytest.skip("neither redis-server nor Valkey is installed")
    with running_server(binary) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server]:
    """One server, Redis or else Valkey."""
    binaries = _binaries()
    if not binaries:
        pytest.skip("neither redis-server nor Valkey is installed")
    with running_server(binaries.get("redis") or binaries["valkey"]) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: Server) -> str:
    """The URL of an empty store."""
    world = World(redis_server.socket_path, real_clock=True)
    world.call("FLUSHALL")
    world.close()
    return redis_server.url


@pytest.fixture
def world(any_server: Server) -> Iterator[World]:
    """An empty pool whose clock is moved by hand, on each kind of server."""
    world = World(any_server.socket_path)
    world.empty()
    yield world
    world.close()
