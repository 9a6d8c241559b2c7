"""Signatures of webhooks, as in Standard Webhooks (symmetric, v1) and OpenAI. Pure."""

import base64
import hmac
import secrets

PREFIX = "whsec_"
SECRET_BYTES = 32


def new_secret() -> str:
    """Return a new secret in the form that its owner gets: the prefix, then its bytes in base64."""
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def headers(webhook_id: str, sent_s: int, body: bytes, signed_by: list[str]) -> list[tuple[str, str]]:
    """Return the headers of a request, with one signature for each secret: a receiver has one of them."""
    signatures = " ".join(sign(secret, webhook_id, sent_s, body) for secret in signed_by)
    return [("webhook-id", webhook_id), ("webhook-timestamp", str(sent_s)), ("webhook-signature", signatures)]


def sign(secret: str, webhook_id: str, sent_s: int, body: bytes) -> str:
    """Return one signature: `v1,` and the HMAC-SHA256 of id, time and body in base64."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    signed = b"%b.%d.%b" % (webhook_id.encode(), sent_s, body)
    return f"v1,{base64.b64encode(hmac.digest(key, signed, 'sha256')).decode()}"
