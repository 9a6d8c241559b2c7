"""Idempotency keys in the store: what names a task that was submitted with one, and which ends let the key go. Pure."""

import hashlib
from base64 import urlsafe_b64encode
from typing import Final

from fairlane.queues.failures import FAILURES, Category

RELEASES_KEY: Final = frozenset(
    code for code, row in FAILURES.items() if row.retry or row.category is Category.CAPACITY
)
"""Failure codes that release the key of a task without output: the next request with it creates a task. Those that a retry may
fix, and all time-outs: the caller has seen nothing, and nothing was paid."""


def digest_text(digest: bytes) -> str:
    """A digest as it stands in the store: no space, and shorter than in hexadecimal digits."""
    return urlsafe_b64encode(digest).decode().rstrip("=")


def idempotency_name(key_id: str, user: str, idempotency_key: str) -> str:
    """What a caller's idempotency key is called in the store: of each caller's key, and of each of its users, another one."""
    hashed = hashlib.sha256()
    for part in (key_id, user, idempotency_key):
        text = part.encode()
        hashed.update(b"%d:%b" % (len(text), text))
    return digest_text(hashed.digest())


def pack(name: str, fingerprint: str, ttl_ms: int, most: int = 0, period_ms: int = 0) -> dict[str, str | int]:
    """Return a name, the fingerprint of the first body, and for how long it is remembered, for `TaskSpec.idempotency`. `most`:
    such names that a user may have (0: any number), of those that are remembered for `period_ms`."""
    each_us = max(ttl_ms * 1000 // most, 1) if most else 0
    return {
        "name": name,
        "fingerprint": fingerprint,
        "ms": ttl_ms,
        "each_us": each_us,
        "period_ms": period_ms,
    }


def idempotency_in_lua() -> str:
    """The same codes for the scripts."""
    codes = ", ".join(f"['{code}'] = true" for code in sorted(RELEASES_KEY))
    return f"local RELEASES_KEY = {{ {codes} }}\n"
