"""Webhooks and deliveries."""

from typing import Literal

from pydantic import Field

from fairlane.gateway.api.models.base import Answer, Ms


class WebhookFailing(Answer):
    """How a webhook fails."""

    since: Ms
    attempts: int = Field(description="since the last one that was taken")
    error: str = Field(description="what the last one came to")
    next_at: Ms | None = Field(description="when its receiver is asked next, if it rests until then")


class WebhookShown(Answer):
    """A webhook, as its owner sees it."""

    id: str
    url: str
    events: list[str]
    note: str
    every_user: bool = Field(description="it hears of all users of its key")
    enabled: bool
    off_at: Ms | None
    off_why: str | None
    failing: WebhookFailing | None
    created_at: Ms
    changed_at: Ms
    delivered_at: Ms | None = Field(description="when anything was taken last")
    old_secret_until: Ms | None = Field(description="until then the secret before signs besides")
    waiting: int = Field(description="deliveries that are owed")
    missed: int = Field(description="ends of which it tells nothing, as too many deliveries were owed")


class WebhookMade(WebhookShown):
    secret: str = Field(description="`whsec_…`, told this once")


class WebhookList(Answer):
    webhooks: list[WebhookShown]
    most: int


class WebhookRemoved(Answer):
    id: str
    removed: bool


class WebhookDelivery(Answer):
    """An event that is told to a webhook."""

    id: str = Field(description="the `webhook-id` of all its requests")
    webhook_id: str
    event_id: str = Field(description="`id` in the body: the same for all webhooks that tell of it")
    event: str
    object_id: str
    created_at: Ms = Field(description="when the event was")
    state: Literal["waiting", "delivered", "failed"]
    attempts: int
    next_at: Ms | None
    ended_at: Ms | None
    status: int | None = Field(description="of the last answer; null: there was none")
    error: str | None = Field(description="what was wrong with the last attempt")


class WebhookTry(Answer):
    at: Ms
    took_ms: Ms
    status: int | None
    error: str


class WebhookDeliveryDetail(WebhookDelivery):
    tries: list[WebhookTry] = Field(description="the last 20 attempts, the oldest first")


class WebhookDeliveries(Answer):
    deliveries: list[WebhookDelivery]
    next: str | None


class OwnedWebhook(WebhookShown):
    """A webhook, as operators see it."""

    key: str | None = Field(description="null: of an open gateway")
    user: str = Field(description="`*`: it hears of all users of its key")


class WebhookSwitchedOff(OwnedWebhook):
    notes: list[str]


class AllWebhooks(Answer):
    webhooks: list[OwnedWebhook]
    next: str | None


class OwnedDelivery(WebhookDelivery):
    """A delivery, as operators see it."""

    key: str | None
    user: str
    url: str


class AllWebhookDeliveries(Answer):
    deliveries: list[OwnedDelivery]
    next: str | None
