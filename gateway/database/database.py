"""The SQL database of a gateway: connections, transactions, and their deadlines."""

import asyncio
import contextlib
import secrets
import sqlite3
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakSet

import structlog
from sqlalchemy import event, exc
from sqlalchemy.engine import URL, Connection
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from fairlane.gateway.database import schema
from fairlane.gateway.database.address import Address, File, Server, parse_address
from fairlane.gateway.database.errors import DatabaseSlow, DatabaseUnavailable
from fairlane.gateway.database.tables import HEAD
from fairlane.queues.clock import now_ms
from fairlane.queues.logs.rate_limited import RateLimitedLogger
from fairlane.queues.secure_files import make_private_directory, open_private

log = structlog.get_logger("fairlane.gateway")

CONNECT_S = 5.0
BUSY_S = 5.0
"""How long a write to SQLite waits for another one."""
POOL_S = 5.0
"""How long a transaction waits for a connection."""
DEADLINE_S = 15.0
"""The deadline of a transaction."""
CONNECTIONS = 4
"""Of one process. PostgreSQL must allow CONNECTIONS + REPORTS for each process of each replica."""
REPORTS = 2
"""Separate connections for long queries, so that keys and records never wait for a report."""
STATEMENTS = 64
"""Prepared statements that a connection of SQLite keeps, and compiled ones of SQLAlchemy."""
PAGE_CACHE_KIB = 512
"""Of each connection of SQLite; the system caches the file, too."""
REPORT_S = 5.0
"""The deadline of a report."""
UPGRADE_S = 600.0
"""How long migrations may take, and others wait for them."""

