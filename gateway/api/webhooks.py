"""Callers' calls for webhooks of theirs, and what operators see of them."""

from typing import Annotated, Literal

from fastapi import Depends, Query, Response
from fastapi import Request as Framed
from pydantic import BaseModel, ConfigDict, Field

from fairlane.gateway.api.dependencies import (
    ActorDep,
    BodyDep,
    CallerDep,
    OperatorDep,
    answer,
    described,
    keyed_router,
)
from fairlane.gateway.api.operator_schemas import (
    OwnedWebhook,
    WebhookCreated,
    WebhookDelivery,
    WebhookDeliveryDetail,
    WebhookDisabled,
    WebhookShown,
)
from fairlane.gateway.api.queries import Count, Filter
from fairlane.gateway.api.schemas import BOOLEAN, INTEGER, STRING, fields, listed, rows
from fairlane.gateway.operator.bodies import Note, read_body
from fairlane.gateway.webhooks.store import Cursor
from fairlane.gateway.webhooks.webhooks import MAX_URL_CHARS, Webhooks

DAY_MS = 24 * 3_600_000

router = keyed_router("webhooks")
operators = keyed_router("operators")

State = Annotated[Literal["waiting", "delivered", "failed"] | None, Query()]
After = Annotated[str, Query(pattern=r"^([0-9]{1,15}-wh_[0-9a-f]{32})?$")]
Limit = Annotated[int, Query(ge=1, le=500), Count]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


Url = Annotated[str, Field(min_length=1, max_length=MAX_URL_CHARS)]
Events = Annotated[list[str], Field(max_length=64)]


class NewWebhook(_Body):
    """Where a caller wants to be told of what."""

    url: Url = Field(description="where requests are sent: `https://…`")
    events: Events = Field(["*"], description="which events; `*`: all, also those of later releases")
    note: Note = Field("", description="what its owner wants to remember")
    everyUser: bool = Field(  # noqa: N815 - as callers write it
        False,
        description="of a delegating key, in a request that names no user: it hears of all its users; `data.user` names them",
    )


class WebhookChange(_Body):
    """What becomes otherwise of a webhook."""

    url: Url = Field("", description="another URL: then it begins anew, as if nothing had failed")
    events: Events = Field([], description="which events, from now on")
    note: Note = Field("", description="what its owner wants to remember")
    enabled: bool = Field(True, description="false switches it off, true on")


class AnyWebhookChange(_Body):
    """What an operator changes of a webhook of any key."""

    enabled: Literal[False] = Field(description="only its owner enables it again")


class NewSecret(_Body):
    """How the secret of a webhook is replaced."""

    keepMs: Annotated[int, Field(ge=0, le=30 * DAY_MS)] | None = Field(  # noqa: N815
        None, description="for how long the one before signs besides, ms: a day if not given, 0: not any more"
    )


async def _webhooks(request: Framed) -> Webhooks:
    webhooks: Webhooks = request.app.gateway.webhooks
    return webhooks


WebhooksDep = Annotated[Webhooks, Depends(_webhooks)]


@router.get(
    "/api/webhooks",
    **described("webhooks.list", "List webhooks", fields(webhooks=rows(WebhookShown), most=INTEGER)),
)
async def list_webhooks(webhooks: WebhooksDep, caller: CallerDep) -> Response:
    """The caller's webhooks, the oldest first, and how many there may be (`most`)."""
    return answer(await webhooks.page(caller))


@router.post(
    "/api/webhooks",
    **described("webhooks.create", "Create a webhook", WebhookCreated, body=NewWebhook, status=201),
)
async def create_webhook(webhooks: WebhooksDep, caller: CallerDep, body: BodyDep) -> Response:
    """Makes a webhook: from now on requests tell its URL of ends, those of tasks that run already, too. Its `secret`, with
    which they are signed, is told this once. If the answer is lost, so is the secret: rotate it."""
    new = read_body(NewWebhook, await body.fields(), secret=True)
    made = await webhooks.create(caller, new.url, new.events, new.note, every_user=new.everyUser)
    return answer(made, status=201)


@router.get("/api/webhooks/{webhook_id}", **described("webhooks.get", "Get a webhook", WebhookShown))
async def show_webhook(webhooks: WebhooksDep, caller: CallerDep, webhook_id: str) -> Response:
    """One of the caller's webhooks. `failing`: nothing was taken since then; `waiting`: deliveries that are owed; `missed`:
    ends of which it tells nothing, as 10,000 deliveries were owed."""
    return answer(await webhooks.show(caller, webhook_id))


