"""Inserting rows that may have been inserted before."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

AT_ONCE = 500
"""Rows of one statement: SQLite takes 32,766 values."""


async def insert_new(connection: AsyncConnection, table: Table, rows: Sequence[Mapping[str, Any]]) -> int:
    """Insert the rows that are not there yet, by the table's primary key; how many those were."""
    return len(await insert_keys(connection, table, rows))


async def insert_keys(
    connection: AsyncConnection, table: Table, rows: Sequence[Mapping[str, Any]]
) -> list[tuple[Any, ...]]:
    """The same; the primary keys of those."""
    inserted: list[tuple[Any, ...]] = []
    key = list(table.primary_key)
    for at in range(0, len(rows), AT_ONCE):
        values = list(rows[at : at + AT_ONCE])
        insert: Any = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
        statement = insert(table).values(values).on_conflict_do_nothing(index_elements=key)
        inserted += [tuple(row) for row in await connection.execute(statement.returning(*key))]
    return inserted
