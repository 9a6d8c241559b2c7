"""Inserts rows that may have been inserted before."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec
from sqlalchemy import BigInteger, Boolean, CursorResult, Integer, Table, Text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

MAX_ROWS = 500
"""Rows of one statement: SQLite takes 32,766 values."""


async def insert_new(connection: AsyncConnection, table: Table, rows: Sequence[Mapping[str, Any]]) -> int:
    """Insert the rows whose primary keys are new; return their number."""
    return len(await insert_returning(connection, table, rows))


async def insert_returning(
    connection: AsyncConnection, table: Table, rows: Sequence[Mapping[str, Any]]
) -> list[Any]:
    """Insert the rows whose primary keys are new; return these keys."""
    inserted: list[Any] = []
    key = list(table.primary_key)
    for at in range(0, len(rows), MAX_ROWS):
        values = list(rows[at : at + MAX_ROWS])
        insert: Any = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
        statement = insert(table).values(values).on_conflict_do_nothing(index_elements=key)
        inserted += (await connection.execute(statement.returning(*key))).all()
    return inserted


# ---- statements of the driver: for a page of rows, SQLAlchemy's own cost several times as much CPU ----------

_CASTS = {Text: "text", BigInteger: "bigint", Integer: "integer", Boolean: "boolean"}


async def insert_rows(
    connection: AsyncConnection, table: Table, rows: Sequence[Sequence[Any]], more: str = ""
) -> CursorResult[Any]:
    """Insert rows of all columns; `more` is the end of the statement. PostgreSQL gets the rows as one JSON text."""
    width = len(table.columns)
    if connection.dialect.name == "sqlite":
        row = f"({', '.join('?' * width)})"
        source, values = f"VALUES {', '.join([row] * len(rows))}", tuple(chain.from_iterable(rows))
    else:
        casts = (_CASTS[type(column.type)] for column in table.columns)
        columns = ", ".join(f"CAST(value->>{at} AS {cast})" for at, cast in enumerate(casts))
        source = f"SELECT {columns} FROM json_array_elements(CAST($1 AS json))"  # noqa: S608
        values = (msgspec.json.encode(rows).decode(),)
    names = ", ".join(column.name for column in table.columns)
    return await connection.exec_driver_sql(f"INSERT INTO {table.name} ({names}) {source} {more}", values)
