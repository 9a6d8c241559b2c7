"""The events of webhooks: their types and ids, and the body of a request. Pure."""

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
