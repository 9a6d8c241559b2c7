"""A private SQLite file, and the connections to it."""

import contextlib
import sqlite3
import time
from pathlib import Path

from fairlane.queues.secure_files import make_private_directory, open_private

BUSY_S = 5.0
"""How long a write waits for another one."""


def make_file(path: Path) -> None:
    """Create a file that only its owner can open, in WAL mode: readers and the writer do not wait for each other. Raises OSError,
    sqlite3.Error.

    SQLite needs exclusive access to switch the mode and does not wait for it: processes that start together must retry.
    """
    end = time.monotonic() + BUSY_S
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


class Closing(sqlite3.Connection):
    """Rolls back its transaction when it is closed. SQLite does that only after the last cursor, and the traceback of a cancelled
    statement keeps one: writers would wait for the garbage collector."""

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self.rollback()
        super().close()
