"""Those who write to one file: in their turns, and in nobody's way who reads."""

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import text

from fairlane.gateway.database.address import File
from fairlane.gateway.database.database import CONNECTIONS, Database

pytestmark = pytest.mark.anyio


async def test_writers_of_a_file_take_turns_and_leave_connections_to_readers(tmp_path: Path) -> None:
    database = Database(File(tmp_path / "fairlane.db"))
    await database.start()
    order: list[int] = []

    async def write(number: int) -> None:
        async with database.writing():
            order.append(number)

    try:
        async with database.writing():
            writers = [asyncio.create_task(write(number)) for number in range(4 * CONNECTIONS)]
            gone = writers[3]
            for _ in range(CONNECTIONS):
                async with database.reading() as connection:
                    assert await connection.scalar(text("SELECT 1")) == 1
            gone.cancel()  # while it waits
            assert order == []
        await asyncio.gather(*writers, return_exceptions=True)
        assert order == [number for number in range(4 * CONNECTIONS) if number != 3]
    finally:
        await database.close()


async def test_a_transaction_that_is_cancelled_anywhere_is_whole_or_nothing_and_keeps_nobody_from_writing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "fairlane.db"
    database = Database(File(path))
    await database.start()
    committed, before = set[bool](), asyncio.all_tasks()

    async def write(number: int) -> None:
        async with database.writing() as connection:
            for part in (1, 2):
                await connection.execute(
                    text("INSERT INTO s VALUES (:n, :part)"), {"n": number, "part": part}
                )

    try:
        async with database.writing() as connection:
            await connection.execute(text("CREATE TABLE s (n INTEGER, part INTEGER)"))
        for number in range(30):
            writer = asyncio.create_task(write(number))
            for _ in range(number):
                await asyncio.sleep(0)
            writer.cancel()
            await asyncio.wait({writer})
            async with database.writing() as connection:
                found = await connection.execute(text("SELECT part FROM s WHERE n = :n"), {"n": number})
                parts = sorted(found.scalars())
            assert parts in ([], [1, 2]), number
            assert parts or writer.cancelled(), number
            committed.add(bool(parts))
        with contextlib.closing(sqlite3.connect(path, timeout=0)) as other:
            other.execute("BEGIN IMMEDIATE")
        assert False in committed
        async with asyncio.timeout(30):
            await asyncio.gather(*asyncio.all_tasks() - before)  # what closes connections comes to its end
    finally:
        await database.close()
