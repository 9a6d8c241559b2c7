"""Configured keys for tests: the entry of a key and the headers that present it."""

import hashlib
from typing import Any


def key(key_id: str, **more: Any) -> dict[str, Any]:
    """The configuration's entry for a key whose secret is `secret-<id>`."""
    return {"id": key_id, "sha256": hashlib.sha256(secret(key_id).encode()).hexdigest(), **more}


def secret(key_id: str) -> str:
    return f"secret-{key_id}"