_WRITES = "fairlane_writes"
_LOOK_AFTER = 100_000
"""Steps of SQLite's virtual machine, about a millisecond, between two checks of the deadline."""
_DATA = ("22", "23", "42")
"""Classes of PostgreSQL's codes (SQLSTATE) that concern a statement and its values, except NOT_ALLOWED."""
_NOT_ALLOWED = "42501"
_CONNECTION = ("08", "57", "58", "XX")
"""Classes of codes after which the outcome of a COMMIT is unknown: the connection or the server ended, or its system failed."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """An outage: its begin, ms since 1970, and the first error, of a write if one failed."""

    since_ms: int
    why: str
    writes: bool
    """A write failed: a successful read does not end the outage."""


class Database:
    """One database. It connects when a transaction needs a connection; `close` disconnects."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._engine = _engine(address, CONNECTIONS)
        self._reports = _engine(address, REPORTS)
        self._writing = self._engine.execution_options(**{_WRITES: True})
        self._write_lock = asyncio.Lock() if isinstance(address, File) else contextlib.nullcontext()
        """SQLite has one writer at a time and polls for its lock: our writers queue here, without a connection."""
        self._lines = RateLimitedLogger(burst=4, per_second=4 / 60)
        self.dialect = self._engine.dialect.name
        """sqlite or postgresql."""
        self._committed: WeakSet[asyncio.Task[Any]] = WeakSet()
        """Tasks that have committed a change, or may have."""
        self.trouble: Trouble | None = None
        """Why transactions fail now; None while they succeed."""
        self.identifier = ""
        """Identifies the database, once it has started."""

    async def start(self) -> None:
        """Upgrade the schema to HEAD; create the file if there is none. Raises DatabaseError with a sentence."""
        if isinstance(self.address, File):
            await asyncio.to_thread(_make_file, self.address.path)
        async with self.reading() as connection:
            if await connection.run_sync(schema.revision) == HEAD:
                self.identifier = await connection.run_sync(schema.identifier)
                return
        async with self.writing(UPGRADE_S) as connection:
            await connection.run_sync(schema.upgrade)
            self.identifier = await connection.run_sync(schema.identifier)

    async def revision(self) -> str | None:
        """Return the schema's revision; None: there is no database yet, or it is empty."""
        if isinstance(self.address, File) and not self.address.path.exists():
            return None
        async with self.reading() as connection:
            return await connection.run_sync(schema.revision)

    async def close(self) -> None:
        """Close all connections."""
        for engine in (self._reports, self._engine):
            await engine.dispose()

    def reading(
        self, deadline_s: float = DEADLINE_S
    ) -> contextlib.AbstractAsyncContextManager[AsyncConnection]:
        """Open a transaction that sees one state and changes nothing. Raises DatabaseUnavailable."""
        return self._transaction(self._engine, deadline_s)

    @contextlib.asynccontextmanager
    async def reporting(self, deadline_s: float = REPORT_S) -> AsyncIterator[AsyncConnection]:
        """The same for long queries, on separate connections: at the deadline the database stops, too.

        Raises DatabaseUnavailable; DatabaseSlow at the deadline.
        """
        end = time.monotonic() + deadline_s
        try:
            async with self._transaction(self._reports, deadline_s) as connection:
                if self.dialect == "sqlite":  # (asyncpg cancels an abandoned statement itself)
                    file = (await connection.get_raw_connection()).driver_connection
                    assert file is not None
                    await file.set_progress_handler(lambda: time.monotonic() >= end, _LOOK_AFTER)
                yield connection
        except DatabaseUnavailable as error:
            if time.monotonic() < end:
                raise
            raise DatabaseSlow(f"{self.address}: no report within {deadline_s:.0f} s") from error

    def writing(
        self, deadline_s: float = DEADLINE_S
    ) -> contextlib.AbstractAsyncContextManager[AsyncConnection]:
        """Open a transaction that is committed at the end of the block, whole or not at all.

        Raises DatabaseUnavailable. Unless it is `unchanged`, the transaction may be committed all the same, so repeating the
        write must be harmless.
        """
        return self._transaction(self._writing, deadline_s)

    @contextlib.asynccontextmanager
    async def _transaction(self, engine: AsyncEngine, deadline_s: float) -> AsyncIterator[AsyncConnection]:
        try:
            async with self._begun(engine, deadline_s) as connection:
                yield connection
        except DatabaseUnavailable as error:
            if engine is not self._reports:
                self._failed(error, writes=engine is self._writing)
            raise
        if self.trouble is not None and (engine is self._writing or not self.trouble.writes):
            self._recovered(self.trouble)

    def _failed(self, error: DatabaseUnavailable, *, writes: bool) -> None:
        before = self.trouble
        if before is None or (writes and not before.writes):
            since_ms = now_ms() if before is None else before.since_ms
            self.trouble = Trouble(since_ms, str(error), writes)
        if before is None:
            event = "the database is unavailable: tasks continue, and their records wait in Redis"
            self._lines.log(log.error, event, reason=str(error))

    def _recovered(self, trouble: Trouble) -> None:
        self.trouble = None
        after_s = round((now_ms() - trouble.since_ms) / 1000, 1)
        self._lines.log(log.info, "the database is available again", after_s=after_s)

    @contextlib.asynccontextmanager
    async def _begun(self, engine: AsyncEngine, deadline_s: float) -> AsyncIterator[AsyncConnection]:
        """One transaction; the drivers' failures become DatabaseUnavailable."""
        connected = committing = False
        task = asyncio.current_task()
        assert task is not None

        def unavailable(why: str) -> DatabaseUnavailable:
            error = DatabaseUnavailable(f"{self.address}: {why}")
            error.unchanged = not committing and task not in self._committed
            return error

        lock = self._write_lock if engine is self._writing else contextlib.nullcontext()
        try:
            async with asyncio.timeout(deadline_s) as limit, lock, engine.begin() as connection:
                connected = True
                yield connection
                committing = engine is self._writing
            if committing:
                self._committed.add(task)
        except TimeoutError as error:
            if connected and not limit.expired():
                raise  # the block's own
            seconds = deadline_s if limit.expired() else CONNECT_S
            what = "answer" if connected else "connection"
            raise unavailable(f"no {what} within {seconds:.0f} s") from error
        except exc.DBAPIError as error:
            if _is_of_data(error):
                raise
            committing = committing and not _is_undone(error)
            raise unavailable(_why(error)) from error
        except (exc.TimeoutError, OSError) as error:
            raise unavailable(_why(error)) from error


@contextlib.asynccontextmanager
async def opened(database_url: str | None, data_dir: Path) -> AsyncIterator[Database]:
    """Open the database in these settings."""
    database = Database(parse_address(database_url, data_dir))
    try:
        yield database
    finally:
        await database.close()


