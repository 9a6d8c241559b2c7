"""The schema: made at the start, by one of many, never by an older program; on SQLite and on PostgreSQL."""

import asyncio
import socket
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from tests.support.databases import Postgres

from fairlane.gateway.database.address import File, parse_address
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.errors import DatabaseRefused, DatabaseUnavailable
from fairlane.gateway.database.migrations import run
from fairlane.gateway.database.tables import HEAD, metadata

pytestmark = pytest.mark.anyio


async def test_the_migrations_create_the_defined_tables(database: Database) -> None:
    def differences(connection: Connection) -> list[object]:
        return compare_metadata(MigrationContext.configure(connection), metadata)

    async with database.reading() as connection:
        assert await connection.run_sync(differences) == []
    assert await database.revision() == HEAD
    assert max(run.known()) == HEAD


async def test_many_that_start_together_make_one_schema(empty_database_url: str) -> None:
    replicas = [Database(parse_address(empty_database_url, Path())) for _ in range(8)]
    try:
        await asyncio.gather(*(replica.start() for replica in replicas))
        assert len({replica.identifier for replica in replicas}) == 1
    finally:
        for replica in replicas:
            await replica.close()


async def test_a_newer_schema_is_refused_and_left_alone(database: Database, database_url: str) -> None:
    async with database.writing() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    older = Database(parse_address(database_url, Path()))
    try:
        with pytest.raises(DatabaseRefused, match=r"newer Fairlane \(9999; this one knows"):
            await older.start()
    finally:
        await older.close()
    async with database.reading() as connection:
        assert await connection.scalar(text("SELECT version_num FROM alembic_version")) == "9999"


async def test_writers_at_the_same_time_wait_for_each_other(database: Database, database_url: str) -> None:
    """Each reads, then writes what it has read: none fails, and none overwrites another one's."""
    async with database.writing() as connection:
        await connection.execute(text("INSERT INTO facts (name, value) VALUES ('n', '0')"))
    replicas = [Database(parse_address(database_url, Path())) for _ in range(2)]

    async def add(to: Database) -> None:
        async with to.writing() as connection:
            lock = "" if isinstance(to.address, File) else " FOR UPDATE"
            seen = await connection.scalar(text("SELECT value FROM facts WHERE name = 'n'" + lock))
            await connection.execute(
                text("UPDATE facts SET value = :n WHERE name = 'n'"), {"n": str(int(seen) + 1)}
            )

    await asyncio.gather(*(add(replica) for replica in replicas for _ in range(10)))
    async with database.reading() as connection:
        assert await connection.scalar(text("SELECT value FROM facts WHERE name = 'n'")) == "20"
    for replica in replicas:
        await replica.close()


async def test_a_value_that_does_not_fit_is_no_reason_to_think_it_away(database: Database) -> None:
    async def write(value: object) -> None:
        async with database.writing() as connection:
            await connection.execute(
                text("INSERT INTO facts (name, value) VALUES ('identifier', :value)"), {"value": value}
            )

    with pytest.raises(IntegrityError) as refused:
        await write("twice")
    assert "twice" not in str(refused.value)  # it stands in the log, where it is an error of ours
    if not isinstance(database.address, File):
        with pytest.raises(DBAPIError):
            await write("a\0b")
        with pytest.raises(DBAPIError):
            await write(12)


async def test_a_database_that_takes_no_writes_is_away(database: Database, database_url: str) -> None:
    async def write() -> None:
        async with database.writing() as connection:
            if isinstance(database.address, File):
                await connection.execute(text("PRAGMA query_only = ON"))
            else:
                await connection.execute(text("SET TRANSACTION READ ONLY"))
            await connection.execute(text("INSERT INTO facts (name, value) VALUES ('a', 'b')"))

    with pytest.raises(DatabaseUnavailable, match=r"(SQLite|PostgreSQL) at .*(readonly|read-only)"):
        await write()


async def test_what_is_read_says_nothing_of_writes_that_failed(database: Database) -> None:
    async def read() -> None:
        async with database.reading() as connection:
            await connection.execute(text("SELECT 1"))

    with pytest.raises(DatabaseUnavailable):
        async with database.reading(0.0):
            pass
    with pytest.raises(DatabaseUnavailable):
        async with database.writing(0.0):
            pass
    await read()
    assert database.trouble is not None
    async with database.writing() as connection:
        await connection.execute(text("SELECT 1"))
    assert database.trouble is None
    with pytest.raises(DatabaseUnavailable):
        async with database.reading(0.0):
            pass
    await read()
    assert database.trouble is None


async def test_a_damaged_file_and_an_unknown_database_are_named(tmp_path: Path, postgres: Postgres) -> None:
    (tmp_path / "bad.db").write_bytes(b"no database" * 1000)
    there = postgres.empty("there")
    for url in (
        f"sqlite:///{tmp_path}/bad.db",
        there.replace("/there", "/nosuch"),
        there.replace("fairlane@", "nobody@"),
    ):
        database = Database(parse_address(url, Path()))
        with pytest.raises(DatabaseUnavailable, match=r"not a database|does not exist") as raised:
            await database.start()
        assert str(database.address) in str(raised.value)
        await database.close()


async def test_a_server_that_hangs_is_away(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"postgresql://fairlane@127.0.0.1:{listener.getsockname()[1]}/fairlane"
        database = Database(parse_address(url, Path()))
        with pytest.raises(DatabaseUnavailable, match=r"no connection within 5 s"):
            await database.start()
        await database.close()


async def test_a_transaction_has_a_deadline(database: Database) -> None:
    async def wait() -> None:
        async with database.writing(deadline_s=1):  # it connects within that, too
            await asyncio.Event().wait()

    with pytest.raises(DatabaseUnavailable, match=r"no answer within"):
        await wait()
    async with database.writing():  # the lock is free again
        pass
