"""The events of webhooks: their types and ids, the body of a request, and its signature. Pure."""

import base64
import hmac
import secrets
from hashlib import sha256

import msgspec

EVENTS = (
    *("task.completed", "task.failed", "task.cancelled"),
    *("response.completed", "response.failed", "response.incomplete", "response.cancelled"),
    *("batch.completed", "batch.failed", "batch.expired", "batch.cancelled"),
)
"""All types that clients can choose."""
ANY = "*"
"""All types, including those of later releases."""
TEST = "webhook.test"
"""The type of a test event. It is sent whatever types were chosen."""

EVERY_USER = "*"
"""The user of a webhook that covers all users of its key. No user of a key has this name."""


def event_id(event: str, object_id: str) -> str:
    """Return the id of an event: the same from any replica, and at each call."""
    return f"evt_{_hashed(event, object_id)}"


def delivery_id(webhook: str, event: str) -> str:
    """Return the id of the delivery of an event (its id) to a webhook: the `webhook-id` of all its requests."""
    return f"wh_{_hashed(webhook, event)}"


def body_of(event_id: str, event: str, object_id: str, created_ms: int, user: str) -> bytes:
    """Return the body, in OpenAI's form: the same for each attempt. An empty `user` is left out."""
    data = {"id": object_id} | ({"user": user} if user else {})
    body = {"id": event_id, "object": "event", "created_at": created_ms // 1000, "type": event, "data": data}
    return msgspec.json.encode(body)


def _hashed(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()[:32]


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
