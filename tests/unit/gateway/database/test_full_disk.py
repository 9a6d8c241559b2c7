"""After a failed write it is known whether anything was changed."""

import asyncio
from pathlib import Path

from fairlane.gateway.database.address import File
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.database.inserting import insert_new
from fairlane.gateway.database.tables import facts


async def fails(database: Database) -> bool:
    """Write more than fits, and return whether nothing was changed."""
    try:
        async with database.writing() as connection:
            await connection.exec_driver_sql("PRAGMA max_page_count = 1")  # the present size
            await insert_new(connection, facts, [{"name": "large", "value": "x" * 1_000_000}])
    except DatabaseUnavailable as error:
        return error.unchanged
    raise AssertionError("it fits")


def test_a_full_disk_leaves_no_doubt_except_after_an_earlier_change(tmp_path: Path) -> None:
    async def work() -> None:
        database = Database(File(tmp_path / "fairlane.db"))
        try:
            await asyncio.create_task(database.start())
            assert await asyncio.create_task(fails(database))
            async with database.writing() as connection:
                await insert_new(connection, facts, [{"name": "small", "value": ""}])
            assert not await fails(database), "a request that has made a part of its change"
            assert await asyncio.create_task(fails(database))
        finally:
            await database.close()

    asyncio.run(work())
