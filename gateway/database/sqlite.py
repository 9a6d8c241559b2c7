"""A private SQLite file, and the connections to it."""

import contextlib
import sqlite3
import time
from pathlib import Path

from fairlane.queues.secure_files import make_private_directory, open_private

BUSY_S = 5.0
"""How long a write waits for another one."""


def make_file(path: Path) -> None:
    """One that its owner alone may open, as SQLite's own files beside it are then. Raises OSError, sqlite3.Error.

    It is in WAL mode from here on, so readers and the writer do not wait for each other. To switch a file over, SQLite needs it
    for itself and does not wait for that: processes that start together must try again.
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
    """Gives up its transaction when it is closed. SQLite itself does that only when the last cursor has gone, and what was
    cancelled amid a statement leaves one in its traceback: nobody could write until the collector came by."""

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self.rollback()
        super().close()
