"""Keys and worker tokens in the SQL database: read, searched and changed. Only hashes of secrets are there.

Each change first increments the version of all keys, which locks its row. So changes are serial over all replicas, and a version
that is read includes every change before it.
"""

import contextlib
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from pydantic import ValidationError
from sqlalchemy import BigInteger, Select, Text, bindparam, cast, collate, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.accounts.callers import (
    SECRET_ID_CHARS,
    Caller,
    Credential,
    Kind,
    StoredKeys,
    WorkerIdentity,
    caller_of,
    worker_of,
)
from fairlane.gateway.accounts.no_auth import KeyPresence
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.tables import facts, keys, secrets
from fairlane.gateway.database.versions import read_version, version_in
from fairlane.gateway.features import unmet
from fairlane.gateway.settings import CallerKey, Settings, WorkerKey, unusable_key
from fairlane.queues.clock import now_ms

State = Literal["valid", "expired", "revoked", "unusable"]

ENTRY: Mapping[Kind, type[CallerKey] | type[WorkerKey]] = {"caller": CallerKey, "worker": WorkerKey}
"""The entry of the configuration; a row's settings have the same members."""
NAMED = frozenset({"id", "sha256", "signing_key"})
"""Members of an entry that have columns of their own."""


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """One secret of a key."""

    sha256: str
    created_ms: int
    until_ms: int | None
    signing_key: str | None = None
    """The key that it signs tokens with, in hex; None: it may not sign."""


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A row, with its secrets, the oldest first."""

    id: str
    kind: Kind
    settings: Mapping[str, Any]
    """As in an entry of the configuration; missing ones have their defaults."""
    note: str
    created_ms: int
    secrets: tuple[StoredSecret, ...]
    expires_ms: int | None = None
    revoked_ms: int | None = None
    cut_ms: int | None = None
    last_used_ms: int | None = None
    entry: CallerKey | WorkerKey | None = None
    """The entry of the configuration; None: the settings are invalid."""
    credentials: tuple[Credential[Caller] | Credential[WorkerIdentity], ...] = ()
    """The credentials of its secrets; none once it is revoked or unusable."""

    @property
    def admin(self) -> bool:
        """Whether it is an admin's."""
        return isinstance(self.entry, CallerKey) and self.entry.admin

    def state(self, now_ms: float, with_settings: Settings) -> State:
        """What it is good for now."""
        if self.revoked_ms is not None:
            return "revoked"
        if self.expires_ms is not None and now_ms >= self.expires_ms:
            return "expired"
        if self.entry is None or unusable_key(self.entry, with_settings.tiers, with_settings.pools):
            return "unusable"
        return "unusable" if unmet(self.settings, "keys.*", with_settings.disabled_features) else "valid"


def read_key(row: Mapping[str, Any], secrets: Iterable[StoredSecret]) -> StoredKey:
    """Return the key of a row. A key of a newer release may be unreadable: then it is known, but not valid."""
    settings = msgspec.json.decode(row["settings"])
    kind, key_id = row["kind"], row["id"]
    try:
        entry = read_entry(kind, key_id, settings) if kind in ENTRY else None
    except ValidationError:
        entry = None
    kept = tuple(sorted(secrets, key=lambda secret: secret.created_ms))
    return StoredKey(
        key_id,
        kind,
        settings,
        row["note"],
        row["created"],
        kept,
        row["expires"],
        row["revoked"],
        row["cut"],
        row["last_used"],
        entry,
        () if entry is None or row["revoked"] is not None else _credentials(entry, kept, row["expires"]),
    )


def _credentials(
    entry: CallerKey | WorkerKey, secrets: Iterable[StoredSecret], expires_ms: int | None
) -> tuple[Credential[Caller] | Credential[WorkerIdentity], ...]:
    found: list[Credential[Caller] | Credential[WorkerIdentity]] = []
    for secret in secrets:
        sha256 = secret.sha256
        until_ms = min((time for time in (expires_ms, secret.until_ms) if time is not None), default=None)
        if isinstance(entry, CallerKey):
            signs = bytes.fromhex(secret.signing_key) if entry.signing and secret.signing_key else b""
            found.append(Credential(sha256, caller_of(entry, sha256), until_ms, signs))
        else:
            found.append(Credential(sha256, worker_of(entry, sha256), until_ms))
    return tuple(found)


def read_entry(kind: Kind, key_id: str, settings: Mapping[str, Any]) -> CallerKey | WorkerKey:
    """Return settings as an entry of the configuration. Raise ValidationError."""
    encoded = msgspec.json.encode({**settings, "id": key_id, "sha256": "0" * 64})
    return ENTRY[kind].model_validate_json(encoded, strict=True)


def stored_keys(keys: Collection[StoredKey]) -> StoredKeys:
    """Return the credentials of the database's keys."""
    by_kind: dict[str, dict[str, Any]] = {
        kind: {found.sha256: found for key in keys if key.kind == kind for found in key.credentials}
        for kind in ENTRY
    }
    begun = {
        (key.id, secret.sha256[:SECRET_ID_CHARS])
        for key in keys
        if key.kind == "caller" and key.cut_ms is None
        for secret in key.secrets
    }
    return StoredKeys(by_kind["caller"], by_kind["worker"], frozenset(begun), exist=bool(keys))


def next_end(stored: StoredKeys, now_ms: float) -> float:
    """Return when the next secret expires, ms; infinite: none does."""
    ends = [one.until_ms for kind in (stored.callers, stored.workers) for one in kind.values()]
    return min((end for end in ends if end is not None and end > now_ms), default=float("inf"))


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
