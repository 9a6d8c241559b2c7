"""The rows of files: whose they are, what they are called, and how far they have come.

A row is there before the first byte of its file is stored, and goes after the last one: so whatever lies in the storage has a row
that leads to it, also when a gateway died in between, and nobody ever has to list the storage.

    arriving -> ready -> deleted -> (no row)
    arriving -----------> deleted

`due` is when something is to be done with it: an arriving one is renewed before that, or its writer is taken for dead; a ready
one expires; of a deleted one the bytes are removed (again).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, and_, delete, func, or_, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.database.tables import file_totals, files
from fairlane.queues.randomness import random_bytes

ARRIVING, READY, DELETED = "arriving", "ready", "deleted"
LOCK = 0x66696C6573
"""PostgreSQL's lock of those who make room for a file (`files` in ASCII)."""


_SUMS = func.count(), func.coalesce(func.sum(files.c.bytes), 0)


class FileRow(NamedTuple):
    """A file that is whole."""

    id: str
    """`file-…`; ids sort by the time at which their files began to come."""
    bytes: int
    created: int
    """ms since 1970."""
    name: str
    """What its caller calls it."""
    purpose: str
    expires: int | None
    """ms since 1970; None: it is kept until it is deleted."""
    owner: Owner

    @property
    def status(self) -> str:
        """As OpenAI's clients want it: a file that can be seen has been processed."""
        return "processed"


class Due(NamedTuple):
    """A row with which something is to be done."""

    id: str
    state: str
    owner: Owner


def new_file_id(now_ms: int) -> str:
    """A new id; nobody can guess it."""
    return f"file-{now_ms & 0xFFFF_FFFF_FFFF:012x}{random_bytes(10).hex()}"


async def held(connection: AsyncConnection, owner: Owner) -> tuple[int, int, int, int]:
    """How many files an owner has and how many bytes they take, and the same of all owners; what is still arriving and what is
    not removed yet are among them. On PostgreSQL others who ask wait until the end of the transaction, as they do on SQLite."""
    if connection.dialect.name == "postgresql":
        await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
    own = (await connection.execute(select(*_SUMS).where(_of(owner)))).one()
    return int(own[0]), int(own[1]), *await held_by_all(connection)


async def held_by_all(connection: AsyncConnection) -> tuple[int, int]:
    """Files of all owners, and their bytes, as they are added up with each change."""
    totals = (await connection.execute(select(file_totals.c.files, file_totals.c.bytes))).one_or_none()
    return (int(totals[0]), int(totals[1])) if totals is not None else (0, 0)


async def count_again(connection: AsyncConnection, now: int, before: int) -> None:
    """Count all files, if that was done before `before` last: gateways of a release before add nothing up."""
    columns = file_totals.c
    due = select(columns.id).where(columns.counted < before)
    if (
        await connection.scalar(due.with_for_update()) is None
    ):  # whoever changes the totals waits from here on
        return
    counted = (await connection.execute(select(*_SUMS))).one()
    values = {"files": int(counted[0]), "bytes": int(counted[1]), "counted": now}
    await connection.execute(update(file_totals).values(values))


async def _add(connection: AsyncConnection, count: int, size: int) -> None:
    columns = file_totals.c
    if count or size:
        added = {"files": columns.files + count, "bytes": columns.bytes + size}
        await connection.execute(update(file_totals).values(added))


async def begin(
    connection: AsyncConnection, file_id: str, owner: Owner, size: int, now: int, due: int
) -> None:
    """A file begins to arrive, for which so many bytes are set aside."""
    row = {"id": file_id, "key_id": owner.key_id, "user_name": owner.user, "name": "", "purpose": ""}
    await connection.execute(
        files.insert().values({**row, "bytes": size, "created": now, "state": ARRIVING, "due": due})
    )
    await _add(connection, 1, size)


async def set_aside(connection: AsyncConnection, file_id: str, size: int) -> bool:
    """Set so many bytes aside for a file that arrives; whether it still does."""
    return await _resize(connection, file_id, {"bytes": size})


async def renew(connection: AsyncConnection, file_id: str, due: int) -> bool:
    """Its writer is alive; whether it still arrives."""
    return await _change(connection, file_id, ARRIVING, {"due": due})


async def finish(connection: AsyncConnection, row: FileRow) -> bool:
    """All of it is stored: it is there from now on. Whether it was still arriving."""
    values = {"name": row.name, "purpose": row.purpose, "bytes": row.bytes, "expires": row.expires}
    return await _resize(connection, row.id, {**values, "due": row.expires, "state": READY})


