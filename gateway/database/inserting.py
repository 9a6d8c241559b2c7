"""Inserts rows that may have been inserted before.

The text of a statement is the same for any number of rows, as SQLite keeps a prepared statement of each text. For a page of rows,
SQLAlchemy's own statements cost several times as much CPU.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import BigInteger, Boolean, Table, Text
from sqlalchemy.ext.asyncio import AsyncConnection

_CASTS = {Text: "text", BigInteger: "bigint", Boolean: "boolean"}


async def insert_new(connection: AsyncConnection, table: Table, rows: Sequence[Mapping[str, Any]]) -> int:
    """Insert the rows whose primary keys are new; return their number."""
    key = ", ".join(column.name for column in table.primary_key)
    values = [[row[column.name] for column in table.columns] for row in rows]
    return len(await insert_rows(connection, table, values, f"ON CONFLICT ({key}) DO NOTHING RETURNING 1"))


async def insert_rows(
    connection: AsyncConnection, table: Table, rows: Sequence[Sequence[Any]], more: str = ""
) -> Sequence[Any]:
    """Insert rows of all columns, without binary ones; `more` is the end of the statement. Return what it returns.

    The rows are one JSON text. SQLite takes them as they are, at a third of the CPU, if nothing is to be returned.
    """
    if not rows:
        return []
    into = f"INSERT INTO {table.name} ({', '.join(column.name for column in table.columns)})"
    if connection.dialect.name != "sqlite":
        casts = (_CASTS[type(column.type)] for column in table.columns)
        columns = ", ".join(f"CAST(value->>{at} AS {cast})" for at, cast in enumerate(casts))
        source = "json_array_elements(CAST($1 AS json))"
    elif "RETURNING" in more:
        columns = ", ".join(f"json_extract(value, '$[{at}]')" for at in range(len(table.columns)))
        source = "json_each(?) WHERE true"  # without a WHERE, ON CONFLICT would belong to the SELECT
    else:
        values = f"VALUES ({', '.join('?' * len(table.columns))})"
        await connection.exec_driver_sql(f"{into} {values} {more}", [tuple(row) for row in rows])
        return []
    selected = f"SELECT {columns} FROM {source}"  # noqa: S608
    as_json = msgspec.json.encode(rows).decode()
    written = await connection.exec_driver_sql(f"{into} {selected} {more}", (as_json,))
    return written.all() if written.returns_rows else []
