"""What callers do with webhooks of theirs."""

import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.accounts.tokens import TokenForbids
from fairlane.gateway.database.database import Database
from fairlane.gateway.errors import ApiError, bad_request
from fairlane.gateway.settings import WebhookSettings
from fairlane.gateway.webhooks import store
from fairlane.gateway.webhooks.enqueue import MAX_WAITING, due_of, row_of
from fairlane.gateway.webhooks.events import ANY, EVENTS, EVERY_USER, TEST
from fairlane.gateway.webhooks.events import event_id as id_of_event
from fairlane.gateway.webhooks.signing import new_secret
from fairlane.gateway.webhooks.store import Cursor
from fairlane.workers.adapters.endpoints.addresses import addresses_said, read_networks, why_refused
from fairlane.workers.adapters.targets import BadTarget, read_target

MAX_URL_CHARS = 2048
MAX_PER_CALLER = 10
"""Webhooks of all users of a key, or of an open gateway."""
KEEP_SECRET_MS = 24 * 3_600_000
"""For so long the secret before signs besides, where nothing else is said."""
BY_OWNER = "Its owner switched it off."


class Webhooks:
    """Use cases, for the webhooks of the caller alone. All raise ApiError and DatabaseUnavailable: then it is not known whether
    a change was made."""

    def __init__(
        self,
        database: Database,
        report: Callable[[str], AbstractAsyncContextManager[AsyncConnection]],
        settings: Callable[[], WebhookSettings],
        now_ms: Callable[[], int],
    ) -> None:
        """`report`: a connection for what may take long, when it is the turn of a key (`Reading`)."""
        self._database = database
        self._report = report
        self._settings = settings
        self._now_ms = now_ms

    # ---- what there is ----------

    async def page(self, caller: Caller) -> dict[str, Any]:
        """All of them, and how many there may be."""
        async with self._database.reading() as connection:
            rows = await store.all_of(connection, _owner(caller))
        return {"webhooks": [shown(row) for row in rows], "most": MAX_PER_CALLER}

    async def show(self, caller: Caller, webhook: str) -> dict[str, Any]:
        """One of them."""
        async with self._database.reading() as connection:
            return shown(_found(await store.find(connection, webhook, _owner(caller))))

    async def deliveries(
        self, caller: Caller, webhook: str, status: str | None, after: Cursor | None, limit: int
    ) -> dict[str, Any]:
        """What one of them has told and is to tell, the newest first."""
        owner = _owner(caller)
        async with self._report(owner.key_id) as connection:
            row = _found(await store.find(connection, webhook, owner))
            found = await store.deliveries(connection, webhook, status, after, limit + 1)
        rows = [shown_delivery(one, row.not_before) for one in found[:limit]]
        return {"deliveries": rows, "next": next_of(found, limit)}

    async def delivery(self, caller: Caller, webhook: str, delivery: str) -> dict[str, Any]:
        """One of those, with its last attempts."""
        async with self._database.reading() as connection:
            row = _found(await store.find(connection, webhook, _owner(caller)))
            found = await store.delivery(connection, webhook, delivery)
        if found is None:
            raise _no_delivery()
        return shown_delivery(found, row.not_before) | {"tries": tries_of(found)}

    # ---- changes ----------

    async def create(
        self, caller: Caller, url: str, events: list[str], note: str, *, every_user: bool
    ) -> dict[str, Any]:
        """A new one, and its secret, which is told this once."""
        settings = self._settings()
        owner = _owner(caller)
        if not settings.enabled:
            sentence = "This gateway sends no webhooks: an operator has switched them off (webhooks.enabled)"
            raise ApiError(403, "WEBHOOKS_OFF", sentence)
        if every_user and not (caller.delegating and caller.key_id and caller.user == caller.key_id):
            sentence = "everyUser is for a delegating key, in a request that names no user"
            raise bad_request(sentence, "everyUser")
        now = self._now_ms()
        row: dict[str, Any] = {
            "id": f"hook_{secrets.token_hex(12)}",
            "key_id": owner.key_id,
            "user_name": EVERY_USER if every_user else owner.user,
            "url": _checked_url(url, settings),
            "events": _checked_events(events),
            "note": note,
            "secret": new_secret(),
            "old_secret": "",
            "old_until": 0,
            "created": now,
            "changed": now,
            **dict.fromkeys(("off_since", "failing_since", "delivered", "due")),
            **dict.fromkeys(("off_why", "error", "claim"), ""),
            **dict.fromkeys(("fails", "waiting", "missed", "not_before"), 0),
        }
        async with self._database.writing() as connection:
            await store.one_at_a_time(connection, owner)
            if await store.count(connection, owner) >= MAX_PER_CALLER:
                sentence = f"You have {MAX_PER_CALLER} webhooks: remove one first"
                raise ApiError(409, "TOO_MANY_WEBHOOKS", sentence)
            await store.add(connection, row)
            made = _found(await store.find(connection, row["id"], owner))
        return shown(made) | {"secret": row["secret"]}

    async def change(self, caller: Caller, webhook: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Change what is given: url, events, note, enabled. A new URL, or enabling it, resets its failures."""
        settings, owner, now = self._settings(), _owner(caller), self._now_ms()
        if not fields:
            raise bad_request("say what becomes otherwise: url, events, note or enabled")
        values: dict[str, Any] = {"changed": now}
        if "url" in fields:
            values["url"] = _checked_url(fields["url"], settings)
        if "events" in fields:
            values["events"] = _checked_events(fields["events"])
        if "note" in fields:
            values["note"] = fields["note"]
        async with self._database.writing() as connection:
            row = _found(await store.find(connection, webhook, owner, change=True))
            on = fields.get("enabled", row.off_since is None)
            if not on and row.off_since is None:
                values |= {"off_since": now, "off_why": BY_OWNER, "due": None, "claim": ""}
            elif on and (row.off_since is not None or values.get("url", row.url) != row.url):
                # a replica that sends to it now records its results, and stops
                values |= {"off_since": None, "off_why": "", "fails": 0, "failing_since": None, "error": ""}
                due = await store.first_due(connection, webhook)
                values |= {"not_before": 0, "claim": "", "due": due}
            await store.set_values(connection, webhook, values)
            return shown(_found(await store.find(connection, webhook, owner)))

    async def remove(self, caller: Caller, webhook: str) -> dict[str, Any]:
        """Remove one with what it has told; a request under way may still come."""
        async with self._database.writing() as connection:
            _found(await store.find(connection, webhook, _owner(caller), change=True))
            await store.remove(connection, webhook, self._now_ms())
        return {"id": webhook, "removed": True}

    async def rotate(self, caller: Caller, webhook: str, keep_ms: int | None) -> dict[str, Any]:
        """Another secret, told this once. The one before signs besides for a time: a request then has two signatures."""
        now, owner, secret = self._now_ms(), _owner(caller), new_secret()
        until = now + (KEEP_SECRET_MS if keep_ms is None else keep_ms)
        async with self._database.writing() as connection:
            row = _found(await store.find(connection, webhook, owner, change=True))
            values = {"secret": secret, "changed": now, "old_secret": "", "old_until": 0}
            if until > now:
                values |= {"old_secret": row.secret, "old_until": until}
            await store.set_values(connection, webhook, values)
            return shown(_found(await store.find(connection, webhook, owner))) | {"secret": secret}

    async def test(self, caller: Caller, webhook: str) -> dict[str, Any]:
        """Have one tell an event of type `webhook.test`; its delivery."""
        now = self._now_ms()
        async with self._database.writing() as connection:
            row = _on(_found(await store.find(connection, webhook, _owner(caller), change=True)))
            if row.waiting >= MAX_WAITING:
                sentence = f"{MAX_WAITING} deliveries wait for its receiver already"
                raise ApiError(409, "WEBHOOK_FULL", sentence)
            made = row_of(webhook, TEST, webhook, "", now, id_of_event(TEST, secrets.token_hex(12)))
            await store.add_delivery(connection, made)
            await store.set_values(
                connection, webhook, {"waiting": row.waiting + 1, "due": due_of(row, now, at_once=True)}
            )
            found = await store.delivery(connection, webhook, made["id"])
        return shown_delivery(found, 0)

    async def redeliver(self, caller: Caller, webhook: str, delivery: str) -> dict[str, Any]:
        """Send one again, now. One that has ended gets all its tries again."""
        now = self._now_ms()
        async with self._database.writing() as connection:
            row = _on(_found(await store.find(connection, webhook, _owner(caller), change=True)))
            found = await store.delivery(connection, webhook, delivery)
            if found is None:
                raise _no_delivery()
            waits = found.state == "waiting"
            values: dict[str, Any] = {"due": now}
            if not waits:
                values |= {"state": "waiting", "began": now, "tries": 0, "ended": None}
            await store.set_delivery(connection, delivery, values)
            more = {"waiting": row.waiting + (not waits), "due": due_of(row, now, at_once=True)}
            await store.set_values(connection, webhook, more)
            found = await store.delivery(connection, webhook, delivery)
        return shown_delivery(found, 0)


# ---- what is told ----------


def shown(row: Any) -> dict[str, Any]:
    """A webhook as its owner sees it: never its secret."""
    on = row.off_since is None
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
        "enabled": on,
        "disabledAt": row.off_since,
        "disabledReason": row.off_why or None,
        "failing": failing if row.fails else None,
        "createdAt": row.created,
        "changedAt": row.changed,
        "deliveredAt": row.delivered,
        "oldSecretUntil": row.old_until or None,
        "waiting": row.waiting,
        "missed": row.missed,
    }


def shown_delivery(row: Any, not_before: int) -> dict[str, Any]:
    """A delivery. `not_before`: until when its webhook rests."""
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


def tries_of(row: Any) -> list[Any]:
    """The last attempts of a delivery, the oldest first."""
    return msgspec.json.decode(row.log) if row.log else []


def next_of(found: Any, limit: int) -> str | None:
    """The `after` that goes on, where there is more than a page."""
    return str(Cursor(found[limit - 1].created, found[limit - 1].id)) if len(found) > limit else None


# ---- what is refused ----------


def _owner(caller: Caller) -> Owner:
    """Whose webhooks a caller may have. Raises TokenForbids: what a token's holder begins must end with it."""
    if caller.claims is not None:
        raise TokenForbids("With a token there are no webhooks: use the key, in a back end")
    return caller.owner


def _checked_url(url: str, settings: WebhookSettings) -> str:
    """A URL in its one form. Raises ApiError(400), also where nothing could ever be delivered: the host says itself, as an
    address or as `localhost`, that it lies where requests may not go. Where other names lead is seen at each request."""
    if len(url) > MAX_URL_CHARS:
        raise bad_request(f"url may have {MAX_URL_CHARS} characters", "url")
    try:
        target = read_target(url)
    except BadTarget as error:
        raise bad_request(f"url: {error}", "url") from None
    if target.scheme == "http" and not settings.allow_http:
        sentence = "url must begin with https:// (an operator may allow http:// by webhooks.allow_http)"
        raise bad_request(sentence, "url")
    allowed = read_networks(settings.allow_private)
    refused = [why_refused(address, allowed) for address in addresses_said(target.host)]
    if refused and all(refused):
        sentence = f"url leads to {refused[0]}: an operator has to allow its network (webhooks.allow_private)"
        raise bad_request(sentence, "url")
    return target.url


def _checked_events(events: list[str]) -> str:
    """Events as they are stored. Raises ApiError(400)."""
    if not events:
        raise bad_request('events must name one at least, or be ["*"]', "events")
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


def _on(row: Any) -> Any:
    if row.off_since is not None:
        raise ApiError(409, "WEBHOOK_OFF", "The webhook is switched off: switch it on first (enabled: true)")
    return row


def _no_delivery() -> ApiError:
    sentence = "This webhook has no such delivery, or its time in the log is over"
    return ApiError(404, "DELIVERY_NOT_FOUND", sentence)
