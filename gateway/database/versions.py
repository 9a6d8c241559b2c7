"""Version numbers in the database. Each changes with its data, so that replicas know when to read these again."""

from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.database.database import Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.database.tables import facts

READ_S = 2.0
"""How long reading a version may take."""
_READ = select(facts.c.value).where(facts.c.name == bindparam("name"))


async def read_version(database: Database, name: str) -> str:
    """Return the current version of this name. Raises DatabaseUnavailable."""
    async with database.reading(READ_S) as connection:
        return await version_in(connection, name)


async def version_in(connection: AsyncConnection, name: str) -> str:
    """Return the same within a transaction. Raises DatabaseUnavailable if it is missing."""
    version = await connection.scalar(_READ, {"name": name})
    if version is None:
        sentence = f"the database is not whole: its table facts has no {name}; bring back a backup"
        raise DatabaseUnavailable(sentence)
    return str(version)
