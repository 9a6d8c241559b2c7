"""Erases a user: deletes the archived content, and keeps the records without the name.

The table `erased_users` gets a hash of the name and the time first. From then on entries of tasks that were submitted before are
written without the name: the transaction that writes them reads that table. Then the rows in the database are changed, a part at
a time (PARTS). Later actions of the user are new.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from hashlib import sha256
from typing import Any

import msgspec
from sqlalchemy import Column, ColumnElement, Table, delete, func, or_, select, text, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.database import tables as t
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.inserting import insert_rows
from fairlane.gateway.database.tables import erased_users
from fairlane.gateway.records.entries import at_of
from fairlane.gateway.usage.usage import adding

ERASED = "(erased)"
"""Replaces the names of all erased users."""

_unpack = msgspec.msgpack.decode


class ErasedUsers:
    """The users who were erased, and the times."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def mark(self, user: str, at: int) -> None:
        """Record an erasure. When this returns, no transaction is open that did not see it. Raises DatabaseUnavailable."""
        row = {"hash": self._hash(user), "at": at}
        async with self._database.writing() as connection:
            insert: Any = sqlite.insert
            if connection.dialect.name == "postgresql":  # (SQLite has one writer at a time)
                await connection.execute(text("LOCK TABLE erased_users IN ACCESS EXCLUSIVE MODE"))
                insert = postgresql.insert
            statement = insert(erased_users).values(row)
            later = {"at": statement.excluded.at}
            where = erased_users.c.at < statement.excluded.at
            await connection.execute(
                statement.on_conflict_do_update(index_elements=["hash"], set_=later, where=where)
            )

    async def any(self, connection: AsyncConnection) -> bool:
        """Return whether any user was erased: mostly none was."""
        return (await connection.exec_driver_sql("SELECT 1 FROM erased_users LIMIT 1")).first() is not None

    async def of(self, connection: AsyncConnection, users: Collection[str]) -> Mapping[str, int]:
        """Return the erased ones of these users, with the times."""
        if not await self.any(connection):
            return {}
        hashes = {self._hash(user): user for user in users}
        found = await connection.execute(select(erased_users).where(erased_users.c.hash.in_(hashes)))
        return {hashes[row.hash]: row.at for row in found}

    async def was(self, connection: AsyncConnection, user: str, enqueued: int) -> bool:
        """Return whether this user was erased after this task was submitted."""
        return enqueued <= (await self.of(connection, [user])).get(user, -1)

    async def anonymized(
        self, connection: AsyncConnection, packed: Sequence[bytes], users: "Users", erase: "Erase"
    ) -> Sequence[bytes]:
        """Return entries of the outbox without the names of users who were erased after them."""
        if not await self.any(connection):
            return packed
        entries = [_unpack(entry) for entry in packed]
        known = await self.of(connection, {user for entry in entries for user in users(entry)})
        for entry in entries if known else ():
            erase(entry, known)
        return [*map(msgspec.msgpack.encode, entries)] if known else packed

    def _hash(self, user: str) -> str:
        return sha256(f"{self._database.identifier}\0{user}".encode()).hexdigest()


Users = Callable[[Any], Collection[str]]
"""Returns the users in an entry of one kind."""
Erase = Callable[[Any, Mapping[str, int]], None]
"""Removes the names of those from an entry who were erased after it."""


def user_of_usage(entry: list[dict[str, Any]]) -> Collection[str]:
    """See `Users`. The entry has both parts of a task's record (entries.py)."""
    _, spec = entry
    return (spec["user"],)


def erase_from_usage(entry: list[dict[str, Any]], erased: Mapping[str, int]) -> None:
    """See `Erase`."""
    run, spec = entry
    if run["enqueued_at"] <= erased.get(spec["user"], -1):
        spec |= {"user": ERASED, "request_id": "", "traceparent": ""}


def values_of(stored: Any) -> dict[str, Any]:
    """Return the values before or after an action: an entry of the audit log has a map or JSON."""
    values: dict[str, Any] = msgspec.json.decode(stored) if isinstance(stored, str) else stored
    return values or {}  # Lua packs an empty table as a list


def users_of_audit(entry: dict[str, Any]) -> Collection[str]:
    """See `Users`."""
    target = entry["target"]
    named = {target.removeprefix("user ")} if target.startswith("user ") else set()
    for name in ("before", "after"):
        _walk(values_of(entry[name]), named.add)
    return named


def erase_from_audit(entry: dict[str, Any], erased: Mapping[str, int]) -> None:
    """See `Erase`."""
    for user, at in erased.items():
        if at_of(entry["id"]) <= at:
            entry["target"] = _renamed(user, entry["target"])
            for name in ("before", "after"):
                entry[name] = _walk(values_of(entry[name]), _hider(user))