@router.patch(
    "/api/webhooks/{webhook_id}",
    **described("webhooks.update", "Update a webhook", WebhookShown, body=WebhookChange),
)
async def change_webhook(
    webhooks: WebhooksDep, caller: CallerDep, body: BodyDep, webhook_id: str
) -> Response:
    """Changes what is given. What is owed goes to the URL that holds when it is sent; while the webhook is off it waits, and no
    further ends are written down."""
    said = read_body(WebhookChange, await body.fields(), secret=True)
    fields = {name: getattr(said, name) for name in said.model_fields_set}
    return answer(await webhooks.change(caller, webhook_id, fields))


@router.delete(
    "/api/webhooks/{webhook_id}",
    **described("webhooks.delete", "Delete a webhook", fields(id=STRING, removed=BOOLEAN)),
)
async def remove_webhook(webhooks: WebhooksDep, caller: CallerDep, webhook_id: str) -> Response:
    """Removes a webhook, with its log. What it still owes is not sent; a request under way may still come."""
    return answer(await webhooks.remove(caller, webhook_id))


@router.post(
    "/api/webhooks/{webhook_id}/rotate",
    **described("webhooks.rotate", "Replace the secret of a webhook", WebhookCreated, body=NewSecret),
)
async def rotate_webhook(
    webhooks: WebhooksDep, caller: CallerDep, body: BodyDep, webhook_id: str
) -> Response:
    """Gives a webhook another `secret`, told this once. The one before signs besides for `keepMs`, a day if it is not given:
    requests then have two signatures, and a receiver that knows one of the secrets takes them."""
    keep_ms = read_body(NewSecret, await body.fields(), secret=True).keepMs
    return answer(await webhooks.rotate(caller, webhook_id, keep_ms))


@router.post(
    "/api/webhooks/{webhook_id}/test",
    **described("webhooks.test", "Send a test event", WebhookDelivery, status=202),
)
async def test_webhook(webhooks: WebhooksDep, caller: CallerDep, webhook_id: str) -> Response:
    """Has a webhook tell an event of type `webhook.test` with its own id, whatever its `events`. What became of it, its
    delivery tells."""
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
    """What a webhook has told and is to tell, the newest event first; `next` is the `after` that goes on, null at the end.

    `status`: `waiting` (it is sent at `nextAt`), `delivered`, or `failed`: it was not taken in all its time.
    """
    return answer(await webhooks.deliveries(caller, webhook_id, status, _cursor(after), limit))


@router.get(
    "/api/webhooks/{webhook_id}/deliveries/{delivery_id}",
    **described("webhooks.deliveries.get", "Get a delivery", WebhookDeliveryDetail),
)
async def show_delivery(
    webhooks: WebhooksDep, caller: CallerDep, webhook_id: str, delivery_id: str
) -> Response:
    """One delivery, with its last 20 attempts."""
    return answer(await webhooks.delivery(caller, webhook_id, delivery_id))


@router.post(
    "/api/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver",
    **described("webhooks.deliveries.redeliver", "Send a delivery again", WebhookDelivery, status=202),
)
async def redeliver(webhooks: WebhooksDep, caller: CallerDep, webhook_id: str, delivery_id: str) -> Response:
    """Sends a delivery again, under the same `webhook-id`, also one that was taken; one that waits is sent now."""
    return answer(await webhooks.redeliver(caller, webhook_id, delivery_id), status=202)


# ---- operators' ----------


@operators.get(
    "/api/admin/webhooks",
    **described("admin.webhooks.list", "List all webhooks", listed("webhooks", OwnedWebhook)),
)
async def all_webhooks(
    operator: OperatorDep,
    caller: CallerDep,
    key: Filter = "",
    after: Annotated[str, Query(pattern=r"^(hook_[0-9a-f]{24})?$")] = "",
    limit: Limit = 100,
) -> Response:
    """Everybody's webhooks, by id, or those of a key; never a secret, nor the query of a URL. `next` goes on."""
    return answer(await operator.webhooks.page(key or None, after, limit, caller.key_id))


@operators.patch(
    "/api/admin/webhooks/{webhook_id}",
    **described("admin.webhooks.update", "Disable a webhook", WebhookDisabled, body=AnyWebhookChange),
)
async def disable(operator: OperatorDep, actor: ActorDep, body: BodyDep, webhook_id: str) -> Response:
    """Disable a webhook of any key. Its owner sees the reason in `disabledReason` and can enable it again, unless
    you revoke the key."""
    read_body(AnyWebhookChange, await body.fields())
    return answer(await operator.webhooks.off(webhook_id, actor))


def _cursor(after: str) -> Cursor | None:
    created, _, delivery = after.partition("-")
    return Cursor(int(created), delivery) if after else None
