"""Keys and worker tokens in the SQL database: read, searched and changed. Only hashes of secrets are there.

Each change first increments the version of all keys, which locks its row. So changes are serial over all replicas, and a version
that is read includes every change before it.
"""

import contextlib
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import BigInteger, Select, Text, bindparam, cast, collate, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.accounts.callers import Kind
from fairlane.gateway.accounts.key_rows import StoredKey, StoredSecret, read_key
from fairlane.gateway.accounts.no_auth import KeyPresence
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.tables import facts, keys, secrets
from fairlane.gateway.database.versions import read_version, version_in
from fairlane.queues.clock import now_ms

VERSION = "keys_version"
CHANGE_S = 5.0
USED_S = 5.0
MAX_USED = 500
"""Keys whose last use is written in one transaction."""


class KeyStore:
    """The keys of one database. All raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._collation = "BINARY" if database.dialect == "sqlite" else "C"

    async def version(self) -> int:
        """Return the version of all keys, which every change increments."""
        return int(await read_version(self._database, VERSION))

    async def changed_since(self, version: int) -> tuple[int, list[StoredKey]]:
        """Return the version now, and the keys that changed since another one (-1: all). A concurrent change can be among them,
        and is again among those of the next version."""
        async with self._database.reading() as connection:
            now = int(await version_in(connection, VERSION))
            return now, await _read(connection, select(keys).where(keys.c.version > version))

    async def presence(self) -> KeyPresence:
        """Return which kinds of keys exist."""
        now = now_ms()
        valid = (
            select(secrets.c.sha256)
            .join(keys, keys.c.id == secrets.c.key_id)
            .where(
                keys.c.kind == "worker",
                keys.c.revoked.is_(None),
                or_(keys.c.expires.is_(None), keys.c.expires > now),
                or_(secrets.c.valid_until.is_(None), secrets.c.valid_until > now),
            )
        )
        async with self._database.reading(CHANGE_S) as connection:
            kinds = set(await connection.scalars(select(keys.c.kind).distinct()))
            tokens = await connection.scalar(valid.limit(1))
        return KeyPresence(bool(kinds), "caller" in kinds, tokens is not None)

    async def get(self, key_id: str) -> StoredKey | None:
        """Return the key of this id, also an invalid one, or None."""
        async with self._database.reading(CHANGE_S) as connection:
            return await _get(connection, key_id)

    async def page(self, after: str, limit: int, kind: Kind | None, text: str) -> list[StoredKey]:
        """Return at most `limit` keys after the id `after`, by id; with a `text` (in lower case) in id or note."""
        by_id = collate(keys.c.id, self._collation)  # as Python orders them
        query = select(keys).where(by_id > after).order_by(by_id).limit(limit)
        if kind:
            query = query.where(keys.c.kind == kind)
        if text:
            query = query.where(
                or_(
                    *(
                        func.lower(column).contains(text, autoescape=True)
                        for column in (keys.c.id, keys.c.note)
                    )
                )
            )
        async with self._database.reading(CHANGE_S) as connection:
            return await _read(connection, query)

    @contextlib.asynccontextmanager
    async def changing(self) -> AsyncIterator["Change"]:
        """Open a transaction for one change. Other changes wait."""
        async with self._database.writing(CHANGE_S) as connection:
            raised = cast(cast(facts.c.value, BigInteger) + 1, Text)
            await connection.execute(update(facts).where(facts.c.name == VERSION).values(value=raised))
            yield Change(connection, int(await version_in(connection, VERSION)))

    async def note_used(self, ids: Iterable[str], now_ms: int) -> None:
        """Record that these keys were used now."""
        ordered = sorted(ids)  # one order everywhere, so that no two transactions deadlock
        used = update(keys).where(keys.c.id == bindparam("key")).values(last_used=now_ms)
        for at in range(0, len(ordered), MAX_USED):
            async with self._database.writing(USED_S) as connection:
                await connection.execute(used, [{"key": key_id} for key_id in ordered[at : at + MAX_USED]])


@dataclass(frozen=True, slots=True)
class Change:
    """The statements of one change."""

    _connection: AsyncConnection
    _version: int

    async def get(self, key_id: str) -> StoredKey | None:
        """Return the key of this id, also an invalid one, or None."""
        return await _get(self._connection, key_id)

    async def count(self) -> int:
        """Return the number of keys, including invalid ones."""
        return await self._connection.scalar(select(func.count()).select_from(keys)) or 0

    async def admins(self) -> list[StoredKey]:
        """Return the admin keys that are not revoked."""
        found = await _read(
            self._connection,
            select(keys).where(
                keys.c.kind == "caller", keys.c.revoked.is_(None), keys.c.settings.contains('"admin"')
            ),
        )
        return [key for key in found if key.admin]

    async def add(
        self,
        key_id: str,
        kind: Kind,
        settings: Mapping[str, Any],
        note: str,
        expires_ms: int | None,
        now_ms: int,
    ) -> None:
        """Add a key without a secret."""
        values = {"id": key_id, "kind": kind, "settings": _json(settings), "note": note, "created": now_ms}
        await self._connection.execute(
            insert(keys).values(**values, expires=expires_ms, version=self._version)
        )

    async def set(self, key_id: str, **columns: Any) -> None:
        """Change columns of a key; without columns, record that its secrets changed."""
        if "settings" in columns:
            columns["settings"] = _json(columns["settings"])
        await self._connection.execute(
            update(keys).where(keys.c.id == key_id).values(**columns, version=self._version)
        )

    async def add_secret(self, key_id: str, sha256: str, now_ms: int, signing_key: str | None = None) -> None:
        """Add a secret to a key. `signing_key`: the derived key that it signs tokens with, if it may sign."""
        values = {"sha256": sha256, "key_id": key_id, "created": now_ms, "signing_key": signing_key}
        await self._connection.execute(insert(secrets).values(**values))

    async def forget_signing(self, key_id: str) -> None:
        """Let no current secret of a key sign any longer."""
        await self._connection.execute(
            update(secrets).where(secrets.c.key_id == key_id).values(signing_key=None)
        )

    async def end_secrets(self, key_id: str, until_ms: int) -> None:
        """Let all current secrets of a key expire by this time."""
        later = or_(secrets.c.valid_until.is_(None), secrets.c.valid_until > until_ms)
        await self._connection.execute(
            update(secrets).where(secrets.c.key_id == key_id, later).values(valid_until=until_ms)
        )

    async def forget_secrets(self, key_id: str, before_ms: int, also: Collection[str]) -> None:
        """Delete the secrets of a key that expired before a time, and some others of it, by their hashes."""
        over = or_(secrets.c.valid_until < before_ms, secrets.c.sha256.in_(also))
        await self._connection.execute(secrets.delete().where(secrets.c.key_id == key_id, over))


async def _get(connection: AsyncConnection, key_id: str) -> StoredKey | None:
    found = await _read(connection, select(keys).where(keys.c.id == key_id))
    return found[0] if found else None


async def _read(connection: AsyncConnection, query: Select[Any]) -> list[StoredKey]:
    rows = (await connection.execute(query)).mappings().all()
    if not rows:
        return []
    chosen = query.with_only_columns(keys.c.id)
    theirs: dict[str, list[StoredSecret]] = {row["id"]: [] for row in rows}
    for secret in await connection.execute(select(secrets).where(secrets.c.key_id.in_(chosen))):
        if secret.key_id in theirs:  # another transaction may have added a key since
            theirs[secret.key_id].append(
                StoredSecret(secret.sha256, secret.created, secret.valid_until, secret.signing_key)
            )
    return [read_key(dict(row), theirs[row["id"]]) for row in rows]


def _json(settings: Mapping[str, Any]) -> str:
    return msgspec.json.encode(settings).decode()
