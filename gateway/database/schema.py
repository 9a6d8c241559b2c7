"""The schema of a database: its revision, and its upgrade."""

from sqlalchemy import inspect, select, text
from sqlalchemy.engine import Connection

from fairlane.gateway.database.errors import DatabaseRefused
from fairlane.gateway.database.tables import HEAD, facts

LOCK = 0x666169726C616E65
"""PostgreSQL's lock for changes of the schema (`fairlane` in ASCII)."""


def revision(connection: Connection) -> str | None:
    """Return the revision, None: the database is empty. Raises DatabaseRefused for an unknown one."""
    found = None
    if inspect(connection).has_table("alembic_version"):
        found = connection.scalar(text("SELECT version_num FROM alembic_version"))
    if found in (None, HEAD):
        return found
    from fairlane.gateway.database.migrations import run  # noqa: PLC0415 - see there

    if found not in run.known():
        raise DatabaseRefused(
            f"the database has the schema of a newer Fairlane ({found}; this one knows {HEAD}): start that version again, "
            "or bring back a backup from before the upgrade"
        )
    return str(found)


def upgrade(connection: Connection) -> None:
    """Upgrade an older or empty schema to HEAD, in the open transaction. Other processes wait. Raises DatabaseRefused."""
    if connection.dialect.name == "postgresql":  # SQLite's transaction has the lock since it began
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
    if revision(connection) == HEAD:
        return  # another process was first
    from fairlane.gateway.database.migrations import run  # noqa: PLC0415 - see there

    run.upgrade(connection, HEAD)


def identifier(connection: Connection) -> str:
    """Return the identifier of a database, which never changes."""
    found = connection.scalar(select(facts.c.value).where(facts.c.name == "identifier"))
    assert found is not None  # the first migration writes it
    return str(found)
