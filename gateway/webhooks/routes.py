"""Clients' calls for their webhooks, and those of operators."""

from typing import Annotated, Literal

from fastapi import Query, Response
from pydantic import Field

from fairlane.gateway.access import Access
from fairlane.gateway.admin.bodies import Note, StrictBody, read_body
from fairlane.gateway.api.dependencies import (
    ActorDep,
    BodyDep,
    CallerDep,
    answer,
    described,
    keyed_router,
    part,
)
from fairlane.gateway.api.schemas import BOOLEAN, INTEGER, STRING, Ms, Schema, fields, listed, rows, says
from fairlane.gateway.usage.queries import Filter
from fairlane.gateway.webhooks.webhooks import MAX_URL_CHARS, WebhookAdmin, Webhooks


class WebhookFailing(Schema, kw_only=True):
    """The recent failures of a webhook."""

    since: Ms
    attempts: Annotated[int, says("since the last success")]
    error: Annotated[str, says("of the last one")]
    next_at: Annotated[Ms | None, says("when its receiver is tried next, if the webhook backs off")]


class WebhookShown(Schema, kw_only=True):
    """A webhook, as shown to its owner."""

    id: str
    url: str
    events: list[str]
    note: str
    every_user: Annotated[bool, says("it covers all users of its key")]
    enabled: bool
    disabled_at: Ms | None
    disabled_reason: str | None
    failing: WebhookFailing | None
    created_at: Ms
    changed_at: Ms
    delivered_at: Annotated[Ms | None, says("when a delivery succeeded last")]
    old_secret_until: Annotated[Ms | None, says("until then the former secret signs, too")]
    waiting: Annotated[int, says("deliveries that are still to be sent")]


class WebhookCreated(WebhookShown, kw_only=True):
    secret: Annotated[str, says("`whsec_…`, never shown again")]


class WebhookDelivery(Schema, kw_only=True):
    """An event that is sent to a webhook."""

    id: Annotated[str, says("the `webhook-id` of all its requests")]
    webhook_id: str
    event_id: Annotated[str, says("`id` in the body: the same for all webhooks")]
    event: str
    object_id: str
    created_at: Annotated[Ms, says("when the event happened")]
    status: Literal["waiting", "delivered", "failed"]
    attempts: Annotated[int, says("since it was created, or sent again by hand")]
    next_at: Ms | None
    ended_at: Ms | None
    http_status: Annotated[int | None, says("of the last answer; null: no answer")]
    error: Annotated[str | None, says("of the last attempt")]


class OwnedWebhook(WebhookShown, kw_only=True):
    """A webhook, as shown to operators."""

    key: Annotated[str | None, says("null: created in no-auth mode")]
    user: Annotated[str, says("`*`: all users of its key")]


class WebhookDisabled(OwnedWebhook, kw_only=True):
    notes: list[str]


DAY_MS = 24 * 3_600_000

AdminDep = Annotated[WebhookAdmin, part(WebhookAdmin)]
router = keyed_router("webhooks")
operators = keyed_router("operators")

State = Annotated[Literal["waiting", "delivered", "failed"] | None, Query()]
After = Annotated[str, Query(pattern=r"^([0-9]{1,15}\.wh_[0-9a-f]{32})?$")]
Limit = Annotated[int, Query(ge=1, le=500)]


Url = Annotated[str, Field(min_length=1, max_length=MAX_URL_CHARS)]
Events = Annotated[list[str], Field(max_length=64)]


class NewWebhook(StrictBody):
    """A webhook to be created."""

    url: Url = Field(description="where requests are sent: `https://…`")
    events: Events = Field(["*"], description="types of events; `*`: all, including those of later releases")
    note: Note = Field("", description="a note of its owner")
    everyUser: bool = Field(  # noqa: N815 - as callers write it
        False,
        description="for a delegating key, in a request that names no user: cover all its users; `data.user` names them",
    )


class WebhookChange(StrictBody):
    """What changes."""

    url: Url = Field("", description="a new URL resets its failures")
    events: Events = Field([], description="types of events, from now on")
    note: Note = Field("", description="a note of its owner")
    enabled: bool = Field(True, description="false disables it, true enables it")


class AnyWebhookChange(StrictBody):
    """What an operator can change."""

    enabled: Literal[False] = Field(description="only its owner enables it again")


class NewSecret(StrictBody):
    """How the secret is replaced."""

    keepMs: Annotated[int, Field(ge=0, le=30 * DAY_MS)] | None = Field(  # noqa: N815
        None, description="how long the former one signs, too, ms: a day by default, 0: not at all"
    )


WebhooksDep = Annotated[Webhooks, part(Webhooks)]


@router.get(
    "/api/webhooks",
    **described("webhooks.list", "List webhooks", fields(webhooks=rows(WebhookShown), most=INTEGER)),
)
async def list_webhooks(webhooks: WebhooksDep, caller: CallerDep) -> Response:
    """Return the caller's webhooks, the oldest first, and how many they can have (`most`)."""
    return answer(await webhooks.page(caller))


@router.post(
    "/api/webhooks",
    **described("webhooks.create", "Create a webhook", WebhookCreated, body=NewWebhook, status=201),
)
async def create_webhook(webhooks: WebhooksDep, caller: CallerDep, body: BodyDep) -> Response:
    """Create a webhook. From now on its URL is notified of ends, including those of tasks that run already. `secret`, which signs
    the requests, is never shown again: if the answer is lost, rotate it."""
    new = read_body(NewWebhook, body, secret=True)
    made = await webhooks.create(caller, new.url, new.events, new.note, every_user=new.everyUser)
    return answer(made, status=201)


