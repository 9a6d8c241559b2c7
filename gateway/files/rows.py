"""The rows of files.

A row is written before the first byte of its file is stored, and deleted after the last one. So everything in the storage has a
row, also if a gateway dies in between, and the storage is never listed.

    arriving -> ready -> deleted -> (no row)
    arriving -----------> deleted

`due` is the time of the sweep: then an arriving file is abandoned, a ready one expires, and a deleted one's bytes are removed
(again).
"""

import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from sqlalchemy import ColumnElement, and_, delete, func, or_, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.database.tables import files

ARRIVING, READY, DELETED = "arriving", "ready", "deleted"
LOCK = 0x66696C6573
"""PostgreSQL's advisory lock for checks of room (`files` in ASCII)."""
_ROWS = select(
    *(files.c.id, files.c.bytes, files.c.created, files.c.name, files.c.purpose, files.c.expires),
    *(files.c.key_id, files.c.user_name),
)
_SUMS = func.count(), func.coalesce(func.sum(files.c.bytes), 0)


class FileRow(NamedTuple):
    """A complete file."""

    id: str
    """`file-…`; ids sort by the start of their uploads."""
    bytes: int
    created: int
    """ms since 1970."""
    name: str
    """The client's name for it."""
    purpose: str
    expires: int | None
    """ms since 1970; None: never."""
    owner: Owner


def new_file_id(now_ms: int) -> str:
    """Return a new id that cannot be guessed."""
    return f"file-{now_ms & 0xFFFF_FFFF_FFFF:012x}{os.urandom(10).hex()}"


async def lock(connection: AsyncConnection) -> None:
    """Let other callers of this wait until the end of the transaction. (SQLite has one writer at a time.)"""
    if connection.dialect.name == "postgresql":
        await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})


async def held(connection: AsyncConnection, owner: Owner) -> tuple[int, int, int, int]:
    """Return an owner's number of files and their bytes, and the same of all owners; arriving and deleted ones count until their
    bytes are removed."""
    await lock(connection)
    own = (await connection.execute(select(*_SUMS).where(_of(owner)))).one()
    return int(own[0]), int(own[1]), *await held_by_all(connection)


async def held_by_all(connection: AsyncConnection) -> tuple[int, int]:
    """Return the number of files of all owners, and their bytes."""
    count, size = (await connection.execute(select(*_SUMS))).one()
    return int(count), int(size)


async def begin(
    connection: AsyncConnection, file_id: str, owner: Owner, size: int, now: int, due: int
) -> None:
    """Add a file that arrives and has `size` bytes reserved. An unfinished one of this id is replaced."""
    await connection.execute(delete(files).where(files.c.id == file_id, files.c.state != READY))
    row = {"id": file_id, "key_id": owner.key_id, "user_name": owner.user, "name": "", "purpose": ""}
    await connection.execute(
        files.insert().values({**row, "bytes": size, "created": now, "state": ARRIVING, "due": due})
    )


async def finish(connection: AsyncConnection, row: FileRow) -> bool:
    """Make a file readable; return whether it was still arriving."""
    values = {"name": row.name, "purpose": row.purpose, "bytes": row.bytes, "expires": row.expires}
    arrives = and_(files.c.id == row.id, files.c.state == ARRIVING)
    changed = update(files).where(arrives).values({**values, "due": row.expires, "state": READY})
    return (await connection.execute(changed)).rowcount > 0


async def keep_until(connection: AsyncConnection, file_id: str, until: int) -> None:
    """Let a ready file expire no earlier than `until`."""
    sooner = and_(files.c.id == file_id, files.c.state == READY, files.c.due < until)
    await connection.execute(update(files).where(sooner).values({"due": until, "expires": until}))


async def drop(connection: AsyncConnection, file_id: str, owner: Owner | None, now: int, due: int) -> bool:
    """Mark a file of an owner (None: of any) as deleted, also one that is arriving. Return whether there was one."""
    alive = and_(files.c.state != DELETED, or_(files.c.due.is_(None), files.c.due > now))
    is_there = and_(alive, files.c.id == file_id, *(() if owner is None else (_of(owner),)))
    values = {"state": DELETED, "due": due}
    return (await connection.execute(update(files).where(is_there).values(values))).rowcount > 0


async def give_up(connection: AsyncConnection, file_id: str, due: int) -> None:
    """Mark a file for removal unless it is readable."""
    left = update(files).where(files.c.id == file_id, files.c.state != READY)
    await connection.execute(left.values({"state": DELETED, "due": due}))


async def remove(connection: AsyncConnection, file_id: str) -> None:
    """Remove the row of a deleted file whose bytes are removed."""
    await connection.execute(delete(files).where(files.c.id == file_id, files.c.state == DELETED))


async def due(connection: AsyncConnection, now: int, next_due: int, most: int) -> Sequence[str]:
    """Claim files that are due, until `next_due`: they are no longer readable, and their bytes are to be removed."""
    columns = files.c
    oldest = select(columns.id).where(columns.due <= now).order_by(columns.due).limit(most)
    still = and_(columns.id.in_(oldest), columns.due <= now)
    taken = update(files).where(still).values({"state": DELETED, "due": next_due}).returning(columns.id)
    return list((await connection.execute(taken)).scalars())


async def read(connection: AsyncConnection, file_id: str, owner: Owner | None, now: int) -> FileRow | None:
    """Return a ready file of an owner (None: of any), or None."""
    wanted = _ROWS.where(_ready(now), files.c.id == file_id)
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
    """Return files of an owner by time, after the id `after`, which may be deleted."""
    columns = files.c
    wanted = _ROWS.where(_ready(now), _of(owner))
    if purpose is not None:
        wanted = wanted.where(columns.purpose == purpose)
    if after is not None:
        wanted = wanted.where(columns.id < after if descending else columns.id > after)
    ordered = wanted.order_by(columns.id.desc() if descending else columns.id).limit(most)
    return [_row(row) for row in await connection.execute(ordered)]


def _of(owner: Owner) -> ColumnElement[bool]:
    return and_(files.c.key_id == owner.key_id, files.c.user_name == owner.user)


def _ready(now: int) -> ColumnElement[bool]:
    return and_(files.c.state == READY, or_(files.c.due.is_(None), files.c.due > now))


def _row(found: Any) -> FileRow:
    *fields, key_id, user = found
    return FileRow._make((*fields, Owner(key_id, user)))


MAX_CHARS = 255
UNNAMED = "file"
_ID = re.compile(r"file-[0-9a-f]{32}")


def is_file_id(text: str) -> bool:
    """Return whether a text has the form of a file's id."""
    return _ID.fullmatch(text) is not None


def plain_name(name: str) -> str:
    """Return a name that databases and headers accept: the last part of a path, without control characters, of at most MAX_CHARS
    characters. It is never a path in the storage."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    text = "".join(character for character in last if character.isprintable()).strip()
    return text[:MAX_CHARS] or UNNAMED


def disposition(name: str) -> bytes:
    """Return the header Content-Disposition of a download by this name (RFC 6266): browsers save the file, and never show it."""
    plain = "".join(c if c.isascii() and c not in '"\\%' else "_" for c in name)
    header = f'attachment; filename="{plain}"'
    if plain != name:
        header += f"; filename*=UTF-8''{quote(name, safe='')}"
    return header.encode()
