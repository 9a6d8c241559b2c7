"""Keys of these tests: a caller's, another's, an operator's, a worker's; each is its own secret."""

import hashlib
from typing import Any

ADMIN, WORKER = "ops", "gpu"


def _key(name: str, secret: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": name, "sha256": hashlib.sha256((secret or name).encode()).hexdigest(), **more}


def keys(**secrets: str) -> dict[str, Any]:
    """Settings with these keys; `secrets` gives some another secret, "" takes them away."""
    callers = [
        _key("ann"),
        _key("bob", delegating=True),
        _key("site", delegating=True, user_from="body.user"),
        _key(ADMIN, scopes=["admin"]),
    ]
    for name, secret in secrets.items():
        callers = [
            {**key, **_key(name, secret)} if key["id"] == name else key
            for key in callers
            if secret or key["id"] != name
        ]
    return {"keys": callers, "workers": [_key(WORKER)]}


KEYS = keys()
