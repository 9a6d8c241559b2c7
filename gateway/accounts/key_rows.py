"""A key or worker token of the database: its row, and the credentials of it. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from pydantic import ValidationError

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
from fairlane.gateway.features import unmet
from fairlane.gateway.settings import CallerKey, Settings, WorkerKey, unusable_key

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
        if self.entry is None or unusable_key(self.entry, with_settings.tiers):
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
