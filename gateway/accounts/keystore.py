"""Keys and worker tokens in the SQL database: read, searched and changed. Only hashes of secrets are there.

Whoever changes something first raises the version of all keys, which locks it: changes come one after the other, over all
replicas, and a version that is read is that of everything which was changed before.
"""

import contextlib
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import BigInteger, Select, Text, bindparam, cast, collate, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.accounts.callers import Kind
from fairlane.gateway.accounts.openmode import Held
from fairlane.gateway.accounts.stored import StoredKey, StoredSecret, read_key
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.tables import facts, keys, secrets
from fairlane.gateway.database.versions import look_at, version_in
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
        """Moves with every change of a key."""
        return int(await look_at(self._database, VERSION))

    async def changed_since(self, version: int) -> tuple[int, list[StoredKey]]:
        """The version now, and the keys that have changed since another one (-1: all). A change in this very moment may be among
        them already, and comes again with the next version."""
        async with self._database.reading() as connection:
            now = int(await version_in(connection, VERSION))
            return now, await _read(connection, select(keys).where(keys.c.version > version))

    async def held(self) -> Held:
        """What there is, as far as it says who gets in."""
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
        return Held(bool(kinds), "caller" in kinds, tokens is not None)

    async def get(self, key_id: str) -> StoredKey | None:
        """A key, if there is or was one of this id."""
        async with self._database.reading(CHANGE_S) as connection:
            return await _get(connection, key_id)

    async def page(self, after: str, limit: int, kind: Kind | None, text: str) -> list[StoredKey]:
        """At most `limit` keys behind the id `after`, by id; with a `text` (in small letters) in id or note."""
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
        """One change, made at the end of the block, whole; or not at all if that raises. Others wait."""
        async with self._database.writing(CHANGE_S) as connection:
            raised = cast(cast(facts.c.value, BigInteger) + 1, Text)
            await connection.execute(update(facts).where(facts.c.name == VERSION).values(value=raised))
            yield Change(connection, int(await version_in(connection, VERSION)))

    async def note_used(self, ids: Iterable[str], now_ms: int) -> None:
        """These keys were used now."""
        ordered = sorted(ids)  # in one order everywhere, so that no two wait for each other
        used = update(keys).where(keys.c.id == bindparam("key")).values(last_used=now_ms)
        for at in range(0, len(ordered), MAX_USED):
            async with self._database.writing(USED_S) as connection:
                await connection.execute(used, [{"key": key_id} for key_id in ordered[at : at + MAX_USED]])


@dataclass(frozen=True, slots=True)
class Change:
    """What can be done within one change."""

    _connection: AsyncConnection
    _version: int

    async def get(self, key_id: str) -> StoredKey | None:
        """A key, if there is or was one of this id."""
        return await _get(self._connection, key_id)

    async def count(self) -> int:
        """How many keys there are, those included that are over."""
        return await self._connection.scalar(select(func.count()).select_from(keys)) or 0

    async def admins(self) -> list[StoredKey]:
        """Keys that are an admin's and not revoked, as far as this release can read them."""
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
        """A new key, still without a secret."""
        values = {"id": key_id, "kind": kind, "settings": _json(settings), "note": note, "created": now_ms}
        await self._connection.execute(
            insert(keys).values(**values, expires=expires_ms, version=self._version)
        )

    async def set(self, key_id: str, **columns: Any) -> None:
        """Change columns of a key; its secrets have changed, where none is given."""
        if "settings" in columns:
            columns["settings"] = _json(columns["settings"])
        await self._connection.execute(
            update(keys).where(keys.c.id == key_id).values(**columns, version=self._version)
        )

    async def add_secret(self, key_id: str, sha256: str, now_ms: int, signing_key: str | None = None) -> None:
        """Another secret of a key. `signing_key`: what it signs with, where it may."""
        values = {"sha256": sha256, "key_id": key_id, "created": now_ms, "signing_key": signing_key}
        await self._connection.execute(insert(secrets).values(**values))

    async def forget_signing(self, key_id: str) -> None:
        """No secret that a key has now signs any more."""
        await self._connection.execute(
            update(secrets).where(secrets.c.key_id == key_id).values(signing_key=None)
        )

    async def end_secrets(self, key_id: str, until_ms: int) -> None:
        """No secret that a key has now is valid for longer than this."""
        later = or_(secrets.c.valid_until.is_(None), secrets.c.valid_until > until_ms)
        await self._connection.execute(
            update(secrets).where(secrets.c.key_id == key_id, later).values(valid_until=until_ms)
        )

    async def forget_secrets(self, key_id: str, before_ms: int, also: Collection[str]) -> None:
        """Remove the secrets of a key that have not been valid since then, and some others of it, by their hashes."""
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
        if secret.key_id in theirs:  # one may just have come
            theirs[secret.key_id].append(
                StoredSecret(secret.sha256, secret.created, secret.valid_until, secret.signing_key)
            )
    return [read_key(dict(row), theirs[row["id"]]) for row in rows]


def _json(settings: Mapping[str, Any]) -> str:
    return msgspec.json.encode(settings).decode()
