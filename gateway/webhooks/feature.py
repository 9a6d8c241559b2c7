"""What webhooks add to a gateway."""

from fairlane.gateway.attached import Attached
from fairlane.gateway.runtime import Gateway
from fairlane.gateway.webhooks.enqueue import announce
from fairlane.gateway.webhooks.sender import Sender
from fairlane.gateway.webhooks.webhooks import WebhookAdmin, Webhooks
from fairlane.queues.clock import now_ms


def attach(gateway: Gateway) -> Attached:
    """Send the deliveries that are due, from each replica."""
    current, slots = gateway.current, gateway.records.slots
    sender = Sender(
        gateway.database,
        lambda: current.settings,
        lambda key_id: current.callers.has_key(key_id),
        gateway.metrics,
        gateway.replica,
        now_ms,
    )
    webhooks = Webhooks(gateway.database, slots, lambda: current.settings.webhooks, now_ms)
    admin = WebhookAdmin(gateway.database, slots, gateway.audit, now_ms)
    return Attached(parts=[webhooks, admin], components=[sender], recorded=announce)
