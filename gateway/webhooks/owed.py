"""What webhooks owe, in SQL: replicas claim one webhook at a time, send what it owes, and write what came of it.

A claim is a time (`due`) at which it is over, and a token that tells whose it is (`claim`). Whoever dies with a claim leaves
all that was not written down as taken to whoever claims next: so each delivery is sent at least once, and under the same id
each time.
"""

import secrets
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import bindparam, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.database.database import Database
from fairlane.gateway.database.tables import webhook_deliveries, webhooks
from fairlane.gateway.webhooks.attempts import (
    LONGEST_REST_MS,
    Attempt,
    Policy,
    Standing,
    logged,
    next_try,
    stand,
)
from fairlane.gateway.webhooks.store import first_due

WINDOW = 500
"""Webhooks that are looked at for a turn, those that have waited longest."""
GIVEN_UP_AT_ONCE = 500
OVERDUE_MS = 2 * LONGEST_REST_MS
"""So long behind its time a delivery is given up untried: its webhook rested, and could not try it."""
_DUE = (
    select(webhooks.c.id, webhooks.c.key_id, webhooks.c.user_name, webhooks.c.fails, webhooks.c.delivered)
    .where(webhooks.c.due <= bindparam("now"), webhooks.c.off_since.is_(None))
    .order_by(webhooks.c.due)
    .limit(WINDOW)
)
"""Those that have something to be done."""
_NOT_TRIED = "It was given up: the receiver had not taken anything for so long."


class Webhook(NamedTuple):
    """One that is claimed here, as those who send need it."""

    id: str
    key_id: str
    user_name: str
    url: str
    secret: str
    old_secret: str
    old_until: int
    standing: Standing
    claim: str

    def secrets(self, now_ms: int) -> list[str]:
        """What requests are signed with now."""
        return [self.secret, self.old_secret] if self.old_until > now_ms else [self.secret]


class Candidate(NamedTuple):
    """One that has something to be done."""

    id: str
    key_id: str
    user_name: str
    doubtful: bool
    """Its last attempt failed, or none was ever taken: its receiver may well let a request wait for its deadline."""


class Delivery(NamedTuple):
    """One that is owed."""

    id: str
    event_id: str
    event: str
    object_id: str
    user_name: str
    created: int


class Written(NamedTuple):
    """What became of a webhook when results were written."""

    webhook: Webhook
    """As it is now: its owner may have changed it meanwhile."""
    before: Standing
    now: Standing
    given_up: int
    """Deliveries that were."""
    next: list[Delivery]
    """What is to be sent next; [] where the claim has ended."""


