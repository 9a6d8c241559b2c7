"""The queue of deliveries, in SQL: replicas claim webhooks, send their deliveries, and record the results.

A claim is the time (`due`) at which it ends, and a token (`claim`). If its replica dies, another one claims the webhook then and
sends again all deliveries without a result: each is sent at least once, with the same id each time.

A delivery that failed is retried with growing pauses. A webhook whose last attempts all failed backs off as a whole: then one
delivery at a time tests whether its receiver is available, however many wait.
"""

import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import bindparam, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.database.database import Database
from fairlane.gateway.database.tables import webhook_deliveries, webhooks
from fairlane.gateway.webhooks.delivery import Attempt

MAX_CANDIDATES = 500
"""Due webhooks of one claim, the longest due first."""
RETRY_FACTOR = 3
MAX_PAUSE_MS = 24 * 3_600_000
"""Between two attempts of a delivery."""
MAX_FAILURES = 3
"""Failed attempts in a row after which a webhook backs off."""
MAX_BACKOFF_MS = 3_600_000
DISABLE_DAYS = 5
"""A webhook without a success for this time is disabled."""
JITTER = 0.2
GONE = 410


class Policy(NamedTuple):
    """How failed deliveries are retried, ms."""

    retry_ms: int
    give_up_ms: int


class WebhookHealth(NamedTuple):
    """The recent failures of a webhook."""

    failures: int = 0
    """Failed attempts since the last success."""
    failing_since: int | None = None
    error: str = ""
    not_before: int = 0
    """When it is tried next, ms since 1970."""
    off_why: str = ""
    """Why it is disabled now; '': it is not."""

    @property
    def backs_off(self) -> bool:
        return self.failures >= MAX_FAILURES


class Webhook(NamedTuple):
    """A webhook that is claimed here."""

    id: str
    key_id: str
    user_name: str
    url: str
    secret: str
    old_secret: str
    old_until: int
    claim: str
    health: WebhookHealth

    def secrets(self, now_ms: int) -> list[str]:
        """Return the secrets that sign requests now."""
        return [self.secret, self.old_secret] if self.old_until > now_ms else [self.secret]


class Delivery(NamedTuple):
    """A delivery that is due: columns of its row."""

    id: str
    event_id: str
    event: str
    object_id: str
    user_name: str
    created: int
    began: int
    """When it was created, or sent again by hand."""
    attempts: int


def next_attempt(attempt: Attempt, attempts: int, began: int, policy: Policy, chance: float) -> int | None:
    """Return when a failed delivery is retried, ms since 1970; None: not any more. The last attempt is when its time is over.

    `attempts`: with this one; `chance`: from 0 to 1.
    """
    end = began + policy.give_up_ms
    if attempt.ended >= end:
        return None
    pause = min(policy.retry_ms * RETRY_FACTOR ** min(attempts - 1, 30), MAX_PAUSE_MS)
    pause = max(_spread(pause, chance), min(attempt.retry_after_ms, MAX_PAUSE_MS))
    return min(attempt.ended + pause, end)


def health_after(
    before: WebhookHealth, attempts: Sequence[Attempt], policy: Policy, chance: float
) -> WebhookHealth:
    """Return the health of a webhook after attempts that were made at the same time: one success is enough."""
    if not attempts:
        return before
    if any(attempt.succeeded for attempt in attempts):
        return WebhookHealth()
    last = attempts[-1]
    failures = before.failures + len(attempts)
    since = attempts[0].at if before.failing_since is None else before.failing_since
    if any(attempt.status == GONE for attempt in attempts):
        return WebhookHealth(failures, since, last.error, 0, "The receiver answered 410: it is gone.")
    if last.ended - since >= DISABLE_DAYS * 24 * 3_600_000:
        why = f"It failed for {DISABLE_DAYS} days: {last.error}"
        return WebhookHealth(failures, since, last.error, 0, why)
    pause = min(max(attempt.retry_after_ms for attempt in attempts), MAX_BACKOFF_MS)
    if failures >= MAX_FAILURES:
        backoff = min(policy.retry_ms * 2 ** min(failures - MAX_FAILURES, 30), MAX_BACKOFF_MS)
        pause = max(pause, _spread(backoff, chance))
    return WebhookHealth(failures, since, last.error, last.ended + pause if pause else 0)


def _spread(ms: int, chance: float) -> int:
    return max(round(ms * (1 - JITTER + 2 * JITTER * chance)), 1)


