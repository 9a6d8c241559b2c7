"""Makes secrets: keys for callers and tokens for workers, on request and at the first start."""

import base64
import contextlib
import json
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from fairlane.gateway.accounts.callers import digest
from fairlane.gateway.accounts.no_auth import NO_KEYS, KeyPresence
from fairlane.gateway.settings import CallerKey, Problem, Settings, SettingsError, WorkerKey
from fairlane.queues.secure_files import make_private_directory

Kind = Literal["key", "worker"]

FIRST_ID = "first"
_FILES: dict[Kind, str] = {"key": "first-caller-key.json", "worker": "first-worker-token.json"}
_PREFIXES: dict[Kind, str] = {"key": "fl", "worker": "flw"}


def new_secret(
    kind: Kind, key_id: str, random_bytes: Callable[[int], bytes] = secrets.token_bytes
) -> tuple[str, str]:
    """Return a new secret, `fl_<id>_` (callers) or `flw_<id>_` (workers) and 43 characters (256 bits), and its SHA-256.

    The id in it helps people to distinguish secrets and scanners to find leaked ones; it is not trusted.
    """
    random = base64.urlsafe_b64encode(random_bytes(32)).decode("ascii").rstrip("=")
    secret = f"{_PREFIXES[kind]}_{key_id}_{random}"
    return secret, digest(secret)


@dataclass(frozen=True, slots=True)
class Created:
    """A new secret; only the owner of the file `path` can read it there."""

    kind: Kind
    secret: str
    path: Path


def with_first_start_keys(
    settings: Settings, presence: KeyPresence = NO_KEYS
) -> tuple[Settings, list[Created]]:
    """Return the settings, with a caller key (an admin's) and a worker token if they are needed and not configured; and the new
    secrets. Raise SettingsError if the data directory cannot be used.

    Off loopback both are needed, so that a gateway there is never open; on loopback a worker token, as soon as there are keys, as
    workers read what callers send. The keys of an earlier start are read from the data directory. If there are none, and none in
    the database, they are created. Two gateways that start at the same time agree on one. Only their owner can read the files: of
    each secret one with its hash, after whose deletion the next start creates another, and one with the secret, which its reader
    deletes.
    """
    data_dir, created, found = settings.data_dir, list[Created](), dict[str, Any]()

    def sha256(kind: Kind, *, needed: bool, exists: bool) -> str | None:
        return (
            _hash(data_dir, kind, created)
            if needed and (not exists or first_file(data_dir, kind).exists())
            else None
        )

    try:
        if hashed := sha256("key", needed=not settings.keys and not settings.loopback, exists=presence.keys):
            found["keys"] = [CallerKey(id=FIRST_ID, scopes=["admin"], sha256=hashed)]
        needed = not settings.workers and (bool(settings.keys) or not settings.loopback)
        if hashed := sha256("worker", needed=needed, exists=presence.tokens):
            found["workers"] = [WorkerKey(id=FIRST_ID, sha256=hashed)]
    except (OSError, ValueError, KeyError, TypeError, ValidationError) as problem:
        message = (
            f"cannot make or read the first keys ({problem.__class__.__name__}); configure keys and workers"
        )
        raise SettingsError([Problem(str(data_dir), message)]) from problem
    return settings.model_copy(update=found) if found else settings, created


def first_file(data_dir: Path, kind: Kind) -> Path:
    """Return the path of the first key's or token's hash."""
    return data_dir / _FILES[kind]


def _hash(data_dir: Path, kind: Kind, created: list[Created]) -> str:
    path = first_file(data_dir, kind)
    make_private_directory(data_dir)
    if not path.exists():
        secret, sha256 = new_secret(kind, FIRST_ID)
        if _write_once(path, json.dumps({"id": FIRST_ID, "sha256": sha256}) + "\n"):
            shown = path.with_suffix(".secret")
            shown.unlink(missing_ok=True)
            _write_once(shown, f"{secret}\n")
            created.append(Created(kind, secret, shown))
    return str(json.loads(path.read_text(encoding="utf-8"))["sha256"])


def _write_once(path: Path, text: str) -> bool:
    """Create a private file with all of its text, or leave the existing one. Return whether it was created."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(fd)
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
            return True
        return False
    finally:
        draft.unlink()