@router.get("/api/webhooks/{webhook_id}", **described("webhooks.get", "Get a webhook", WebhookShown))
async def show_webhook(webhooks: WebhooksDep, caller: CallerDep, webhook_id: str) -> Response:
    """Return one of the caller's webhooks. `failing`: its last attempts failed; `waiting`: deliveries to be sent."""
    return answer(await webhooks.show(caller, webhook_id))


@router.patch(
    "/api/webhooks/{webhook_id}",
    **described("webhooks.update", "Update a webhook", WebhookShown, body=WebhookChange),
)
async def change_webhook(
    webhooks: WebhooksDep, caller: CallerDep, body: BodyDep, webhook_id: str
) -> Response:
    """Change the given fields. Waiting deliveries go to the new URL. While the webhook is disabled they wait, and no deliveries
    are added."""
    change = read_body(WebhookChange, body, secret=True)
    fields = {name: getattr(change, name) for name in change.model_fields_set}
    return answer(await webhooks.change(caller, webhook_id, fields))


@router.delete(
    "/api/webhooks/{webhook_id}",
    **described("webhooks.delete", "Delete a webhook", fields(id=STRING, removed=BOOLEAN)),
)
async def remove_webhook(webhooks: WebhooksDep, caller: CallerDep, webhook_id: str) -> Response:
    """Remove a webhook and its deliveries, including those that wait. A request under way can still arrive."""
    return answer(await webhooks.remove(caller, webhook_id))


@router.post(
    "/api/webhooks/{webhook_id}/rotate",
    **described("webhooks.rotate", "Replace the secret of a webhook", WebhookCreated, body=NewSecret),
)
async def rotate_webhook(
    webhooks: WebhooksDep, caller: CallerDep, body: BodyDep, webhook_id: str
) -> Response:
    """Replace the `secret` of a webhook. The former one signs, too, for `keepMs`, a day by default: requests then have two
    signatures, and a receiver with either secret accepts them."""
    keep_ms = read_body(NewSecret, body, secret=True).keepMs
    return answer(await webhooks.rotate(caller, webhook_id, keep_ms))


@router.post(
    "/api/webhooks/{webhook_id}/test",
    **described("webhooks.test", "Send a test event", WebhookDelivery, status=202),
)
async def test_webhook(webhooks: WebhooksDep, caller: CallerDep, webhook_id: str) -> Response:
    """Send an event of type `webhook.test` with the webhook's id, whatever its `events`. Its delivery shows the result."""
    return answer(await webhooks.test(caller, webhook_id), status=202)


@router.get(
    "/api/webhooks/{webhook_id}/deliveries",
    **described("webhooks.deliveries.list", "List deliveries", listed("deliveries", WebhookDelivery)),
)
async def list_deliveries(
    webhooks: WebhooksDep,
    caller: CallerDep,
    webhook_id: str,
    status: State = None,
    after: After = "",
    limit: Limit = 100,
) -> Response:
    """Return deliveries of a webhook, the newest event first; `next` is the `after` of the next page, null at the end.

    `status`: `waiting` (it is sent at `nextAt`), `delivered`, or `failed`: no attempt succeeded in three days.
    """
    return answer(await webhooks.deliveries(caller, webhook_id, status, after, limit))


@router.get(
    "/api/webhooks/{webhook_id}/deliveries/{delivery_id}",
    **described("webhooks.deliveries.get", "Get a delivery", WebhookDelivery),
)
async def show_delivery(
    webhooks: WebhooksDep, caller: CallerDep, webhook_id: str, delivery_id: str
) -> Response:
    """Return one delivery."""
    return answer(await webhooks.delivery(caller, webhook_id, delivery_id))


@router.post(
    "/api/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver",
    **described("webhooks.deliveries.redeliver", "Send a delivery again", WebhookDelivery, status=202),
)
async def redeliver(webhooks: WebhooksDep, caller: CallerDep, webhook_id: str, delivery_id: str) -> Response:
    """Send a delivery again, with the same `webhook-id`; one that waits is sent now."""
    return answer(await webhooks.redeliver(caller, webhook_id, delivery_id), status=202)


# ---- operators ----------


@operators.get(
    "/api/admin/webhooks",
    **described("admin.webhooks.list", "List all webhooks", listed("webhooks", OwnedWebhook)),
)
async def all_webhooks(
    admin: AdminDep,
    caller: CallerDep,
    key: Filter = "",
    after: Annotated[str, Query(pattern=r"^(hook_[0-9a-f]{24})?$")] = "",
    limit: Limit = 100,
) -> Response:
    """Return webhooks of all keys, or of one, by id, without secrets, and of URLs only scheme and host. `next` is the `after` of
    the next page."""
    return answer(await admin.page(key or None, after, limit, caller.key_id))


@operators.patch(
    "/api/admin/webhooks/{webhook_id}",
    **described("admin.webhooks.update", "Disable a webhook", WebhookDisabled, body=AnyWebhookChange),
)
async def disable(admin: AdminDep, actor: ActorDep, body: BodyDep, webhook_id: str) -> Response:
    """Disable a webhook of any key. Its owner sees the reason in `disabledReason` and can enable it again, unless
    you revoke the key."""
    read_body(AnyWebhookChange, body)
    return answer(await admin.disable(webhook_id, actor))


ROUTERS = ((router, Access.CALLER), (operators, Access.ADMIN))