def _engine(address: Address, connections: int) -> AsyncEngine:
    pool: dict[str, Any] = {"pool_size": connections, "max_overflow": 0, "pool_timeout": POOL_S}
    pool["query_cache_size"] = STATEMENTS
    pool["hide_parameters"] = True  # else the log of a failed statement holds callers' data
    if isinstance(address, Server):
        return create_async_engine(
            address.url,
            pool_recycle=1800,
            pool_pre_ping=True,
            connect_args={
                "timeout": CONNECT_S,
                "server_settings": {"application_name": address.application_name},
                # behind pgbouncer a prepared statement can reach another connection: none is kept, and names are unique
                "statement_cache_size": 0,
                "prepared_statement_cache_size": 0,
                "prepared_statement_name_func": lambda: f"fairlane_{secrets.token_hex(8)}",
                **({"ssl": address.sslmode} if address.sslmode else {}),
            },
            **pool,
        )
    engine = create_async_engine(
        URL.create("sqlite+aiosqlite", database=str(address.path)),
        # transactions are begun by statements: the driver would begin none for reads
        connect_args={
            "timeout": BUSY_S,
            "isolation_level": None,
            "factory": Closing,
            "cached_statements": STATEMENTS,
        },
        **pool,
    )
    event.listen(engine.sync_engine, "connect", _set_pragmas)
    event.listen(engine.sync_engine, "begin", _begin)
    return engine


def _make_file(path: Path) -> None:
    """Create a file that only its owner can open, in WAL mode: readers and the writer do not wait for each other.

    SQLite needs exclusive access to switch the mode and does not wait for it: processes that start together must retry. Raises
    DatabaseUnavailable.
    """
    end = time.monotonic() + BUSY_S
    try:
        make_private_directory(path.parent)
        open_private(path).close()
        with contextlib.closing(sqlite3.connect(path, timeout=BUSY_S)) as connection:
            while True:
                try:
                    connection.execute("PRAGMA journal_mode=WAL")
                    return
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= end:
                        raise
                    time.sleep(0.02)
    except OSError as error:
        raise DatabaseUnavailable(f"cannot write {path}: {error.strerror}") from error
    except sqlite3.Error as error:
        raise DatabaseUnavailable(f"{File(path)}: {error}") from error


class Closing(sqlite3.Connection):
    """Rolls back its transaction when it is closed. SQLite does that only after the last cursor, and the traceback of a cancelled
    statement keeps one: writers would wait for the garbage collector."""

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self.rollback()
        super().close()


def _set_pragmas(connection: DBAPIConnection, _record: object) -> None:
    cursor = connection.cursor()
    for pragma in ("synchronous=FULL", "foreign_keys=ON", f"cache_size=-{PAGE_CACHE_KIB}"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Connection) -> None:
    """Begin a transaction. A writer locks the file immediately: a lock that is needed later fails without waiting."""
    writes = connection.get_execution_options().get(_WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _is_of_data(error: exc.DBAPIError) -> bool:
    """Return whether a statement or its values caused an error; else it is the database: it is unavailable, its disk is full, its
    file is damaged, a fail-over has made it read-only, or it rejects our credentials."""
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return state[:2] in _DATA and state != _NOT_ALLOWED
    if isinstance(getattr(error.orig, "__cause__", None), ValueError):
        return True  # asyncpg, of a value that it cannot send
    return isinstance(error, (exc.DataError, exc.IntegrityError, exc.ProgrammingError))


def _is_undone(error: exc.DBAPIError) -> bool:
    """Return whether the error of a COMMIT says that there was none; a lost connection or a failed disk leave that open."""
    state, code = getattr(error.orig, "sqlstate", None), getattr(error.orig, "sqlite_errorcode", None)
    if state is not None:
        return state[:2] not in _CONNECTION
    return code is not None and code & 0xFF != sqlite3.SQLITE_IOERR


def _why(error: BaseException) -> str:
    """Return the driver's message, in one line and without the statement."""
    origin = getattr(error, "orig", None) or error
    return " ".join(str(origin).split()) or type(origin).__name__