class DeliveryQueue:
    """Use cases of the sender. All raise DatabaseUnavailable."""

    def __init__(self, database: Database, chance: Callable[[], float]) -> None:
        self._database = database
        self._chance = chance

    async def claim(
        self, now_ms: int, until_ms: int, most: int, of_key: Counter[str], most_of_key: int
    ) -> list[Webhook]:
        """Claim up to `most` webhooks that are due until `until_ms`, first in, first out. `of_key`: claims of each key that this
        replica holds already, `most_of_key` at most."""
        columns, found = webhooks.c, Counter(of_key)
        full = [key for key, number in of_key.items() if number >= most_of_key]
        wanted = _CANDIDATES.where(columns.key_id.not_in(full)) if full else _CANDIDATES
        async with self._database.reading() as connection:
            rows = (await connection.execute(wanted, {"now": now_ms})).all()
        chosen: list[str] = []
        for id_, key_id in rows:
            if len(chosen) < most and found[key_id] < most_of_key:
                found[key_id] += 1
                chosen.append(id_)
        if not chosen:
            return []
        still_due = columns.id.in_(chosen), columns.due <= now_ms, columns.off_since.is_(None)
        values = {"claim": secrets.token_hex(8), "due": until_ms}
        async with self._database.writing() as connection:
            claimed = await connection.execute(
                update(webhooks).where(*still_due).values(values).returning(*_CLAIMED)
            )
            return [_webhook(row) for row in claimed]

    async def due(self, webhook: Webhook, now_ms: int, most: int) -> list[Delivery]:
        """Return the due deliveries of a claimed webhook, the longest due first."""
        columns = webhook_deliveries.c
        wanted = select(*(columns[name] for name in Delivery._fields))
        wanted = wanted.where(columns.webhook == webhook.id, columns.due <= now_ms)
        async with self._database.reading() as connection:
            rows = await connection.execute(wanted.order_by(columns.due).limit(most))
            return [Delivery(*row) for row in rows]

    async def record(
        self, webhook: Webhook, results: Sequence[tuple[Delivery, Attempt]], policy: Policy, now_ms: int
    ) -> tuple[WebhookHealth, int] | None:
        """Record the results of attempts, and end the claim. Return the webhook's health, and the number of deliveries that are
        not retried any more. None: the claim is over, or the webhook was deleted, changed or disabled."""
        columns, attempts = webhooks.c, [attempt for _, attempt in results]
        changes = [self._change(delivery, attempt, policy) for delivery, attempt in results]
        now = health_after(webhook.health, attempts, policy, self._chance())
        async with self._database.writing() as connection:
            # locked first: `enqueue` holds this lock while it adds deliveries, so `first_due` misses none
            locked = select(columns.claim).where(columns.id == webhook.id).with_for_update()
            claim = await connection.scalar(locked)
            if changes:
                await connection.execute(_RECORD, changes)
            if claim != webhook.claim:
                return None
            due = await first_due(connection, webhook.id)
            values: dict[str, Any] = {
                "claim": "",
                "fails": now.failures,
                "failing_since": now.failing_since,
                "error": now.error,
                "not_before": now.not_before,
                "due": None if due is None else max(due, now.not_before, now_ms),
            }
            if now.off_why:
                values |= {"off_since": now_ms, "off_why": now.off_why, "due": None}
            if delivered := [attempt.ended for attempt in attempts if attempt.succeeded]:
                values["delivered"] = max(delivered)
            await connection.execute(update(webhooks).where(columns.id == webhook.id).values(values))
        return now, sum(change["state"] == "failed" for change in changes)

    def _change(self, delivery: Delivery, attempt: Attempt, policy: Policy) -> dict[str, Any]:
        attempts, due = delivery.attempts + 1, None
        if not attempt.succeeded:
            due = next_attempt(attempt, attempts, delivery.began, policy, self._chance())
        return {
            "of": delivery.id,
            "state": "delivered" if attempt.succeeded else "failed" if due is None else "waiting",
            "attempts": attempts,
            "due": due,
            "ended": attempt.ended if due is None else None,
            "status": attempt.status,
            "error": attempt.error,
        }

    async def postpone(self, webhook: Webhook, until_ms: int, error: str) -> None:
        """End the claim of a webhook to which nothing was sent, and send nothing until `until_ms`."""
        columns = webhooks.c
        values = {"claim": "", "due": until_ms, "not_before": until_ms, "error": error}
        async with self._database.writing() as connection:
            mine = update(webhooks).where(columns.id == webhook.id, columns.claim == webhook.claim)
            await connection.execute(mine.values(values))


def _webhook(row: Any) -> Webhook:
    own = {name: getattr(row, name) for name in Webhook._fields[:-1]}
    return Webhook(**own, health=WebhookHealth(row.fails, row.failing_since, row.error, row.not_before))


async def first_due(connection: AsyncConnection, webhook: str) -> int | None:
    """Return when the first waiting delivery of a webhook is due; None: none waits."""
    columns = webhook_deliveries.c
    first = select(columns.due).where(columns.webhook == webhook, columns.due.is_not(None))
    due: int | None = await connection.scalar(first.order_by(columns.due).limit(1))
    return due


_CANDIDATES = (
    select(webhooks.c.id, webhooks.c.key_id)
    .where(webhooks.c.due <= bindparam("now"), webhooks.c.off_since.is_(None))
    .order_by(webhooks.c.due)
    .limit(MAX_CANDIDATES)
)
_CLAIMED = tuple(
    webhooks.c[name]
    for name in (
        *Webhook._fields[:-1],
        "fails",
        "failing_since",
        "error",
        "not_before",
    )  # the last are its health
)
_RECORD = update(webhook_deliveries).where(
    # a slow replica whose claim has ended does not overwrite the success of the next one
    *(webhook_deliveries.c.id == bindparam("of"), webhook_deliveries.c.state == "waiting")
)
