"""Versions in the database, each of which moves with every change of something: so who looks sees whether to read that again."""

from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.database.database import Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.database.tables import facts

LOOK_S = 2.0
"""How long a look at a version may take."""
_READ = select(facts.c.value).where(facts.c.name == bindparam("name"))


async def look_at(database: Database, name: str) -> str:
    """The version of this name now. Raises DatabaseUnavailable."""
    async with database.reading(LOOK_S) as connection:
        return await version_in(connection, name)


async def version_in(connection: AsyncConnection, name: str) -> str:
    """The same within a transaction. Raises DatabaseUnavailable where it is missing: what it is of is not known then."""
    version = await connection.scalar(_READ, {"name": name})
    if version is None:
        sentence = f"the database is not whole: its table facts has no {name}; bring back a backup"
        raise DatabaseUnavailable(sentence)
    return str(version)
