"""What webhooks tell: which events there are, their names, and the body of a request. Pure."""

from hashlib import sha256

import msgspec

EVENTS = (
    *("task.completed", "task.failed", "task.cancelled"),
    *("response.completed", "response.failed", "response.incomplete", "response.cancelled"),
    *("batch.completed", "batch.failed", "batch.expired", "batch.cancelled"),
)
"""All that callers may choose, in the order in which they are told."""
ANY = "*"
"""Stands for all of them, also those of later releases."""
TEST = "webhook.test"
"""What a test tells; nobody need choose it."""

EVERY_USER = "*"
"""Stands for the user of a webhook that hears of all users of its key. No user of a key is named so."""


def event_id(event: str, object_id: str) -> str:
    """What names an event for good: the same whoever writes it down, and how often."""
    return f"evt_{_hashed(event, object_id)}"


def delivery_id(webhook: str, event: str) -> str:
    """What names the delivery of an event (its id) to a webhook: the `webhook-id` of all its requests."""
    return f"wh_{_hashed(webhook, event)}"


def body_of(event_id: str, event: str, object_id: str, created_ms: int, user: str) -> bytes:
    """The body, as OpenAI has it: the same for each try. `user`: told where it is not empty."""
    data = {"id": object_id} | ({"user": user} if user else {})
    told = {"id": event_id, "object": "event", "created_at": created_ms // 1000, "type": event, "data": data}
    return msgspec.json.encode(told)


def _hashed(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()[:32]
