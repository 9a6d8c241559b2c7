"""The SQL database of a gateway: connections, transactions, and their deadlines."""

import asyncio
import contextlib
import secrets
import sqlite3
import time
import traceback
from collections.abc import AsyncIterator
from dataclasses import dataclass
from threading import Thread
from typing import Any
from weakref import WeakSet

from sqlalchemy import event, exc
from sqlalchemy.engine import URL, Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from fairlane.gateway.database import schema
from fairlane.gateway.database.address import Address, File, Server
from fairlane.gateway.database.errors import DatabaseCrowded, DatabaseSlow, DatabaseUnavailable
from fairlane.gateway.database.sqlite import FileConnection, make_file
from fairlane.gateway.database.tables import HEAD
from fairlane.queues.clock import now_ms
from fairlane.streaming.turns import Caller, Turns

CONNECT_S = 5.0
POOL_S = 5.0
"""How long a transaction waits for a connection."""
DEADLINE_S = 15.0
"""Of one transaction."""
CLOSE_S = 2.0
"""How long SQLite may take, when all is over, for what was interrupted."""
CONNECTIONS = 4
"""Of a process at most: no task waits for SQL. PostgreSQL must allow as many, and REPORTS, for each process of each replica."""
REPORTS = 2
"""Connections for what may take long: what keys and records need is not among them, and never waits for a report."""
REPORT_S = 5.0
"""The deadline of a report."""
UPGRADE_S = 600.0
"""How long migrations may take, and others wait for them."""

