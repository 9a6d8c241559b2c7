"""A PostgreSQL database that a test gets is like one made now, whatever an earlier test did in it."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from tests.support.databases import Postgres

from fairlane.gateway.database.address import parse_address
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.tables import metadata

pytestmark = pytest.mark.anyio

ALL = [
    "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, 2"
]
ALL += [f"SELECT * FROM {table.name}" for table in metadata.sorted_tables]


async def held(url: str, *changes: str) -> list[list[Any]]:
    """What it holds; then it is changed."""
    database = Database(parse_address(url, Path()))
    await database.start()
    try:
        async with database.writing() as connection:
            rows = [[tuple(row) for row in await connection.execute(text(query))] for query in ALL]
            for change in changes:
                await connection.execute(text(change))
        return rows
    finally:
        await database.close()


async def test_it_holds_what_a_new_one_holds(postgres: Postgres) -> None:
    new = await held(postgres.new("used"), "UPDATE facts SET value = '7' WHERE name <> 'identifier'")
    assert any(new)
    changed_schema = ("ALTER TABLE audit ADD COLUMN more integer", "CREATE TABLE another (one integer)")
    assert await held(postgres.new("used"), *changed_schema) == new
    assert await held(postgres.new("used")) == new
