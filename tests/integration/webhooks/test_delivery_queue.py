"""The delivery queue in SQL: filled in the transaction of the end, claimed by one replica at a time, and no delivery is lost."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import create_engine, select, update
from tests.support.receivers import LOCAL
from tests.support.records import expire

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.tables import metadata, webhook_deliveries, webhooks
from fairlane.gateway.records.erasure import PARTS
from fairlane.gateway.usage.reports import ReportSlots
from fairlane.gateway.usage.usage import DAY_MS
from fairlane.gateway.webhooks.delivery import Attempt
from fairlane.gateway.webhooks.delivery_queue import _CANDIDATES, DeliveryQueue, Health, Policy, Webhook
from fairlane.gateway.webhooks.enqueue import End, enqueue
from fairlane.gateway.webhooks.settings import WebhookSettings
from fairlane.gateway.webhooks.webhooks import Webhooks

pytestmark = pytest.mark.anyio

HOUR_MS = 3_600_000
POLICY = Policy(5000, 72 * HOUR_MS)
ANN, BOB = Owner("site", "site/ann"), Owner("site", "site/bob")
NOW = 1_800_000_000_000


def caller(owner: Owner) -> Caller:
    return Caller(owner.user, "free", owner.key_id, delegating=True)


def use_cases(database: Database, now: int = NOW) -> Webhooks:
    return Webhooks(database, ReportSlots(database), lambda: WebhookSettings(**LOCAL), lambda: now)


async def hook(
    database: Database, owner: Owner = ANN, events: Sequence[str] = ("*",), *, every: bool = False
) -> str:
    url = "http://127.0.0.1:9/hook"
    made = await use_cases(database).create(caller(owner), url, [*events], "", every_user=every)
    return str(made["id"])


async def rows(database: Database, table: Any = webhook_deliveries) -> list[Any]:
    async with database.reading() as connection:
        return [*(await connection.execute(select(table).order_by(table.c.created))).all()]


async def add(database: Database, *ends: End) -> int:
    async with database.writing() as connection:
        return await enqueue(connection, ends)


def end(object_id: str = "t1", owner: Owner = ANN, event: str = "task.completed", at: int = NOW) -> End:
    return End(owner, event, object_id, at)


def queue(database: Database) -> DeliveryQueue:
    return DeliveryQueue(database, lambda: 0.5)


async def claimed(
    database: Database, now: int = NOW, until: int | None = None, most: int = 1000
) -> list[Webhook]:
    return await queue(database).claim(now, until or now + 60_000, most, Counter(), 1000)


async def record(
    database: Database, webhook: Webhook, status: int | None, now: int = NOW, most: int = 4
) -> tuple[Health, int] | None:
    """Record this result for all due deliveries."""
    due = await queue(database).due(webhook, now, most)
    error = "" if status == 200 else "It did not work."
    results = [(one, Attempt(now, 0, status, error)) for one in due]
    return await queue(database).record(webhook, results, POLICY, now)


async def test_deliveries_are_added_with_the_end_or_not_at_all(database: Database) -> None:
    webhook = await hook(database)

    async def fails() -> None:
        async with database.writing() as connection:
            assert await enqueue(connection, [end()]) == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fails()
    assert await rows(database) == []
    assert await add(database, end()) == 1
    assert await add(database, end()) == 0, "the same end once more"
    [row] = await rows(database)
    assert (row.webhook, row.state, row.due, row.object_id) == (webhook, "waiting", NOW, "t1")
    assert await claimed(database, NOW - 1) == []


async def test_only_webhooks_of_the_owner_get_an_end_and_only_their_events(database: Database) -> None:
    other = Owner("acme", "acme")
    mine = await hook(database, ANN)
    failures = await hook(database, ANN, ["task.failed", "batch.failed"])
    all_users = await hook(database, Owner("site", "site"), every=True)
    await hook(database, BOB)
    others = await hook(database, other)
    await add(database, end("t1"), end("t2", event="task.failed"), end("t3", other))
    assert {(row.webhook, row.object_id) for row in await rows(database)} == {
        (mine, "t1"),
        (mine, "t2"),
        (failures, "t2"),
        (all_users, "t1"),
        (all_users, "t2"),
        (others, "t3"),
    }


def test_the_search_for_due_deliveries_reads_those_that_wait_alone() -> None:
    engine = create_engine("sqlite://")
    metadata.create_all(engine)
    search = str(_CANDIDATES.compile(engine, compile_kwargs={"render_postcompile": True}))
    with engine.connect() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {search}", (NOW, NOW, NOW, 500, 0)).all()
    scans = {step.detail for step in plan if step.detail.startswith("SCAN webhook")}
    assert scans == {"SCAN webhook_deliveries USING COVERING INDEX ix_webhook_deliveries_webhook_due"}
    [index] = [one for one in webhook_deliveries.indexes if one.name == "ix_webhook_deliveries_webhook_due"]
    assert str(index.dialect_options["sqlite"]["where"]) == "due IS NOT NULL"


async def test_a_webhook_is_claimed_by_one_replica_in_order_within_the_limit_of_its_key(
    database: Database,
) -> None:
    for number in range(4):
        owner = Owner("k", f"k/{number}")
        await hook(database, owner)
        await add(database, end(f"t{number}", owner, at=NOW + number))
    await hook(database, ANN)
    await add(database, end("late", at=NOW + 10))
    first = await queue(database).claim(NOW + 20, NOW + 60_000, 10, Counter(k=1), 3)
    assert [webhook.user_name for webhook in first] == ["k/0", "k/1", ANN.user]
    rest = await asyncio.gather(*(claimed(database, NOW + 20, most=1) for _ in range(6)))
    users = [webhook.user_name for part in rest for webhook in part]
    assert len(users) == len(set(users))
    users += [webhook.user_name for webhook in await claimed(database, NOW + 20)]
    assert sorted(users) == ["k/2", "k/3"]


async def test_a_claim_ends_at_its_time_and_a_late_result_counts_for_the_delivery_alone(
    database: Database,
) -> None:
    await hook(database)
    await add(database, end())
    [dead] = await claimed(database, until=NOW + 60_000)
    assert await claimed(database, NOW + 59_999) == []
    [other] = await claimed(database, NOW + 60_000)
    assert await record(database, dead, 200, NOW + 60_001) is None
    [row] = await rows(database)
    assert row.state == "delivered"
    [one] = await rows(database, webhooks)
    assert one.claimed == other.claimed
    assert await record(database, other, 200, NOW + 60_002) is not None
    [one] = await rows(database, webhooks)
    assert one.claimed == 0


async def test_an_end_during_a_claim_is_due_when_the_claim_ends(database: Database) -> None:
    await hook(database)
    await add(database, end("t1"))
    [webhook] = await claimed(database)
    due = await queue(database).due(webhook, NOW, 4)
    await add(database, end("t2"))
    assert await claimed(database, NOW + 5) == [], "the claim holds"
    results = [(delivery, Attempt(NOW, 0, 200, "")) for delivery in due]
    assert await queue(database).record(webhook, results, POLICY, NOW + 5) is not None
    [again] = await claimed(database, NOW + 6)
    assert [one.object_id for one in await queue(database).due(again, NOW + 6, 4)] == ["t2"]
    await record(database, again, 200, NOW + 6)
    [one] = await rows(database, webhooks)
    assert (one.claimed, one.delivered) == (0, NOW + 6)


async def test_ends_and_claims_at_the_same_time_leave_no_delivery_behind(database: Database) -> None:
    await hook(database)

    async def sends() -> None:
        while True:
            for webhook in await claimed(database):
                await record(database, webhook, 200)
            await asyncio.sleep(0)

    sender = asyncio.create_task(sends())
    assert sum([await add(database, end(f"t{number}")) for number in range(25)]) == 25
    sender.cancel()
    await asyncio.gather(sender, return_exceptions=True)
    async with database.writing() as connection:  # as if the cancelled one had died
        await connection.execute(update(webhooks).values(claimed=0))
    for _ in range(30):
        for webhook in await claimed(database):
            await record(database, webhook, 200, most=100)
    assert [row.state for row in await rows(database)] == ["delivered"] * 25


async def test_a_failed_delivery_is_retried_and_given_up_at_its_time(database: Database) -> None:
    webhook = await hook(database)
    await add(database, end())
    now, dues = NOW, []
    for _ in range(100):
        found = await claimed(database, now)
        if not found:
            [row] = await rows(database)
            if row.state == "failed":
                break
            [one] = await rows(database, webhooks)
            now = max(row.due, one.not_before)
            continue
        dues.append(now - NOW)
        await record(database, found[0], 500, now)
    assert dues[:4] == [0, 5000, 20_000, 65_000]
    assert row.attempts == len(dues)
    assert POLICY.give_up_ms <= dues[-1] <= POLICY.give_up_ms + HOUR_MS
    assert (row.due, row.ended, row.status) == (None, now, 500)
    [one] = await rows(database, webhooks)
    assert (one.off_since, one.fails) == (None, len(dues))
    assert (await use_cases(database).show(caller(ANN), webhook))["waiting"] == 0


async def test_a_webhook_that_fails_for_days_is_disabled_and_can_be_enabled(database: Database) -> None:
    webhook = await hook(database)
    await add(database, end("t1"))
    [first] = await claimed(database)
    await record(database, first, None)
    later = NOW + 121 * HOUR_MS
    await add(database, end("t2", at=later))
    [again] = await claimed(database, later)
    found = await record(database, again, 500, later)
    assert found is not None
    use = use_cases(database, later + 1)
    shown = await use.show(caller(ANN), webhook)
    assert (shown["enabled"], shown["disabledAt"]) == (False, later)
    assert shown["disabledReason"] == found[0].off_why == "It failed for 5 days: It did not work."
    assert await claimed(database, later + 100 * HOUR_MS) == []
    assert await add(database, end("t3")) == 0
    on = await use.change(caller(ANN), webhook, {"enabled": True})
    assert (on["enabled"], on["failing"], on["disabledReason"], on["waiting"]) == (True, None, None, 1)
    [begun] = await claimed(database, later + 5001)
    assert begun.health == Health()


async def test_old_deliveries_and_those_of_a_removed_webhook_are_deleted(database: Database) -> None:
    keep, gone = await hook(database), await hook(database)
    await add(database, end("old", at=NOW - 15 * DAY_MS), end("new"))
    use = use_cases(database)
    assert await use.remove(caller(ANN), gone) == {"id": gone, "removed": True}
    [left] = (await use.page(caller(ANN)))["webhooks"]
    assert (left["id"], left["waiting"]) == (keep, 2)
    assert [webhook.id for webhook in await claimed(database)] == [keep]
    for now, objects in ((NOW, {"new"}), (NOW + 15 * DAY_MS, set())):
        await expire(database, now)
        assert {row.object_id for row in await rows(database)} == objects


async def test_an_erased_user_has_no_webhooks_and_is_in_no_log(database: Database) -> None:
    await hook(database, ANN)
    all_users = await hook(database, Owner("site", "site"), every=True)
    await add(database, end("t1"), end("t2", BOB))
    async with database.writing() as connection:
        while await PARTS["webhooks"](connection, ANN.user, NOW):
            pass
    assert [(row.webhook, row.object_id) for row in await rows(database)] == [(all_users, "t2")]
    assert [row.id for row in await rows(database, webhooks)] == [all_users]