_WRITES = "fairlane_writes"
_LOOK_AFTER = 100_000
"""Steps of SQLite's machine, about a millisecond, between two looks at the clock."""
_DATA = ("22", "23", "42")
"""Classes of PostgreSQL's codes (SQLSTATE) that speak of a statement and its values, but for NOT_ALLOWED."""
_NOT_ALLOWED = "42501"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Since when the database has not done what it was asked for, ms, and what it answered first; to a write, if one failed."""

    since_ms: int
    why: str
    writes: bool
    """It was to write something: that it can be read says nothing."""


class Database:
    """One database. Made without a connection; they come when they are needed and go with `close`."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._threads: WeakSet[Thread] = WeakSet()
        """In which SQLite works, one for each connection. Those of a call that was interrupted are still at it."""
        self._engine = _engine(address, CONNECTIONS, self._threads)
        self._reports = _engine(address, REPORTS, self._threads)
        self._writing = self._engine.execution_options(**{_WRITES: True})
        self._places = Turns(CONNECTIONS)
        """Who asks often waits for himself: the pool has one line for all."""
        self._writers = Turns(1) if isinstance(address, File) else None
        """A file has one writer at a time. Ours come one after the other, with a connection only in their turn: SQLite lets
        those who wait look again now and then, so one that writes without a pause would keep others out."""
        self.dialect = self._engine.dialect.name
        """sqlite or postgresql."""
        self.trouble: Trouble | None = None
        """Why it does not do what it is asked for; None while it does."""
        self.identifier = ""
        """Names the database, from its start on."""

    async def start(self) -> None:
        """Bring the schema to this program's; a file is made where there is none. Raises DatabaseError with a sentence."""
        if isinstance(self.address, File):
            await asyncio.to_thread(_make_file, self.address)
        async with self.reading() as connection:
            if await connection.run_sync(schema.revision) == HEAD:
                self.identifier = await connection.run_sync(schema.identifier)
                return
        async with self.writing(UPGRADE_S) as connection:
            await connection.run_sync(schema.upgrade)
            self.identifier = await connection.run_sync(schema.identifier)

    async def revision(self) -> str | None:
        """The schema's revision; see `schema.revision`. None: there is no database yet, or nothing in it."""
        if isinstance(self.address, File) and not self.address.path.exists():
            return None
        async with self.reading() as connection:
            return await connection.run_sync(schema.revision)

    async def close(self) -> None:
        """Let go of all connections."""
        for engine in (self._reports, self._engine):
            await engine.dispose()
        if self._threads:
            await asyncio.to_thread(_wait_for, [*self._threads])

    def reading(
        self, deadline_s: float = DEADLINE_S, whose: Caller = None
    ) -> contextlib.AbstractAsyncContextManager[AsyncConnection]:
        """A transaction that sees one state and changes nothing. `whose`: for which caller; None: for the gateway, or its
        operators. They have their turns. Raises DatabaseUnavailable."""
        return self._transaction(self._engine, deadline_s, whose)

    @contextlib.asynccontextmanager
    async def reading_in_turn(self, turns: asyncio.Semaphore, what: str) -> AsyncIterator[AsyncConnection]:
        """The same when it is its turn, of `what`: with that it takes no longer than a report."""
        try:
            async with asyncio.timeout(REPORT_S) as limit, turns, self.reading(REPORT_S) as connection:
                yield connection
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise DatabaseUnavailable(f"no answer from {what} within {REPORT_S:.0f} s") from error

    @contextlib.asynccontextmanager
    async def reporting(self, deadline_s: float = REPORT_S) -> AsyncIterator[AsyncConnection]:
        """The same for what may take long, on connections of its own: at the deadline the database stops, too.

        Raises DatabaseUnavailable, and of its kinds DatabaseSlow at the deadline.
        """
        end = time.monotonic() + deadline_s
        try:
            async with self._transaction(self._reports, deadline_s) as connection:
                if self.dialect == "sqlite":  # (asyncpg ends a statement that nobody waits for)
                    file = (await connection.get_raw_connection()).driver_connection
                    assert file is not None
                    await file.set_progress_handler(lambda: time.monotonic() >= end, _LOOK_AFTER)
                yield connection
        except DatabaseUnavailable as error:
            if time.monotonic() < end:
                raise
            raise DatabaseSlow(f"{self.address}: no report within {deadline_s:.0f} s") from error

    def writing(
        self, deadline_s: float = DEADLINE_S, whose: Caller = None
    ) -> contextlib.AbstractAsyncContextManager[AsyncConnection]:
        """A transaction that is committed at the end of the block, whole or not at all. `whose`: see `reading`.

        Raises DatabaseUnavailable; then it may be committed all the same, so what is written must bear to be written again.
        """
        return self._transaction(self._writing, deadline_s, whose)

    @contextlib.asynccontextmanager
    async def _transaction(
        self, engine: AsyncEngine, deadline_s: float, whose: Caller = None
    ) -> AsyncIterator[AsyncConnection]:
        try:
            async with self._begun(engine, deadline_s, whose) as connection:
                yield connection
        except DatabaseUnavailable as error:
            _empty_frames(error)
            if engine is not self._reports and not isinstance(error, DatabaseCrowded):
                self._note(error, writes=engine is self._writing)
            raise
        if self.trouble is not None and (engine is self._writing or not self.trouble.writes):
            self.trouble = None

    def _note(self, error: DatabaseUnavailable, *, writes: bool) -> None:
        before = self.trouble
        if before is None or (writes and not before.writes):
            since_ms = now_ms() if before is None else before.since_ms
            self.trouble = Trouble(since_ms, str(error), writes)

    @contextlib.asynccontextmanager
    async def _turn_of(self, engine: AsyncEngine, whose: Caller) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as turns:
            if engine is self._writing and self._writers is not None:
                await turns.enter_async_context(self._writers.of(whose))
            if engine is not self._reports:
                await turns.enter_async_context(self._places.of(whose))
            yield

    @contextlib.asynccontextmanager
    async def _begun(
        self, engine: AsyncEngine, deadline_s: float, whose: Caller
    ) -> AsyncIterator[AsyncConnection]:
        """One transaction, what the drivers raise told as DatabaseUnavailable."""
        in_turn = connected = False
        try:
            async with asyncio.timeout(deadline_s) as limit, self._turn_of(engine, whose):
                in_turn = True
                async with engine.begin() as connection:
                    connected = True
                    yield connection
        except TimeoutError as error:
            if connected and not limit.expired():
                raise  # the block's own
            if not in_turn:
                raise DatabaseCrowded(f"{self.address}: no turn within {deadline_s:.0f} s") from error
            seconds = deadline_s if limit.expired() else CONNECT_S
            what = "answer" if connected else "connection"
            raise DatabaseUnavailable(f"{self.address}: no {what} within {seconds:.0f} s") from error
        except exc.DBAPIError as error:
            if _is_of_data(error):
                raise
            raise DatabaseUnavailable(f"{self.address}: {_why(error)}") from error
        except (exc.TimeoutError, OSError) as error:
            raise DatabaseUnavailable(f"{self.address}: {_why(error)}") from error


