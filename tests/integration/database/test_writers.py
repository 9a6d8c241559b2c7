"""Those who write to one file: in the order in which they came, and in nobody's way who reads."""

import asyncio
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
