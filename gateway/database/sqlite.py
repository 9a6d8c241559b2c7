"""SQLite as SQLAlchemy drives it: a file that is made privately, and connections to it with a thread each.

The way to that thread and back takes longer than most statements, and aiosqlite alone goes it four times for each of them: here
a statement goes once, and comes back with its rows.
"""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import aiosqlite

from fairlane.queues.private import append_privately, private_directory

BUSY_S = 5.0
"""How long a write waits for another one."""


def make_file(path: Path) -> None:
    """One that its owner alone may open, as SQLite's own files beside it are then. Raises OSError, sqlite3.Error.

    It is in WAL mode from here on, so readers and the writer do not wait for each other. To switch a file over, SQLite needs it
    for itself and does not wait for that: processes that start together must try again.
    """
    end = time.monotonic() + BUSY_S
    private_directory(path.parent)
    append_privately(path).close()
    with contextlib.closing(sqlite3.connect(path, timeout=BUSY_S)) as connection:
        while True:
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= end:
                    raise
                time.sleep(0.02)


class Closing(sqlite3.Connection):
    """Gives up its transaction when it is closed. SQLite itself does that only when the last cursor has gone, and what was
    cancelled amid a statement leaves one in its traceback: nobody could write until the collector came by."""

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self.rollback()
        super().close()


def _open(path: Path) -> sqlite3.Connection:
    # transactions are begun by statements: the driver would begin none for what is read
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, factory=Closing)
    try:
        for pragma in ("synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}").close()
    except BaseException:
        connection.close()
        raise
    return connection


class FileConnection(aiosqlite.Connection):
    """One connection to a file; awaited once, it is open. What is asked of it happens in the order in which it was asked, also
    where nobody waits for it any more."""

    def __init__(self, path: Path) -> None:
        super().__init__(self._open, iter_chunk_size=64)
        self._thread.daemon = True
        self._path = path
        self._file: sqlite3.Connection | None = None
        self._in_transaction = False
        """Or maybe so: of one whose end was not waited for this is not known."""

    @property
    def thread(self) -> Thread:
        """In which it works."""
        return self._thread

    def cursor(self) -> "_Cursor":  # type: ignore[override]
        """For one statement at a time."""
        return _Cursor(self)

    def stop(self) -> asyncio.Future[Any] | None:
        """End its thread, once: behind that nobody would answer. (A close that is cancelled is tried in two ways.)"""
        if not self._running:
            return None
        self._tx.put_nowait((None, self._close_file))  # also one of which nobody heard that it was opened
        stopped: asyncio.Future[Any] | None = super().stop()
        return stopped

    def _open(self) -> sqlite3.Connection:
        self._file = _open(self._path)
        return self._file

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()

    async def run(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Have this done in the connection's thread."""
        self._in_transaction = True
        await self._execute(work, self._conn)  # type: ignore[no-untyped-call]

    async def commit(self) -> None:
        """Commit the transaction."""
        await super().commit()
        self._in_transaction = False

    async def rollback(self) -> None:
        """Give up the transaction. The pool asks for it with each connection that it gets back: mostly there is none."""
        if self._in_transaction:
            await super().rollback()
            self._in_transaction = False


class _Cursor:
    """What SQLAlchemy expects of one, as far as it goes for statements whose rows are read at once."""

    arraysize = 1

    def __init__(self, connection: FileConnection) -> None:
        self._connection = connection
        self._rows: list[Any] = []
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: int | None = None

    async def __aenter__(self) -> "_Cursor":
        return self

    async def execute(self, statement: str, parameters: Any = ()) -> None:
        """Run it and keep its rows."""
        await self._connection.run(lambda file: self._done(file.execute(statement, parameters)))

    async def executemany(self, statement: str, parameters: Any) -> None:
        """Run it for each of them; there are no rows."""
        await self._connection.run(lambda file: self._done(file.executemany(statement, parameters)))

    def _done(self, cursor: sqlite3.Cursor) -> None:
        with contextlib.closing(cursor):
            self.description = cursor.description
            self._rows = cursor.fetchall()
            self.rowcount, self.lastrowid = cursor.rowcount, cursor.lastrowid

    async def fetchall(self) -> list[Any]:
        """The rows of the statement that ran last."""
        return self._rows

    async def close(self) -> None:
        """There is nothing to let go of."""