def _engine(address: Address, connections: int, threads: WeakSet[Thread]) -> AsyncEngine:
    """`threads`: takes those of its connections, where they have some."""
    pool: dict[str, Any] = {"pool_size": connections, "max_overflow": 0, "pool_timeout": POOL_S}
    pool["hide_parameters"] = True  # else what callers asked stands in the log with a statement that failed
    if isinstance(address, Server):
        return create_async_engine(
            URL.create(
                "postgresql+asyncpg",
                address.user,
                address.password,
                address.host,
                address.port,
                address.database,
            ),
            pool_recycle=1800,
            pool_pre_ping=True,
            connect_args={
                "timeout": CONNECT_S,
                "server_settings": {"application_name": address.application_name},
                # a prepared statement may meet another connection behind pgbouncer: none is kept, and no name comes twice
                "statement_cache_size": 0,
                "prepared_statement_cache_size": 0,
                "prepared_statement_name_func": lambda: f"fairlane_{secrets.token_hex(8)}",
                **({"ssl": address.sslmode} if address.sslmode else {}),
            },
            **pool,
        )
    path = address.path

    def connect() -> FileConnection:
        connection = FileConnection(path)
        threads.add(connection.thread)
        return connection

    url = URL.create("sqlite+aiosqlite", database=str(path))
    engine = create_async_engine(url, async_creator=connect, **pool)
    event.listen(engine.sync_engine, "begin", _begin)
    return engine


def _wait_for(threads: list[Thread]) -> None:
    """What they still bring to the event loop needs it: it is closed once nobody brings anything, or CLOSE_S later."""
    end = time.monotonic() + CLOSE_S
    for thread in threads:
        thread.join(max(end - time.monotonic(), 0))


def _make_file(file: File) -> None:
    """Raises DatabaseUnavailable."""
    try:
        make_file(file.path)
    except OSError as error:
        raise DatabaseUnavailable(f"cannot write {file.path}: {error.strerror}") from error
    except sqlite3.Error as error:
        raise DatabaseUnavailable(f"{file}: {error}") from error


def _begin(connection: Connection) -> None:
    """A transaction that writes takes the lock at once: one that finds out later that it must write fails without waiting."""
    writes = connection.get_execution_options().get(_WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _empty_frames(error: BaseException) -> None:
    """SQLAlchemy's frames through which this came, and what it comes from, are over and hold nothing any more: of those that look
    at an exception some hold it themselves, and each transaction that failed left hundreds of objects to the collector. What it
    comes from knows no frames any more: context managers of Python 3.13, which are not over yet, hold it, too."""
    cause: BaseException | None = error
    while cause is not None:
        for frame, _ in traceback.walk_tb(cause.__traceback__):
            if str(frame.f_globals.get("__name__")).startswith("sqlalchemy."):
                with contextlib.suppress(RuntimeError):  # one that is not over
                    frame.clear()
        if cause is not error:
            cause.__traceback__ = None
        cause = cause.__cause__ or cause.__context__


def _is_of_data(error: exc.DBAPIError) -> bool:
    """Whether a statement or its values are to blame; else it is the database, for whatever reason: it is away, its disk is full,
    its file is damaged, a fail-over has made it read-only, it does not know us."""
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return state[:2] in _DATA and state != _NOT_ALLOWED
    if isinstance(getattr(error.orig, "__cause__", None), ValueError):
        return True  # asyncpg, of a value that it cannot send
    return isinstance(error, (exc.DataError, exc.IntegrityError, exc.ProgrammingError))


def _why(error: BaseException) -> str:
    """The driver's own words, in one line and without the statement."""
    origin = getattr(error, "orig", None) or error
    return " ".join(str(origin).split()) or type(origin).__name__
