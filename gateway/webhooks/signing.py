"""Signatures of webhooks, as Standard Webhooks (symmetric, v1) and OpenAI have them. Pure."""

import base64
import hmac
import secrets

PREFIX = "whsec_"
SECRET_BYTES = 32


def new_secret() -> str:
    """A secret as its owner is told it: what stands behind the prefix is its bytes in base64."""
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def headers(webhook_id: str, sent_s: int, body: bytes, signed_by: list[str]) -> list[tuple[str, str]]:
    """The headers of a request that is sent now. It is signed with each of these secrets, of which a receiver knows one."""
    signatures = " ".join(sign(secret, webhook_id, sent_s, body) for secret in signed_by)
    return [("webhook-id", webhook_id), ("webhook-timestamp", str(sent_s)), ("webhook-signature", signatures)]


def sign(secret: str, webhook_id: str, sent_s: int, body: bytes) -> str:
    """One signature: `v1,` and the HMAC-SHA256 of id, time and body in base64."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    signed = b"%b.%d.%b" % (webhook_id.encode(), sent_s, body)
    return f"v1,{base64.b64encode(hmac.digest(key, signed, 'sha256')).decode()}"
