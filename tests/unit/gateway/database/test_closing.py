"""A connection to a file that is closed amid its work."""

import sqlite3
from pathlib import Path

from fairlane.gateway.database.database import Closing


def test_who_is_closed_with_a_cursor_left_keeps_nobody_from_writing(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    one = sqlite3.connect(path, isolation_level=None, factory=Closing)
    one.execute("BEGIN IMMEDIATE")
    left = one.execute("SELECT 1 UNION SELECT 2")
    one.close()
    other = sqlite3.connect(path, timeout=0, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.close()
    del left
