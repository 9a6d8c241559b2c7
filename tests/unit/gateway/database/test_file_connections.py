"""Connections to a file: what SQLAlchemy asks of them goes to their threads in few steps, and in order."""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.serving import until

from fairlane.gateway.database.sqlite import FileConnection, make_file

pytestmark = pytest.mark.anyio


class Counting(FileConnection):
    """Counts the ways to its thread."""

    ways = 0

    async def _execute(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        self.ways += 1
        return await super()._execute(fn, *args, **kwargs)  # type: ignore[no-untyped-call]


@pytest.fixture
async def connection(tmp_path: Path) -> AsyncIterator[Counting]:
    make_file(tmp_path / "x.db")
    connection = Counting(tmp_path / "x.db")
    await connection
    yield connection
    await connection.close()


async def run(connection: FileConnection, statement: str, *values: object) -> list[Any]:
    cursor = connection.cursor()
    await cursor.execute(statement, values)
    return await cursor.fetchall()


async def test_a_statement_goes_to_the_thread_once_and_comes_back_with_its_rows(connection: Counting) -> None:
    cursor = connection.cursor()
    await cursor.execute("SELECT 1 AS one UNION SELECT ? ORDER BY one", (2,))
    assert connection.ways == 1
    assert await cursor.fetchall() == [(1,), (2,)]
    assert cursor.description[0][0] == "one"
    await cursor.execute("CREATE TABLE t (x)")
    assert await cursor.fetchall() == []
    assert cursor.description is None
    await cursor.executemany("INSERT INTO t VALUES (?)", [(1,), (2,)])
    assert cursor.rowcount == 2
    await cursor.execute("UPDATE t SET x = x + 1 RETURNING x")
    assert sorted(await cursor.fetchall()) == [(2,), (3,)]
    assert cursor.rowcount == 2
    assert connection.ways == 4


async def test_behind_a_commit_nothing_is_given_up(connection: Counting) -> None:
    await run(connection, "CREATE TABLE t (x)")
    await run(connection, "BEGIN")
    await run(connection, "INSERT INTO t VALUES (1)")
    await connection.commit()
    before = connection.ways
    await connection.rollback()
    assert connection.ways == before
    assert await run(connection, "SELECT x FROM t") == [(1,)]


async def test_a_transaction_that_broke_off_is_given_up_though_nobody_waited_for_its_statement(
    connection: Counting,
) -> None:
    await run(connection, "CREATE TABLE t (x)")
    for broken in ("BEGIN", "INSERT INTO t VALUES (1)"):
        if broken != "BEGIN":
            await run(connection, "BEGIN")
        work = asyncio.create_task(run(connection, broken))
        await asyncio.sleep(0)  # it is on its way
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        await connection.rollback()
        assert not connection.in_transaction
    assert await run(connection, "SELECT x FROM t") == []


async def test_a_commit_that_nobody_waited_for_leaves_no_transaction(connection: Counting) -> None:
    await run(connection, "CREATE TABLE t (x)")
    await run(connection, "BEGIN")
    await run(connection, "INSERT INTO t VALUES (1)")
    work = asyncio.create_task(connection.commit())
    await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await connection.rollback()
    assert not connection.in_transaction
    assert await run(connection, "SELECT x FROM t") == [(1,)], "the commit came first"


async def test_one_that_is_closed_and_ended_amid_that_is_closed(tmp_path: Path) -> None:
    make_file(tmp_path / "x.db")
    connection = FileConnection(tmp_path / "x.db")
    await connection
    await run(connection, "BEGIN IMMEDIATE")
    closing = asyncio.create_task(connection.close())
    await asyncio.sleep(0)  # it is on its way
    connection.stop()
    async with asyncio.timeout(10):
        await closing
    await asyncio.to_thread(connection.thread.join)
    with contextlib.closing(sqlite3.connect(tmp_path / "x.db", timeout=0)) as other:
        other.execute("BEGIN IMMEDIATE")


async def test_what_was_opened_when_nobody_waited_any_more_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_file(tmp_path / "x.db")
    opened, connect, waited_for = [], sqlite3.connect, threading.Event()

    def hold(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        file: sqlite3.Connection = connect(*args, **kwargs, check_same_thread=False)
        opened.append(file)
        waited_for.wait()
        return file

    monkeypatch.setattr(sqlite3, "connect", hold)
    connection = FileConnection(tmp_path / "x.db")

    async def connected() -> None:
        await connection

    task = asyncio.create_task(connected())
    await until(lambda: bool(opened))
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    waited_for.set()
    await asyncio.to_thread(connection.thread.join)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].execute("SELECT 1")
