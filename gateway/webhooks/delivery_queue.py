"""The queue of deliveries, in SQL: replicas claim webhooks, send their deliveries, and record the results.

A claim is the time at which it ends (`claimed`). If its replica dies, another one claims the webhook then and sends again all
deliveries without a result: each is sent at least once, with the same id each time.

A delivery that failed is retried with growing pauses. A webhook whose last attempts all failed backs off as a whole: then one
delivery at a time tests whether its receiver is available, however many wait.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import BindParameter, Update, bindparam, func, select, update

from fairlane.gateway.database.database import Database
from fairlane.gateway.database.tables import DeliveryRow, WebhookRow, webhook_deliveries, webhooks
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


class Health(NamedTuple):
    """The recent failures of a webhook: columns of its row."""

    fails: int = 0
    """Failed attempts since the last success."""
    failing_since: int | None = None
    error: str = ""
    not_before: int = 0
    """When it is tried next, ms since 1970."""
    off_why: str = ""
    """Why it is disabled now; '': it is not."""

    @property
    def backs_off(self) -> bool:
        return self.fails >= MAX_FAILURES


class Webhook(WebhookRow):
    """A webhook that is claimed here."""

    @property
    def health(self) -> Health:
        return Health(self.fails, self.failing_since, self.error, self.not_before)

    def secrets(self, now_ms: int) -> list[str]:
        """Return the secrets that sign requests now."""
        return [self.secret, self.old_secret] if self.old_until > now_ms else [self.secret]


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


def health_after(before: Health, attempts: Sequence[Attempt], policy: Policy, chance: float) -> Health:
    """Return the health of a webhook after attempts that were made at the same time: one success is enough."""
    if not attempts:
        return before
    if any(attempt.succeeded for attempt in attempts):
        return Health()
    last, fails = attempts[-1], before.fails + len(attempts)
    since = attempts[0].at if before.failing_since is None else before.failing_since
    pause, off_why = min(max(attempt.retry_after_ms for attempt in attempts), MAX_BACKOFF_MS), ""
    if any(attempt.status == GONE for attempt in attempts):
        off_why = "The receiver answered 410: it is gone."
    elif last.ended - since >= DISABLE_DAYS * 24 * 3_600_000:
        off_why = f"It failed for {DISABLE_DAYS} days: {last.error}"
    elif fails >= MAX_FAILURES:
        backoff = min(policy.retry_ms * 2 ** min(fails - MAX_FAILURES, 30), MAX_BACKOFF_MS)
        pause = max(pause, _spread(backoff, chance))
    return Health(fails, since, last.error, last.ended + pause if pause else 0, off_why)


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
        """Claim up to `most` webhooks with due deliveries until `until_ms`, first in, first out. `of_key`: claims of each key
        that this replica holds already, `most_of_key` at most."""
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
        still_free = columns.id.in_(chosen), columns.claimed <= now_ms, columns.off_since.is_(None)
        claim = update(webhooks).where(*still_free).values(claimed=until_ms).returning(webhooks)
        async with self._database.writing() as connection:
            return [Webhook(*row) for row in await connection.execute(claim)]

    async def due(self, webhook: Webhook, now_ms: int, most: int) -> list[DeliveryRow]:
        """Return the due deliveries of a claimed webhook, the longest due first."""
        columns = webhook_deliveries.c
        wanted = select(webhook_deliveries).where(columns.webhook == webhook.id, columns.due <= now_ms)
        async with self._database.reading() as connection:
            rows = await connection.execute(wanted.order_by(columns.due).limit(most))
            return [DeliveryRow(*row) for row in rows]

    async def record(
        self, webhook: Webhook, results: Sequence[tuple[DeliveryRow, Attempt]], policy: Policy, now_ms: int
    ) -> tuple[Health, int] | None:
        """Record the results of attempts, and end the claim. Return the webhook's health, and the number of deliveries that are
        not retried any more. None: the claim is over, or the webhook was deleted, changed or disabled."""
        attempts = [attempt for _, attempt in results]
        changes = [self._change(delivery, attempt, policy) for delivery, attempt in results]
        now = health_after(webhook.health, attempts, policy, self._chance())
        values: dict[str, Any] = {"claimed": 0, **now._asdict()}
        if now.off_why:
            values["off_since"] = now_ms
        if delivered := [attempt.ended for attempt in attempts if attempt.succeeded]:
            values["delivered"] = max(delivered)
        async with self._database.writing() as connection:
            if changes:
                await connection.execute(_RECORD, changes)
            held = (await connection.execute(_claimed(webhook).values(values))).rowcount > 0
        return (now, sum(change["state"] == "failed" for change in changes)) if held else None

    def _change(self, delivery: DeliveryRow, attempt: Attempt, policy: Policy) -> dict[str, Any]:
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
        async with self._database.writing() as connection:
            await connection.execute(_claimed(webhook).values(claimed=0, not_before=until_ms, error=error))


def _claimed(webhook: Webhook) -> Update:
    return update(webhooks).where(webhooks.c.id == webhook.id, webhooks.c.claimed == webhook.claimed)


_now: BindParameter[int] = bindparam("now")
_due = (
    select(webhook_deliveries.c.webhook, func.min(webhook_deliveries.c.due).label("due"))
    .where(webhook_deliveries.c.due <= _now)
    .group_by(webhook_deliveries.c.webhook)
    .subquery()
)
_CANDIDATES = (
    select(webhooks.c.id, webhooks.c.key_id)
    .join(_due, _due.c.webhook == webhooks.c.id)
    .where(webhooks.c.off_since.is_(None), webhooks.c.not_before <= _now, webhooks.c.claimed <= _now)
    .order_by(_due.c.due)
    .limit(MAX_CANDIDATES)
)
_RECORD = update(webhook_deliveries).where(
    # a slow replica whose claim has ended does not overwrite the success of the next one
    *(webhook_deliveries.c.id == bindparam("of"), webhook_deliveries.c.state == "waiting")
)
