"""Whether a storage is the one in which the files of this database are: another replica's directory is not, nor an empty disk
that was mounted in its place.

The storage holds a mark, which the database knows. The first gateway that ever looks makes both: the mark first, while nobody
else may write the database, so that one that dies in between leaves a mark that the next one takes over.
"""

import asyncio

from sqlalchemy import select, text

from fairlane.gateway.database.database import Database
from fairlane.gateway.database.inserting import insert_new
from fairlane.gateway.database.tables import facts
from fairlane.gateway.files.rows import LOCK
from fairlane.gateway.files.storage import MARK, CutOff, NotStored, Storage, StorageError
from fairlane.queues.randomness import random_bytes

FACT = "files_storage"
CHARS = 32
ANSWER_S = 10.0
"""How long a storage has to show its mark: all who write, remove or read for the first time wait for that."""


class WrongStorage(Exception):
    """The files of this database are somewhere else; the text says so to operators."""


async def check(database: Database, storage: Storage) -> None:
    """Return when it is the right one. Raises WrongStorage, StorageError, DatabaseUnavailable."""
    known = await _known(database)
    if known is None:
        known = await _make(database, storage)
    found = await _mark(storage)
    if found == known:
        return
    if found is None:
        raise WrongStorage(
            f"{storage} is not where the files of this database are kept (it has no file {MARK} that says {known}): "
            "have all replicas share one directory or bucket, by the setting files.storage"
        )
    raise WrongStorage(
        f"{storage} holds the files of another database ({MARK} says {found}, this one's says {known})"
    )


async def _known(database: Database) -> str | None:
    async with database.reading() as connection:
        return await connection.scalar(select(facts.c.value).where(facts.c.name == FACT))


async def _make(database: Database, storage: Storage) -> str:
    async with database.writing() as connection:
        if connection.dialect.name == "postgresql":
            await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        known = await connection.scalar(select(facts.c.value).where(facts.c.name == FACT))
        if known is not None:
            return str(known)  # somebody else was first
        mark = await _mark(storage)
        if mark is None:
            mark = random_bytes(CHARS // 2).hex()
            writer = await storage.write(MARK)
            try:
                await writer.write(mark.encode())
                await writer.finish()
            finally:
                await writer.close()
        await insert_new(connection, facts, [{"name": FACT, "value": mark}])
    return mark


async def _mark(storage: Storage) -> str | None:
    try:
        async with asyncio.timeout(ANSWER_S):
            mark = b"".join([piece async for piece in storage.read(MARK, 0, CHARS)])
    except (NotStored, CutOff):  # whoever makes it may die before it is whole
        return None
    except TimeoutError as error:
        raise StorageError(f"{storage} does not answer within {ANSWER_S:.0f} s") from error
    return mark.decode("ascii", "replace")
