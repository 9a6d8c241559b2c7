"""What a back end does that signs: tokens and requests, made without any code of the gateway's."""

import base64
import hashlib
import hmac
import json
import secrets
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


def signature(
    secret: str,
    method: str,
    target: str,
    body: bytes = b"",
    kid: str = "site",
    *,
    at: float | None = None,
    nonce: str = "",
    **headers: str,
) -> dict[str, str]:
    """The headers of a request that is signed as a whole. `headers`: X-Fairlane headers, with underscores."""
    named = {name.replace("_", "-").lower(): value for name, value in headers.items()}
    ts, nonce = int(time.time() if at is None else at), nonce or secrets.token_urlsafe(16)
    digest = hashlib.sha256(body).hexdigest()
    lines = [method, target, str(ts), nonce, digest, *(f"{name}:{named[name]}" for name in sorted(named))]
    mac = hmac.digest(derived(secret), "\n".join(lines).encode(), "sha256").hex()
    fields = f"keyid={kid},ts={ts},nonce={nonce},body={digest},signature={mac}"
    return {"Authorization": f"Fairlane-HMAC-SHA256 {fields}", "Content-Type": "application/json", **named}
