"""Tokens as a back end signs them, made without any code of the gateway's."""

import base64
import hmac
import json
import time
from typing import Any


def derived(secret: str) -> bytes:
    """What a secret signs with."""
    return hmac.digest(secret.encode(), b"fairlane sign", "sha256")


def part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(
    secret: str, kid: str = "site", *, head: dict[str, Any] | None = None, ends_s: float = 600, **claims: Any
) -> str:
    """A token of the key `kid`."""
    header = {"alg": "HS256", "typ": "JWT", "kid": kid} | (head or {})
    said = {"exp": int(time.time() + ends_s), **claims}
    return sealed(json.dumps(header).encode(), json.dumps(said).encode(), derived(secret))


def sealed(header: bytes, claims: bytes, key: bytes) -> str:
    """A token of these very bytes."""
    signed = f"{part(header)}.{part(claims)}"
    return f"{signed}.{part(hmac.digest(key, signed.encode(), 'sha256'))}"
