"""What webhooks owe, in SQL: replicas claim webhooks, send what they owe, and record the results.

A claim is the time (`due`) at which it ends, and a token (`claim`). If its replica dies, another one claims the webhook then and
sends again what has no result: each delivery is sent at least once, under the same id each time.
"""

import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import bindparam, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.database.database import Database
from fairlane.gateway.database.tables import webhook_deliveries, webhooks
from fairlane.gateway.webhooks.attempts import Attempt, Policy, WebhookHealth, health_after, logged, next_try
from fairlane.gateway.webhooks.store import first_due

WINDOW = 500
"""Webhooks that are due of which some are claimed, those that have waited longest."""
_DUE = (
    select(webhooks.c.id, webhooks.c.key_id)
    .where(webhooks.c.due <= bindparam("now"), webhooks.c.off_since.is_(None))
    .order_by(webhooks.c.due)
    .limit(WINDOW)
)


class Webhook(NamedTuple):
    """One that is claimed here, as those who send need it."""

    id: str
    key_id: str
    user_name: str
    url: str
    secret: str
    old_secret: str
    old_until: int
    health: WebhookHealth
    claim: str

    def secrets(self, now_ms: int) -> list[str]:
        """What requests are signed with now."""
        return [self.secret, self.old_secret] if self.old_until > now_ms else [self.secret]


class Delivery(NamedTuple):
    """One that is owed."""

    id: str
    event_id: str
    event: str
    object_id: str
    user_name: str
    created: int


class Written(NamedTuple):
    """The health of a webhook before and after results were recorded."""

    before: WebhookHealth
    now: WebhookHealth
    given_up: int
    """Deliveries that were given up."""


