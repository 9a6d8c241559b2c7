"""Those who write to one file: in their turns, and in nobody's way who reads."""

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import text

from fairlane.gateway.database.address import File
from fairlane.gateway.database.database import CONNECTIONS, Database
from fairlane.gateway.database.errors import DatabaseCrowded

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


@pytest.mark.parametrize("kind", ["reading", "writing"])
async def test_who_asks_often_waits_for_himself(tmp_path: Path, kind: str) -> None:
    database = Database(File(tmp_path / "fairlane.db"))
    await database.start()
    order: list[str | None] = []
    transaction = {"reading": database.reading, "writing": database.writing}[kind]

    async def ask(whose: str | None) -> None:
        async with transaction(whose=whose) as connection:
            order.append(whose)
            await connection.execute(text("SELECT 1"))

    try:
        async with contextlib.AsyncExitStack() as taken:
            for _ in range(1 if kind == "writing" else CONNECTIONS):
                await taken.enter_async_context(transaction(whose="many"))
            waiting = [asyncio.create_task(ask("many")) for _ in range(100)]
            await asyncio.sleep(0)  # all of them stand in line
            waiting += [asyncio.create_task(ask(whose)) for whose in ("one", None)]
            await asyncio.sleep(0)
        await asyncio.gather(*waiting)
        assert max(order.index("one"), order.index(None)) < 20, "not behind all of many"
        async with database.writing(whose="many"):
            with pytest.raises(DatabaseCrowded):
                async with database.writing(0.05, whose="many"):
                    raise AssertionError
            assert database.trouble is None, "it is well: he stands in his own way"
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
        for number in range(60):
            writer = asyncio.create_task(write(number))
            for _ in range(number // 2):
                await asyncio.sleep(0)
            writer.cancel()
            if number % 2:  # also while it is given up
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
