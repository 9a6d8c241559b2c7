"""A key or worker token of the database: what its row says, and what follows from it. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from pydantic import ValidationError

from fairlane.gateway.accounts.callers import (
    SECRET_ID_CHARS,
    Caller,
    Kind,
    Proof,
    StoredKeys,
    WorkerIdentity,
    caller_of,
    worker_of,
)
from fairlane.gateway.settings import CallerKey, WorkerKey, unusable_key

State = Literal["valid", "expired", "revoked", "unusable"]

ENTRY: Mapping[Kind, type[CallerKey] | type[WorkerKey]] = {"caller": CallerKey, "worker": WorkerKey}
"""What an entry of the configuration says of a key; a row says the same."""
NAMED = frozenset({"id", "sha256", "signing_key"})
"""What of an entry is no setting, but has columns of its own."""


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """One secret of a key."""

    sha256: str
    created_ms: int
    until_ms: int | None
    signing_key: str | None = None
    """What it signs with, in hex; None for keys that may not."""


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A row, with its secrets, the oldest first."""

    id: str
    kind: Kind
    settings: Mapping[str, Any]
    """As an entry of the configuration says them; those not given have their defaults."""
    note: str
    created_ms: int
    secrets: tuple[StoredSecret, ...]
    expires_ms: int | None = None
    revoked_ms: int | None = None
    cut_ms: int | None = None
    last_used_ms: int | None = None
    entry: CallerKey | WorkerKey | None = None
    """The same as the configuration's; None: this release cannot read it."""
    proofs: tuple[Proof[Caller] | Proof[WorkerIdentity], ...] = ()
    """Whom its secrets stand for; none where nobody may use it any more."""
    begun: tuple[tuple[str, str], ...] = ()
    """Its id and those of its secrets, as calls are known by them; none where what is under way is to end."""

    @property
    def admin(self) -> bool:
        """Whether it is an admin's."""
        return isinstance(self.entry, CallerKey) and is_admins(self.entry)

    def state(self, now_ms: float, tiers: Collection[str]) -> State:
        """What it is good for now."""
        if self.revoked_ms is not None:
            return "revoked"
        if self.expires_ms is not None and now_ms >= self.expires_ms:
            return "expired"
        return "unusable" if self.entry is None or unusable_key(self.entry, tiers) else "valid"


def is_admins(entry: CallerKey) -> bool:
    """Whether a key is an admin's."""
    return entry.admin or "admin" in entry.scopes


def read_key(row: Mapping[str, Any], secrets: Iterable[StoredSecret]) -> StoredKey:
    """The key of a row. One that a newer release wrote may be none of ours: it is known then, and not valid."""
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
        () if entry is None or row["revoked"] is not None else _proofs(entry, kept, row["expires"]),
        () if kind != "caller" or row["cut"] is not None else _begun(key_id, kept),
    )


def _begun(key_id: str, secrets: Iterable[StoredSecret]) -> tuple[tuple[str, str], ...]:
    return tuple((key_id, secret.sha256[:SECRET_ID_CHARS]) for secret in secrets)


def _proofs(
    entry: CallerKey | WorkerKey, secrets: Iterable[StoredSecret], expires_ms: int | None
) -> tuple[Proof[Caller] | Proof[WorkerIdentity], ...]:
    found: list[Proof[Caller] | Proof[WorkerIdentity]] = []
    for secret in secrets:
        sha256 = secret.sha256
        until_ms = min((time for time in (expires_ms, secret.until_ms) if time is not None), default=None)
        if isinstance(entry, CallerKey):
            signs = bytes.fromhex(secret.signing_key) if entry.signing and secret.signing_key else b""
            found.append(Proof(sha256, caller_of(entry, sha256), until_ms, signs))
        else:
            found.append(Proof(sha256, worker_of(entry, sha256), until_ms))
    return tuple(found)


def read_entry(kind: Kind, key_id: str, settings: Mapping[str, Any]) -> CallerKey | WorkerKey:
    """What settings say, as the configuration's entry would. Raises ValidationError."""
    said = msgspec.json.encode({**settings, "id": key_id, "sha256": "0" * 64})
    return ENTRY[kind].model_validate_json(said, strict=True)


def stored_keys(keys: Collection[StoredKey]) -> StoredKeys:
    """What the keys of the database come to."""
    callers: dict[str, Any] = {}
    workers: dict[str, Any] = {}
    begun: set[tuple[str, str]] = set()
    for key in keys:
        begun.update(key.begun)
        proofs = callers if key.kind == "caller" else workers
        for proof in key.proofs:
            proofs[proof.sha256] = proof
    by_id = {key.id: key.proofs for key in keys if key.proofs}
    return StoredKeys(callers, workers, frozenset(begun), by_id, exist=bool(keys))


def next_end(stored: StoredKeys, now_ms: float) -> float:
    """When the next secret ends, ms; infinite: none does."""
    ends = (proof.until_ms for proofs in (stored.callers, stored.workers) for proof in proofs.values())
    return min((end for end in ends if end is not None and end > now_ms), default=float("inf"))