async def keep_until(connection: AsyncConnection, file_id: str, until: int) -> None:
    """A file that is there does not expire before."""
    sooner = and_(files.c.id == file_id, files.c.state == READY, files.c.due < until)
    await connection.execute(update(files).where(sooner).values({"due": until, "expires": until}))


async def drop(connection: AsyncConnection, file_id: str, owner: Owner | None, now: int, due: int) -> bool:
    """A file is there no more, if it was, or arrives still, and is the owner's (None: whoever's it is)."""
    alive = and_(files.c.state != DELETED, or_(files.c.due.is_(None), files.c.due > now))
    is_there = and_(alive, files.c.id == file_id, *(() if owner is None else (_of(owner),)))
    values = {"state": DELETED, "due": due}
    return (await connection.execute(update(files).where(is_there).values(values))).rowcount > 0


async def give_up(connection: AsyncConnection, file_id: str, due: int) -> bool:
    """Whatever has come of a file is to be removed; one that is ready stays. Whether there is such a row."""
    is_it = and_(files.c.id == file_id, files.c.state != READY)
    left = update(files).where(is_it).values({"state": DELETED, "due": due})
    return (await connection.execute(left)).rowcount > 0


async def remove(connection: AsyncConnection, file_id: str) -> None:
    """The bytes of a deleted file are removed: forget it."""
    gone = delete(files).where(files.c.id == file_id, files.c.state == DELETED).returning(files.c.bytes)
    size = await connection.scalar(gone)
    if size is not None:
        await _add(connection, -1, -size)


async def due(connection: AsyncConnection, now: int, next_due: int, most: int) -> Sequence[Due]:
    """Take files whose time has come: they are there no more, and their bytes are to be removed. If that comes to nothing, they
    are due again at `next_due`."""
    columns = files.c
    oldest = select(columns.id, columns.state, columns.key_id, columns.user_name)
    oldest = oldest.where(columns.due <= now).order_by(columns.due).limit(most)
    found = [Due(row[0], row[1], Owner(row[2], row[3])) for row in await connection.execute(oldest)]
    taken = []
    for one in found:
        still = and_(columns.id == one.id, columns.due <= now)
        values = {"state": DELETED, "due": next_due}
        if (await connection.execute(update(files).where(still).values(values))).rowcount:
            taken.append(one)
    return taken


async def read(connection: AsyncConnection, file_id: str, owner: Owner | None, now: int) -> FileRow | None:
    """A file, if it is there, and the owner's (None: whoever's it is)."""
    wanted = _rows().where(_ready(now), files.c.id == file_id)
    if owner is not None:
        wanted = wanted.where(_of(owner))
    found = (await connection.execute(wanted)).one_or_none()
    return None if found is None else _row(found)


async def page(
    connection: AsyncConnection,
    owner: Owner,
    now: int,
    *,
    purpose: str | None,
    after: str | None,
    descending: bool,
    most: int,
) -> list[FileRow]:
    """Some files of an owner, by time, behind the one with the id `after`, be it still there or not."""
    columns = files.c
    wanted = _rows().where(_ready(now), _of(owner))
    if purpose is not None:
        wanted = wanted.where(columns.purpose == purpose)
    if after is not None:
        wanted = wanted.where(columns.id < after if descending else columns.id > after)
    ordered = wanted.order_by(columns.id.desc() if descending else columns.id).limit(most)
    return [_row(row) for row in await connection.execute(ordered)]


async def _resize(connection: AsyncConnection, file_id: str, values: dict[str, Any]) -> bool:
    """Change a file that arrives, its size too; whether it still does."""
    arrives = and_(files.c.id == file_id, files.c.state == ARRIVING)
    before = await connection.scalar(select(files.c.bytes).where(arrives).with_for_update())
    if before is None:
        return False
    await _add(connection, 0, values["bytes"] - before)
    return await _change(connection, file_id, ARRIVING, values)


async def _change(connection: AsyncConnection, file_id: str, state: str, values: dict[str, Any]) -> bool:
    where = and_(files.c.id == file_id, files.c.state == state)
    return (await connection.execute(update(files).where(where).values(values))).rowcount > 0


def _of(owner: Owner) -> ColumnElement[bool]:
    return and_(files.c.key_id == owner.key_id, files.c.user_name == owner.user)


def _ready(now: int) -> ColumnElement[bool]:
    return and_(files.c.state == READY, or_(files.c.due.is_(None), files.c.due > now))


def _rows() -> Any:
    columns = files.c
    return select(
        *(columns.id, columns.bytes, columns.created, columns.name, columns.purpose, columns.expires),
        *(columns.key_id, columns.user_name),
    )


def _row(found: Any) -> FileRow:
    *fields, key_id, user = found
    return FileRow._make((*fields, Owner(key_id, user)))