def _walk(value: Any, found: Callable[[str], Any]) -> Any:
    """Return a value in which `found` replaces each member `user`, unless it returns None."""
    if isinstance(value, list):
        return [_walk(item, found) for item in value]
    if not isinstance(value, dict):
        return value
    made = {}
    for name, item in value.items():
        other = found(item) if name == "user" and isinstance(item, str) else None
        made[name] = _walk(item, found) if other is None else other
    return made


def _without(user: str, target: str, before: str, after: str) -> tuple[str, str, str]:
    """Return target and values (JSON) of a row without the name."""
    hide = _hider(user)
    was, now = (
        msgspec.json.encode(_walk(msgspec.json.decode(text), hide)).decode() for text in (before, after)
    )
    return _renamed(user, target), was, now


def _renamed(user: str, target: str) -> str:
    return f"user {ERASED}" if target == f"user {user}" else target


def _hider(user: str) -> Callable[[str], str | None]:
    return lambda name: ERASED if name == user else None


# ---- existing rows ----------

Part = Callable[[AsyncConnection, str, int], Awaitable[int]]
"""Erases a user in a part of a table's rows that are not newer than an instant (ms). Returns their number."""


def _rows(
    table: Table,
    time: Column[int],
    page: int = 1000,
    only: ColumnElement[bool] | None = None,
    renamed: Mapping[str, Any] | None = None,
) -> Part:
    """Return a part that deletes `page` rows of a table, or sets these columns in them."""
    (key,) = table.primary_key
    change = delete(table) if renamed is None else update(table).values(renamed)

    async def erase(connection: AsyncConnection, user: str, until: int) -> int:
        whose = select(key).where(table.c.user_name == user, time <= until)
        some = (whose if only is None else whose.where(only)).limit(page)
        return (await connection.execute(change.where(key.in_(some)))).rowcount

    return erase


async def _days(connection: AsyncConnection, user: str, until: int) -> int:
    users = t.usage_users
    found = select(users).where(users.c.user_name == user, users.c.began <= until).limit(200)
    rows = (await connection.execute(found)).mappings().all()
    if rows:
        key = list(users.primary_key)
        which = [tuple(row[column.name] for column in key) for row in rows]
        await connection.execute(delete(users).where(tuple_(*key).in_(which)))
        renamed = [tuple({**row, "user_name": ERASED}.values()) for row in rows]
        await insert_rows(connection, users, renamed, adding(users))
    return len(rows)


async def _acts(connection: AsyncConnection, user: str, until: int) -> int:
    named = '"user":' + msgspec.json.encode(user).decode()
    find = func.instr if connection.dialect.name == "sqlite" else func.strpos
    columns = t.audit.c
    whose = or_(
        columns.target == f"user {user}", find(columns.before, named) > 0, find(columns.after, named) > 0
    )
    found = select(columns.id, columns.target, columns.before, columns.after).where(
        columns.at <= until, whose
    )
    rows = (await connection.execute(found.limit(200))).all()
    for entry_id, *texts in rows:
        values = dict(zip(("target", "before", "after"), _without(user, *texts), strict=True))
        await connection.execute(update(t.audit).where(columns.id == entry_id).values(values))
    return len(rows)


_hooks = _rows(t.webhooks, t.webhooks.c.created)
_deliveries = _rows(t.webhook_deliveries, t.webhook_deliveries.c.created)


async def _webhooks(connection: AsyncConnection, user: str, until: int) -> int:
    return await _hooks(connection, user, until) + await _deliveries(connection, user, until)


async def rows_of_user(connection: AsyncConnection, user: str) -> int:
    """Return the number of rows of the ledger that name a user."""
    number = select(func.count()).select_from(t.ledger).where(t.ledger.c.subject == f"u:{user}")
    return int(await connection.scalar(number) or 0)


_NAMELESS = {"user_name": ERASED, "request": "", "trace": ""}
_DELETED = {"user_name": ERASED, "key_id": "", "name": "", "state": "deleted", "due": 0}
"""The sweep of files removes their bytes within a minute or two, and then the rows."""

PARTS: Mapping[str, Part] = {
    "usage": _rows(t.usage, t.usage.c.enqueued, renamed=_NAMELESS),
    "days": _days,
    "archived": _rows(t.archive, t.archive.c.enqueued, 50),
    "audit": _acts,
    "responses": _rows(t.responses, t.responses.c.created, 50),
    "webhooks": _webhooks,
    "files": _rows(t.files, t.files.c.created, renamed=_DELETED),
    "batches": _rows(t.batches, t.batches.c.created, 10, t.batches.c.ended > 0),
}
"""By the name in the answer of the call. Each table that names users has an entry."""
