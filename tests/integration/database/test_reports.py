"""What may take long has connections of its own, and ends at its deadline in the database, too."""

import asyncio
import contextlib

import pytest
from sqlalchemy import text
from tests.support.serving import until

from fairlane.gateway.database.database import REPORT_S, Database
from fairlane.gateway.database.errors import DatabaseSlow, DatabaseUnavailable

pytestmark = pytest.mark.anyio
ENDLESS = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
    "postgresql": "SELECT pg_sleep(600)",
}
TESTS_END_S = 20.0


async def report(database: Database, deadline_s: float) -> None:
    async with database.reporting(deadline_s) as connection:
        await connection.execute(text(ENDLESS[database.dialect]))


async def test_reports_without_end_take_no_connection_from_others(database: Database) -> None:
    reports = [asyncio.create_task(report(database, REPORT_S)) for _ in range(6)]
    await asyncio.sleep(0)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(database.reading(4.0))
        async with database.writing(4.0) as connection:
            await connection.execute(text("UPDATE facts SET value = value"))
        assert not any(report.done() for report in reports)
    for ended in await asyncio.gather(*reports, return_exceptions=True):
        assert isinstance(ended, DatabaseUnavailable)


async def test_at_its_deadline_a_report_ends_in_the_database_too(database: Database) -> None:
    for _ in range(3):
        async with asyncio.timeout(TESTS_END_S):
            with pytest.raises(DatabaseSlow, match="no report within"):
                await report(database, 0.2)
    if database.dialect == "postgresql":

        async def ended() -> bool:
            async with database.reading() as connection:
                running = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)' AND state = 'active'"
                return await connection.scalar(text(running)) == 0

        await until(ended)
    async with database.reporting() as connection:
        assert await connection.scalar(text("SELECT 1")) == 1


async def test_what_fails_before_its_deadline_is_not_called_slow(database: Database) -> None:
    await database.close()
    with pytest.raises(DatabaseUnavailable) as failed:
        async with database.reporting():
            raise OSError("gone")
    assert not isinstance(failed.value, DatabaseSlow)
