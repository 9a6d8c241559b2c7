"""Fixtures that many tests share: real servers of Redis and Valkey, one each per test session, empty for each test."""

import functools
import gc
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import httpx2._transports.default as transports
import hypothesis
import pytest
import redis.utils
import structlog
from tests.contract.store.store import World
from tests.support.databases import Postgres, place_database, running_postgres, share_compiled_statements
from tests.support.prepared import FORKS, SHARED, python_of_workers, start_fork_server
from tests.support.servers import Server, any_binary, free_port, redis_binary, running_server, valkey_binary

from fairlane.gateway.database.address import FILE, parse_address
from fairlane.gateway.database.database import Database

httpx2.alias_httpx()  # respx knows httpx by its former name

gc.disable()  # until all is imported and collected: that stays

structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=True),
        structlog.dev.ConsoleRenderer(
            colors=False, exception_formatter=structlog.dev.plain_traceback
        ),  # (with the values of variables one takes seconds)
    ]
)

# redis-py reads its version from a file for each connection: 4 ms
redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)

# httpx2 reads the certificates of all authorities for each client: 20 ms
transports.create_ssl_context = functools.cache(transports.create_ssl_context)

share_compiled_statements()

hypothesis.settings.register_profile("any-machine", deadline=None)  # no test is a matter of time
hypothesis.settings.load_profile("any-machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="long runs of the property tests (or FAIRLANE_LONG=1)"
    )
    parser.addoption(
        "--nightly",
        action="store_true",
        help="tests marked slow, PostgreSQL and Valkey too, three times the lives",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Start one fork server for all processes that run tests."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput") and FORKS:
        os.environ[SHARED] = start_fork_server()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    """The tests are collected once, and not by each process that runs some."""
    if FORKS:
        python = python_of_workers(config.args)
        for spec in specs:
            spec.python = python


def pytest_collection_finish() -> None:
    """What all tests and their libraries consist of stays: to look through it takes the collector 0.3 s each time."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave slow tests and PostgreSQL to the nightly run, unless the command line selects tests by mark."""
    if config.getoption("--nightly") or config.getoption("-m"):
        return

    def is_nightly(item: pytest.Item) -> bool:
        return bool(item.get_closest_marker("slow")) or "postgres" in getattr(item, "fixturenames", ())

    config.hook.pytest_deselected(items=[item for item in items if is_nightly(item)])
    items[:] = [item for item in items if not is_nightly(item)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests of scripts on one kind of server, tests of SQL on SQLite; nightly on each kind."""
    nightly = metafunc.config.getoption("--nightly")
    if "any_server" in metafunc.fixturenames:
        kinds = {"redis": redis_binary(), "valkey": valkey_binary()}
        found = [pytest.param(binary, id=kind) for kind, binary in kinds.items() if binary]
        metafunc.parametrize("any_server", found if nightly else found[:1], indirect=True, scope="session")
    if "database_kind" in metafunc.fixturenames:
        kinds_of_sql = ["sqlite", "postgresql"] if nightly else ["sqlite"]
        metafunc.parametrize("database_kind", kinds_of_sql, scope="session")


@pytest.fixture(scope="session")
def any_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server for tests that are to hold on each kind."""
    with running_server(request.param) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server]:
    """One server for all tests of this session. They may make it hang for a while, and nothing more."""
    with running_server() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: Server) -> str:
    """The URL of an empty store."""
    redis_server.empty()
    return redis_server.url


@pytest.fixture
def own_redis() -> Iterator[Server]:
    """A server for one test alone, which may stop, kill and empty it."""
    with running_server(any_binary(), port=free_port()) as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server for all tests of this session, which may not stop it."""
    with running_postgres() as server:
        yield server


@pytest.fixture
def database_url(database_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database that has the schema and nothing else, on each kind."""
    if database_kind == "sqlite":
        place_database(tmp_path)
        return f"sqlite:///{tmp_path}/{FILE}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.new("fairlane")


@pytest.fixture
def empty_database_url(database_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database, on each kind."""
    if database_kind == "sqlite":
        return f"sqlite:///{tmp_path}/{FILE}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.empty("fairlane")


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """An open one, which has the schema, on each kind."""
    database = Database(parse_address(database_url, Path()))
    await database.start()
    yield database
    await database.close()


@pytest.fixture
def world(any_server: Server) -> Iterator[World]:
    """An empty pool whose clock is moved by hand, on each kind of server."""
    world = World(any_server.socket_path)
    world.empty()
    yield world
    world.close()
