"""What clients and operators can do with webhooks."""

import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, insert, update
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.audit.log import AuditRecord
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.tables import WebhookRow, webhook_deliveries, webhooks
from fairlane.gateway.errors import ApiError, bad_request
from fairlane.gateway.usage.reports import ReportSlots
from fairlane.gateway.webhooks import store
from fairlane.gateway.webhooks.delivery_queue import Health
from fairlane.gateway.webhooks.enqueue import row_of
from fairlane.gateway.webhooks.events import ANY, EVENTS, EVERY_USER, TEST, new_secret
from fairlane.gateway.webhooks.events import event_id as id_of_event
from fairlane.gateway.webhooks.settings import WebhookSettings
from fairlane.queues.overrides import Actor
from fairlane.workers.adapters.endpoints.addresses import addresses_said, read_networks, why_refused
from fairlane.workers.adapters.targets import BadTarget, read_target

MAX_URL_CHARS = 2048
MAX_PER_OWNER = 10
KEEP_SECRET_MS = 24 * 3_600_000
"""How long the former secret still signs by default."""
BY_OWNER = "Its owner switched it off."


class Webhooks:
    """Use cases, for the webhooks of the caller only. All raise ApiError and DatabaseUnavailable: then it is unknown whether a
    change was made."""

    def __init__(
        self,
        database: Database,
        slots: Callable[[str], AbstractAsyncContextManager[AsyncConnection]],
        settings: Callable[[], WebhookSettings],
        now_ms: Callable[[], int],
    ) -> None:
        """`slots`: `ReportSlots`."""
        self._database = database
        self._slots = slots
        self._settings = settings
        self._now_ms = now_ms

    @contextlib.asynccontextmanager
    async def _changing(
        self, caller: Caller, webhook: str, *, enabled: bool = False
    ) -> AsyncIterator[tuple[AsyncConnection, Any]]:
        """Open a transaction in which no other one changes the webhook. `enabled`: raise ApiError(409) if it is not."""
        async with self._database.writing() as connection:
            row = _found(await store.find(connection, webhook, caller.owner, lock=True))
            if enabled and row.off_since is not None:
                sentence = "The webhook is disabled: enable it first (enabled: true)"
                raise ApiError(409, "WEBHOOK_DISABLED", sentence)
            yield connection, row

    async def page(self, caller: Caller) -> dict[str, Any]:
        """Return all of them, and the limit."""
        async with self._database.reading() as connection:
            rows = await store.all_of(connection, caller.owner)
        return {"webhooks": [shown(row) for row in rows], "most": MAX_PER_OWNER}

    async def show(self, caller: Caller, webhook: str) -> dict[str, Any]:
        """Return one of them."""
        async with self._database.reading() as connection:
            return shown(_found(await store.find(connection, webhook, caller.owner)))

    async def deliveries(
        self, caller: Caller, webhook: str, status: str | None, after: str, limit: int
    ) -> dict[str, Any]:
        """Return a page of deliveries, the newest event first."""
        owner = caller.owner
        async with self._slots(owner.key_id) as connection:
            row = _found(await store.find(connection, webhook, owner))
            found = await store.deliveries(connection, webhook, status, after, limit + 1)
        rows = [shown_delivery(one, row.not_before) for one in found[:limit]]
        last = found[limit - 1] if len(found) > limit else None
        return {"deliveries": rows, "next": None if last is None else f"{last.created}.{last.id}"}

    async def delivery(self, caller: Caller, webhook: str, delivery: str) -> dict[str, Any]:
        """Return one delivery."""
        async with self._database.reading() as connection:
            row = _found(await store.find(connection, webhook, caller.owner))
            return shown_delivery(await _delivery(connection, webhook, delivery), row.not_before)

    async def create(
        self, caller: Caller, url: str, events: list[str], note: str, *, every_user: bool
    ) -> dict[str, Any]:
        """Create a webhook. Return it with its secret, which is never shown again."""
        settings, owner, now = self._settings(), caller.owner, self._now_ms()
        if every_user and not (caller.delegating and caller.key_id and caller.user == caller.key_id):
            sentence = "everyUser is for a delegating key, in a request that names no user"
            raise bad_request(sentence, "everyUser")
        row = WebhookRow(
            id=f"hook_{secrets.token_hex(12)}",
            key_id=owner.key_id,
            user_name=EVERY_USER if every_user else owner.user,
            url=_checked_url(url, settings),
            events=_checked_events(events),
            note=note,
            secret=new_secret(),
            created=now,
            changed=now,
        )
        async with self._database.writing() as connection:
            await store.lock_owner(connection, owner)
            if len(await store.all_of(connection, owner)) >= MAX_PER_OWNER:
                sentence = f"You have {MAX_PER_OWNER} webhooks: remove one first"
                raise ApiError(409, "TOO_MANY_WEBHOOKS", sentence)
            await connection.execute(insert(webhooks).values(row._asdict()))
            return shown(await store.find(connection, row.id, owner)) | {"secret": row.secret}

    async def change(self, caller: Caller, webhook: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Change the given fields: url, events, note, enabled. A new URL, or enabling it, resets its failures."""
        settings, now = self._settings(), self._now_ms()
        if not fields:
            raise bad_request("name at least one of url, events, note and enabled")
        values: dict[str, Any] = {"changed": now}
        if "url" in fields:
            values["url"] = _checked_url(fields["url"], settings)
        if "events" in fields:
            values["events"] = _checked_events(fields["events"])
        if "note" in fields:
            values["note"] = fields["note"]
        async with self._changing(caller, webhook) as (connection, row):
            on = fields.get("enabled", row.off_since is None)
            if not on and row.off_since is None:
                values |= disabled(now, BY_OWNER)
            elif on and (row.off_since is not None or values.get("url", row.url) != row.url):
                # without its claim, a replica that is sending now does not write the failures again
                values |= {"off_since": None, "claimed": 0, **Health()._asdict()}
            return shown(await store.update_webhook(connection, webhook, values))

    async def remove(self, caller: Caller, webhook: str) -> dict[str, Any]:
        """Remove a webhook and its deliveries. A request under way can still arrive."""
        async with self._changing(caller, webhook) as (connection, _):
            # its deliveries, which may be many, cannot be found any more; `Retention` deletes them at their age
            await connection.execute(delete(webhooks).where(webhooks.c.id == webhook))
        return {"id": webhook, "removed": True}

    async def rotate(self, caller: Caller, webhook: str, keep_ms: int | None) -> dict[str, Any]:
        """Replace the secret. Return the webhook with the new one; the former one also signs for `keep_ms`."""
        now, secret = self._now_ms(), new_secret()
        until = now + (KEEP_SECRET_MS if keep_ms is None else keep_ms)
        async with self._changing(caller, webhook) as (connection, row):
            values = {"secret": secret, "changed": now, "old_secret": row.secret, "old_until": until}
            if until <= now:
                values |= {"old_secret": "", "old_until": 0}
            return shown(await store.update_webhook(connection, webhook, values)) | {"secret": secret}

    async def test(self, caller: Caller, webhook: str) -> dict[str, Any]:
        """Add a delivery of a `webhook.test` event, and return it."""
        now = self._now_ms()
        made = row_of(webhook, TEST, webhook, "", now, id_of_event(TEST, secrets.token_hex(12)))
        async with self._changing(caller, webhook, enabled=True) as (connection, _):
            await connection.execute(insert(webhook_deliveries).values(made._asdict()))
            return await _sent_now(connection, webhook, made.id)

    async def redeliver(self, caller: Caller, webhook: str, delivery: str) -> dict[str, Any]:
        """Send a delivery again, now. One that has ended gets all its attempts again."""
        now = self._now_ms()
        async with self._changing(caller, webhook, enabled=True) as (connection, _):
            found = await _delivery(connection, webhook, delivery)
            values: dict[str, Any] = {"due": now}
            if found.state != "waiting":
                values |= {"state": "waiting", "began": now, "attempts": 0, "ended": None}
            which = webhook_deliveries.c.id == delivery
            await connection.execute(update(webhook_deliveries).where(which).values(values))
            return await _sent_now(connection, webhook, delivery)


# ---- answers ----------


def shown(row: Any) -> dict[str, Any]:
    """Return a webhook as its owner sees it, without its secret."""
    failing = {
        "since": row.failing_since,
        "attempts": row.fails,
        "error": row.error,
        "nextAt": row.not_before or None,
    }
    return {
        "id": row.id,
        "url": row.url,
        "events": row.events.split(" "),
        "note": row.note,
        "everyUser": row.user_name == EVERY_USER,
        "enabled": row.off_since is None,
        "disabledAt": row.off_since,
        "disabledReason": row.off_why or None,
        "failing": failing if row.fails else None,
        "createdAt": row.created,
        "changedAt": row.changed,
        "deliveredAt": row.delivered,
        "oldSecretUntil": row.old_until or None,
        "waiting": row.waiting,
    }


def shown_delivery(row: Any, not_before: int) -> dict[str, Any]:
    """Return a delivery as its owner sees it. `not_before`: until when its webhook backs off."""
    return {
        "id": row.id,
        "webhookId": row.webhook,
        "eventId": row.event_id,
        "event": row.event,
        "objectId": row.object_id,
        "createdAt": row.created,
        "status": row.state,
        "attempts": row.attempts,
        "nextAt": None if row.due is None else max(row.due, not_before),
        "endedAt": row.ended,
        "httpStatus": row.status,
        "error": row.error or None,
    }


def disabled(now_ms: int, why: str) -> dict[str, Any]:
    """Return the columns of a webhook that is disabled now."""
    return {"off_since": now_ms, "off_why": why, "claimed": 0}


# ---- checks ----------


def _checked_url(url: str, settings: WebhookSettings) -> str:
    """Return a URL in its normal form. Raises ApiError(400), also if the host itself (an address, or `localhost`) is in a private
    network. The addresses of other names are checked at each request."""
    if len(url) > MAX_URL_CHARS:
        raise bad_request(f"url may have {MAX_URL_CHARS} characters", "url")
    try:
        target = read_target(url)
    except BadTarget as error:
        raise bad_request(f"url: {error}", "url") from None
    if target.scheme == "http" and not settings.allow_private:
        sentence = "url must begin with https:// (an operator can allow http:// with webhooks.allow_private)"
        raise bad_request(sentence, "url")
    allowed = read_networks(settings.allow_private)
    refused = [why_refused(address, allowed) for address in addresses_said(target.host)]
    if refused and all(refused):
        sentence = f"url leads to {refused[0]}: an operator has to allow its network (webhooks.allow_private)"
        raise bad_request(sentence, "url")
    return target.url


def _checked_events(events: list[str]) -> str:
    """Return events as they are stored. Raises ApiError(400)."""
    if not events:
        raise bad_request('events must name at least one, or be ["*"]', "events")
    if ANY in events:
        return ANY
    for event in events:
        if event not in EVENTS:
            sentence = f"There is no event {event[:64]!r}: choose of {', '.join(EVENTS)}, or *"
            raise bad_request(sentence, "events")
    return " ".join(event for event in EVENTS if event in events)


def _found(row: Any | None) -> Any:
    if row is None:
        raise ApiError(404, "WEBHOOK_NOT_FOUND", "There is no such webhook; GET /api/webhooks lists yours")
    return row


async def _delivery(connection: AsyncConnection, webhook: str, delivery: str) -> Any:
    found = await store.delivery(connection, webhook, delivery)
    if found is None:
        sentence = "This webhook has no such delivery, or the delivery is older than two weeks"
        raise ApiError(404, "DELIVERY_NOT_FOUND", sentence)
    return found


async def _sent_now(connection: AsyncConnection, webhook: str, delivery: str) -> dict[str, Any]:
    """Return a delivery that is sent now, also to a webhook that backs off."""
    await store.update_webhook(connection, webhook, {"not_before": 0})
    return shown_delivery(await _delivery(connection, webhook, delivery), 0)


@dataclass(eq=False)
class WebhookAdmin:
    """The use cases. All raise ApiError and DatabaseUnavailable."""

    _database: Database
    _slots: ReportSlots
    _audit: AuditRecord
    _now_ms: Callable[[], int]

    async def page(self, key: str | None, after: str, limit: int, who: str) -> dict[str, Any]:
        """Return webhooks of all keys, or of one, by id."""
        async with self._slots(who) as connection:
            found = await store.page(connection, key, after, limit + 1)
        rows = [_for_operators(row) for row in found[:limit]]
        return {"webhooks": rows, "next": rows[-1]["id"] if len(found) > limit else None}

    async def disable(self, webhook: str, actor: Actor) -> dict[str, Any]:
        """Disable a webhook of any owner; a second call changes nothing. Its owner can enable it again."""
        async with self._database.writing() as connection:
            row: Any = await store.find(connection, webhook, None, lock=True)
            if row is None:
                raise ApiError(
                    404, "WEBHOOK_NOT_FOUND", "There is no such webhook: `fairlane webhook list` lists them"
                )
            if row.off_since is None:
                row = await store.update_webhook(
                    connection, webhook, disabled(self._now_ms(), "An operator disabled it.")
                )
        notes: list[str] = []
        facts = {"key": row.key_id, "user": row.user_name, "url": read_target(row.url).origin}
        await self._audit.note(actor, "disable", f"webhook {webhook}", facts, {}, notes)
        return _for_operators(row) | {"notes": notes}


def _for_operators(row: Any) -> dict[str, Any]:
    """Return a webhook as operators see it: of its URL the origin, because the rest is a secret at some services."""
    return shown(row) | {"key": row.key_id or None, "user": row.user_name, "url": read_target(row.url).origin}