class Owed:
    """All raise DatabaseUnavailable."""

    def __init__(self, database: Database, chance: Callable[[], float]) -> None:
        self._database = database
        self._chance = chance

    async def claim(
        self,
        now_ms: int,
        until_ms: int,
        choose: Callable[[Sequence[Candidate]], Collection[str]],
        *,
        without_keys: Collection[str] = (),
        with_doubtful: bool = True,
    ) -> list[Webhook]:
        """Claim until then some of those that have something to be done, as `choose` says. One that another replica has claimed
        is nobody else's until its time is over."""
        columns, wanted = webhooks.c, _DUE
        # (an `or_` that is negated would leave circles of each look for the collector)
        if without_keys:
            wanted = wanted.where(columns.key_id.not_in(without_keys))
        if not with_doubtful:
            wanted = wanted.where(columns.fails == 0, columns.delivered.is_not(None))
        async with self._database.reading() as connection:
            rows = (await connection.execute(wanted, {"now": now_ms})).all()
        chosen = choose(
            [
                Candidate(id_, key, user, fails > 0 or delivered is None)
                for id_, key, user, fails, delivered in rows
            ]
        )
        if not chosen:
            return []
        token = secrets.token_hex(8)
        taking = update(webhooks).where(
            columns.id.in_(chosen), columns.due <= now_ms, columns.off_since.is_(None)
        )
        async with self._database.writing() as connection:
            claimed = await connection.execute(taking.values(claim=token, due=until_ms).returning(*_SENDING))
            return [_webhook(row) for row in claimed]

    async def first(self, webhook: Webhook, now_ms: int, most: int) -> list[Delivery]:
        """What one that was claimed is to send first."""
        async with self._database.reading() as connection:
            return await _due(connection, webhook.id, now_ms, most)

    async def write(
        self,
        webhook: Webhook,
        results: Sequence[tuple[Delivery, Attempt]],
        policy: Policy,
        now_ms: int,
        until_ms: int,
        most: Callable[[Standing], int],
    ) -> Written | None:
        """Write what attempts came to, and go on: what is sent next is claimed until `until_ms`; where nothing is, or `most`
        (of the webhook's standing now) is 0, the claim ends. None: the webhook is gone, or another replica's by now."""
        columns = webhooks.c
        async with self._database.writing() as connection:
            held = select(*_SENDING, columns.waiting, columns.delivered, columns.off_since)
            held = held.where(columns.id == webhook.id).with_for_update()
            row = (await connection.execute(held)).one_or_none()
            if row is None:
                return None
            ended, taken, given_up = await self._write_results(connection, results, policy)
            fresh = _webhook(row)
            before = fresh.standing
            now = stand(before, [attempt for _, attempt in results], policy, self._chance())
            values: dict[str, Any] = {
                "waiting": max(row.waiting - ended, 0),
                "delivered": taken or row.delivered,
            }
            if row.claim != webhook.claim or row.off_since is not None:
                await connection.execute(update(webhooks).where(columns.id == webhook.id).values(values))
                return None
            if now.rests:
                overdue = await _give_up(
                    connection, webhook.id, now_ms - policy.give_up_ms - OVERDUE_MS, now_ms
                )
                values["waiting"] = max(values["waiting"] - overdue, 0)
                given_up += overdue
            values |= {
                "fails": now.fails,
                "failing_since": now.failing_since,
                "error": now.error,
                "not_before": now.not_before,
            }
            more: list[Delivery] = []
            if now.off_why:
                values |= {"off_since": now_ms, "off_why": now.off_why, "claim": "", "due": None}
            else:
                number = most(now) if now.not_before <= now_ms else 0
                more = await _due(connection, webhook.id, now_ms, number) if number else []
                if more:
                    values["due"] = until_ms
                else:
                    values |= {
                        "claim": "",
                        "due": await _next(connection, webhook.id, now.not_before, now_ms),
                    }
            await connection.execute(update(webhooks).where(columns.id == webhook.id).values(values))
        return Written(fresh._replace(standing=now), before, now, given_up, more)

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

    async def put_off(self, webhook: Webhook, until_ms: int, why: str) -> None:
        """End the claim of one to which nothing can be sent; it is looked at again then."""
        columns = webhooks.c
        async with self._database.writing() as connection:
            later = update(webhooks).where(columns.id == webhook.id, columns.claim == webhook.claim)
            await connection.execute(later.values(claim="", due=until_ms, not_before=until_ms, error=why))

    async def release(self, webhook: Webhook, now_ms: int) -> None:
        """End a claim with which nothing was done."""
        columns = webhooks.c
        async with self._database.writing() as connection:
            mine = update(webhooks).where(columns.id == webhook.id, columns.claim == webhook.claim)
            await connection.execute(mine.values(claim="", due=now_ms))


_SENDING = tuple(
    webhooks.c[name]
    for name in (
        *("id", "key_id", "user_name", "url", "secret", "old_secret", "old_until"),
        *("fails", "failing_since", "error", "not_before", "claim"),
    )
)


def _webhook(row: Any) -> Webhook:
    standing = Standing(row.fails, row.failing_since, row.error, row.not_before)
    whose = row.id, row.key_id, row.user_name, row.url
    return Webhook(*whose, row.secret, row.old_secret, row.old_until, standing, row.claim)


async def _due(connection: AsyncConnection, webhook: str, now_ms: int, most: int) -> list[Delivery]:
    columns = webhook_deliveries.c
    wanted = select(
        columns.id, columns.event_id, columns.event, columns.object_id, columns.user_name, columns.created
    ).where(columns.webhook == webhook, columns.due <= now_ms)
    rows = await connection.execute(wanted.order_by(columns.due).limit(most))
    return [Delivery(*row) for row in rows]


async def _next(connection: AsyncConnection, webhook: str, not_before: int, now_ms: int) -> int | None:
    """When there is something to do for a webhook next. What is due already waits behind others."""
    due = await first_due(connection, webhook)
    return None if due is None else max(due, not_before, now_ms)


async def _give_up(connection: AsyncConnection, webhook: str, before_ms: int, now_ms: int) -> int:
    """Give up what began before then and was never tried as its webhook rested; how many."""
    columns = webhook_deliveries.c
    late = select(columns.id).where(
        columns.webhook == webhook, columns.due <= now_ms, columns.began < before_ms
    )
    ended = {"state": "failed", "ended": now_ms, "due": None, "error": _NOT_TRIED}
    giving = update(webhook_deliveries).where(columns.id.in_(late.limit(GIVEN_UP_AT_ONCE)))
    return (await connection.execute(giving.values(ended))).rowcount