class DeliveryQueue:
    """All raise DatabaseUnavailable."""

    def __init__(self, database: Database, chance: Callable[[], float]) -> None:
        self._database = database
        self._chance = chance

    async def claim(
        self, now_ms: int, until_ms: int, most: int, of_key: Counter[str], most_of_key: int
    ) -> list[Webhook]:
        """Claim webhooks that are due until `until_ms`, at most `most`, first in, first out. `of_key`: how many of each key are
        claimed here already, of `most_of_key`."""
        columns, found = webhooks.c, Counter(of_key)
        full = [key for key, number in of_key.items() if number >= most_of_key]
        wanted = _DUE.where(columns.key_id.not_in(full)) if full else _DUE
        async with self._database.reading() as connection:
            rows = (await connection.execute(wanted, {"now": now_ms})).all()
        chosen: list[str] = []
        for id_, key_id in rows:
            if len(chosen) < most and found[key_id] < most_of_key:
                found[key_id] += 1
                chosen.append(id_)
        if not chosen:
            return []
        taking = update(webhooks).where(
            columns.id.in_(chosen), columns.due <= now_ms, columns.off_since.is_(None)
        )
        values = {"claim": secrets.token_hex(8), "due": until_ms}
        async with self._database.writing() as connection:
            claimed = await connection.execute(taking.values(values).returning(*_SENDING))
            return [_webhook(row) for row in claimed]

    async def due(self, webhook: Webhook, now_ms: int, most: int) -> list[Delivery]:
        """Return deliveries of a claimed webhook that are due, the oldest first."""
        columns = webhook_deliveries.c
        names = "id", "event_id", "event", "object_id", "user_name", "created"
        wanted = select(*(columns[name] for name in names)).where(
            columns.webhook == webhook.id, columns.due <= now_ms
        )
        async with self._database.reading() as connection:
            rows = await connection.execute(wanted.order_by(columns.due).limit(most))
            return [Delivery(*row) for row in rows]

    async def record(
        self, webhook: Webhook, results: Sequence[tuple[Delivery, Attempt]], policy: Policy, now_ms: int
    ) -> Written | None:
        """Record the results of attempts, and end the claim. None: the webhook is gone, off, or claimed by another replica."""
        columns = webhooks.c
        async with self._database.writing() as connection:
            held = select(*_SENDING, columns.waiting, columns.delivered, columns.off_since)
            held = held.where(columns.id == webhook.id).with_for_update()
            row = (await connection.execute(held)).one_or_none()
            if row is None:
                return None
            ended, taken, given_up = await self._write_results(connection, results, policy)
            before = _webhook(row).health
            now = health_after(before, [attempt for _, attempt in results], policy, self._chance())
            mine = row.claim == webhook.claim and row.off_since is None
            values: dict[str, Any] = {
                "waiting": max(row.waiting - ended, 0),
                "delivered": taken or row.delivered,
            }
            if mine:
                due = await first_due(connection, webhook.id)
                values |= {
                    "fails": now.fails,
                    "failing_since": now.failing_since,
                    "error": now.error,
                    "not_before": now.not_before,
                    "claim": "",
                    "due": None if due is None else max(due, now.not_before, now_ms),
                }
                if now.off_why:
                    values |= {"off_since": now_ms, "off_why": now.off_why, "due": None}
            await connection.execute(update(webhooks).where(columns.id == webhook.id).values(values))
        return Written(before, now, given_up) if mine else None

    async def _write_results(
        self, connection: AsyncConnection, results: Sequence[tuple[Delivery, Attempt]], policy: Policy
    ) -> tuple[int, int, int]:
        """How many deliveries ended, when one was taken last (0: none was), and how many were given up. In two statements:
        whoever announces ends waits for this transaction."""
        columns = webhook_deliveries.c
        which = select(columns.id, columns.tries, columns.attempts, columns.began, columns.log)
        which = which.where(
            columns.id.in_([delivery.id for delivery, _ in results]), columns.state == "waiting"
        )
        rows = {row.id: row for row in await connection.execute(which)}
        changes: list[dict[str, Any]] = []
        ended = taken = given_up = 0
        for delivery, attempt in results:
            row = rows.get(delivery.id)
            if row is None:
                continue  # whoever had claimed it before was slow, and it was taken after all
            due = (
                None if attempt.taken else next_try(attempt, row.tries + 1, row.began, policy, self._chance())
            )
            state = "delivered" if attempt.taken else "waiting" if due is not None else "failed"
            values = {
                "of": delivery.id,
                "state": state,
                "tries": row.tries + 1,
                "attempts": row.attempts + 1,
                "due": due,
                "ended": None if state == "waiting" else attempt.over,
                "status": attempt.status,
                "error": attempt.error,
                "log": logged(row.log, attempt),
            }
            changes.append(values)
            ended += state != "waiting"
            given_up += state == "failed"
            taken = max(taken, attempt.over) if attempt.taken else taken
        if changes:
            changing = update(webhook_deliveries).where(columns.id == bindparam("of"))
            await connection.execute(changing, changes)
        return ended, taken, given_up

    async def put_off(self, webhook: Webhook, until_ms: int, why: str = "") -> None:
        """End the claim of a webhook to which nothing was sent, until `until_ms`; `why` is shown as its error."""
        columns, values = webhooks.c, {"claim": "", "due": until_ms}
        if why:
            values |= {"not_before": until_ms, "error": why}
        async with self._database.writing() as connection:
            mine = update(webhooks).where(columns.id == webhook.id, columns.claim == webhook.claim)
            await connection.execute(mine.values(values))


_SENDING = tuple(
    webhooks.c[name]
    for name in (
        *("id", "key_id", "user_name", "url", "secret", "old_secret", "old_until"),
        *("fails", "failing_since", "error", "not_before", "claim"),
    )
)


def _webhook(row: Any) -> Webhook:
    health = WebhookHealth(row.fails, row.failing_since, row.error, row.not_before)
    whose = row.id, row.key_id, row.user_name, row.url
    return Webhook(*whose, row.secret, row.old_secret, row.old_until, health, row.claim)
