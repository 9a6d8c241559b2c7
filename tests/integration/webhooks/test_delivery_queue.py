"""What webhooks owe, in SQL: written with what ended, claimed by one replica at a time, and lost by nobody's death."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import func, select, update
from tests.support.receivers import LOCAL

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.tables import webhook_deliveries, webhooks
from fairlane.gateway.settings import WebhookSettings
from fairlane.gateway.webhooks import enqueue as enqueue_module
from fairlane.gateway.webhooks import store
from fairlane.gateway.webhooks.attempts import Attempt, Policy, WebhookHealth
from fairlane.gateway.webhooks.delivery_queue import DeliveryQueue, Webhook, Written
from fairlane.gateway.webhooks.enqueue import End, enqueue, enqueue_all
from fairlane.gateway.webhooks.webhooks import Webhooks

pytestmark = pytest.mark.anyio

HOUR_MS = 3_600_000
POLICY = Policy(5000, 72 * HOUR_MS, 120 * HOUR_MS)
ANN = Owner("site", "site/ann")
NOW = 1_800_000_000_000


def caller(owner: Owner) -> Caller:
    return Caller(owner.user, "free", owner.key_id, delegating=True)


def using(database: Database, now: int = NOW) -> Webhooks:
    return Webhooks(database, lambda _: database.reading(), lambda: WebhookSettings(**LOCAL), lambda: now)


async def hook(
    database: Database, owner: Owner = ANN, events: Sequence[str] = ("*",), *, every: bool = False
) -> str:
    made = using(database)
    url = "http://127.0.0.1:9/hook"
    told = await made.create(caller(owner), url, [*events], "", every_user=every)
    return str(told["id"])


async def rows(database: Database, table: Any = webhook_deliveries) -> list[Any]:
    async with database.reading() as connection:
        return [*(await connection.execute(select(table).order_by(table.c.created))).all()]


async def tell(database: Database, *ends: End) -> int:
    async with database.writing() as connection:
        return await enqueue_all(connection, ends)


def end(object_id: str = "t1", owner: Owner = ANN, event: str = "task.completed", at: int = NOW) -> End:
    return End(owner, event, object_id, at)


def queue(database: Database) -> DeliveryQueue:
    return DeliveryQueue(database, lambda: 0.5)


async def claimed(
    database: Database, now: int = NOW, until: int | None = None, most: int = 1000
) -> list[Webhook]:
    return await queue(database).claim(now, until or now + 60_000, most, Counter(), 1000)


async def written(
    database: Database, webhook: Webhook, status: int | None, now: int = NOW, most: int = 4
) -> Written | None:
    """What all that is due comes to, when it is answered like this."""
    due = await queue(database).due(webhook, now, most)
    error = "" if status == 200 else "It did not work."
    results = [(one, Attempt(now, 0, status, error)) for one in due]
    return await queue(database).record(webhook, results, POLICY, now)


async def test_ends_are_written_with_what_ended_or_not_at_all(database: Database) -> None:
    webhook = await hook(database)

    async def fails() -> None:
        async with database.writing() as connection:
            assert await enqueue(connection, ANN, "task.completed", "t1", NOW) == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fails()
    assert await rows(database) == []
    assert await tell(database, end()) == 1
    assert await tell(database, end()) == 0, "the same end once more"
    [row] = await rows(database)
    assert (row.webhook, row.state, row.due, row.object_id) == (webhook, "waiting", NOW, "t1")
    [one] = await rows(database, webhooks)
    assert (one.waiting, one.due) == (1, NOW)


async def test_only_webhooks_of_the_owner_hear_of_an_end_and_only_of_their_events(database: Database) -> None:
    bob, other = Owner("site", "site/bob"), Owner("acme", "acme")
    mine = await hook(database, ANN)
    failures = await hook(database, ANN, ["task.failed", "batch.failed"])
    all_users = await hook(database, Owner("site", "site"), every=True)
    await hook(database, bob)
    others = await hook(database, other)
    await tell(database, end("t1"), end("t2", event="task.failed"), end("t3", other))
    told = {(row.webhook, row.object_id) for row in await rows(database)}
    assert told == {
        (mine, "t1"),
        (mine, "t2"),
        (failures, "t2"),
        (all_users, "t1"),
        (all_users, "t2"),
        (others, "t3"),
    }


async def test_one_that_owes_too_much_tells_how_many_ends_it_missed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueue_module, "MAX_WAITING", 3)
    await hook(database)
    assert await tell(database, *(end(f"t{number}") for number in range(5))) == 3
    assert await tell(database, end("t9")) == 0
    [one] = await rows(database, webhooks)
    assert (one.waiting, one.missed) == (3, 3)


async def test_two_replicas_never_have_the_same_webhook(database: Database) -> None:
    for number in range(20):
        await hook(database, Owner("k", f"k/{number}"))
        await tell(database, end(f"t{number}", Owner("k", f"k/{number}")))
    found = await asyncio.gather(*(claimed(database, most=5) for _ in range(6)))
    taken = [webhook.id for part in found for webhook in part]
    assert len(taken) == len(set(taken))
    taken += [webhook.id for webhook in await claimed(database)]
    assert len(taken) == len(set(taken)) == 20
    assert await claimed(database) == []


async def test_a_key_has_a_limit_and_the_first_in_is_the_first_out(database: Database) -> None:
    for number in range(4):
        owner = Owner("k", f"k/{number}")
        await hook(database, owner)
        await tell(database, end(f"t{number}", owner, at=NOW + number))
    await hook(database, ANN)
    await tell(database, end("late", at=NOW + 10))
    found = await queue(database).claim(NOW + 20, NOW + 60_000, 10, Counter(k=1), 3)
    assert [webhook.user_name for webhook in found] == ["k/0", "k/1", ANN.user]


async def test_a_claim_that_its_replica_left_is_over_at_its_time_and_then_counts_no_more(
    database: Database,
) -> None:
    await hook(database)
    await tell(database, end())
    [dead] = await claimed(database, until=NOW + 60_000)
    assert await claimed(database, NOW + 59_999) == []
    [other] = await claimed(database, NOW + 60_000)
    assert other.claim != dead.claim
    # the first one was slow and not dead: what it has done counts, what it holds does not
    assert await written(database, dead, 200, NOW + 60_001) is None
    [row] = await rows(database)
    assert row.state == "delivered"
    [one] = await rows(database, webhooks)
    assert (one.claim, one.waiting) == (other.claim, 0)
    assert await written(database, other, 200, NOW + 60_002) is not None
    [one] = await rows(database, webhooks)
    assert (one.claim, one.due, one.waiting) == ("", None, 0)


async def test_what_ends_while_a_claim_holds_is_due_when_it_ends(database: Database) -> None:
    await hook(database)
    await tell(database, end("t1"))
    [webhook] = await claimed(database)
    due = await queue(database).due(webhook, NOW, 4)
    await tell(database, end("t2"))
    [one] = await rows(database, webhooks)
    assert (one.claim, one.due) == (webhook.claim, NOW + 60_000), "the claim holds"
    results = [(delivery, Attempt(NOW, 0, 200, "")) for delivery in due]
    assert await queue(database).record(webhook, results, POLICY, NOW + 5) is not None
    [again] = await claimed(database, NOW + 6)
    assert [one.object_id for one in await queue(database).due(again, NOW + 6, 4)] == ["t2"]
    await written(database, again, 200, NOW + 6)
    [one] = await rows(database, webhooks)
    assert (one.claim, one.due, one.waiting, one.delivered) == ("", None, 0, NOW + 6)


async def test_ends_and_claims_that_come_at_the_same_time_leave_nothing_behind(database: Database) -> None:
    await hook(database)
    told = 0

    async def announces() -> None:
        nonlocal told
        for number in range(25):
            told += await tell(database, end(f"t{number}"))

    async def sends() -> None:
        while True:
            for webhook in await claimed(database):
                await written(database, webhook, 200)
            await asyncio.sleep(0)

    sender = asyncio.create_task(sends())
    await announces()
    sender.cancel()
    await asyncio.gather(sender, return_exceptions=True)
    async with database.writing() as connection:  # as if the one that was stopped had died
        await connection.execute(update(webhooks).where(webhooks.c.claim != "").values(due=NOW))
    for webhook in await claimed(database):
        while (await written(database, webhook, 200, most=100)) is not None:
            if not await claimed(database):
                break
    assert {row.state for row in await rows(database)} == {"delivered"}
    assert told == 25
    [one] = await rows(database, webhooks)
    assert (one.due, one.waiting) == (None, 0)


async def test_what_was_not_taken_is_sent_again_and_given_up_at_its_time(database: Database) -> None:
    await hook(database)
    await tell(database, end())
    now, dues = NOW, []
    for _ in range(100):
        found = await claimed(database, now)
        if not found:
            [row] = await rows(database)
            if row.state == "failed":
                break
            [one] = await rows(database, webhooks)
            assert one.due is not None
            now = one.due
            continue
        dues.append(now - NOW)
        await written(database, found[0], 500, now)
    assert dues[:4] == [0, 5000, 20_000, 65_000]
    assert row.attempts == len(dues)
    assert POLICY.give_up_ms <= dues[-1] <= POLICY.give_up_ms + HOUR_MS
    assert (row.due, row.ended, row.status) == (None, now, 500)
    [one] = await rows(database, webhooks)
    assert (one.waiting, one.due, one.off_since) == (0, None, None)
    assert one.fails == len(dues)


async def test_one_that_fails_for_days_is_switched_off_and_says_why(database: Database) -> None:
    webhook = await hook(database)
    await tell(database, end("t1"))
    [first] = await claimed(database)
    await written(database, first, None)
    later = NOW + 121 * HOUR_MS
    await tell(database, end("t2", at=later))
    [again] = await claimed(database, later)
    found = await written(database, again, 500, later)
    assert found is not None
    assert found.now.off_why.startswith("It failed for 5 days")
    use = using(database, later + 1)
    shown = await use.show(caller(ANN), webhook)
    assert (shown["enabled"], shown["disabledAt"]) == (False, later)
    assert shown["disabledReason"] == "It failed for 5 days: It did not work."
    assert await claimed(database, later + 100 * HOUR_MS) == []
    assert await tell(database, end("t3")) == 0
    on = await use.change(caller(ANN), webhook, {"enabled": True})
    assert (on["enabled"], on["failing"], on["disabledReason"]) == (True, None, None)
    [begun] = await claimed(database, later + 5001)
    assert begun.health == WebhookHealth()


async def test_what_is_old_or_removed_goes(database: Database) -> None:
    keep = await hook(database)
    gone = await hook(database)
    await tell(database, end("old", at=NOW - 100 * HOUR_MS), end("new"))
    use = using(database)
    assert await use.remove(caller(ANN), gone) == {"id": gone, "removed": True}
    assert [one["id"] for one in (await use.page(caller(ANN)))["webhooks"]] == [keep]
    assert [webhook.id for webhook in await claimed(database)] == [keep]

    async def purged() -> bool:
        async with database.writing() as connection:
            return await store.purge(connection, NOW, 90 * HOUR_MS)

    while await purged():
        pass
    assert [(row.webhook, row.object_id) for row in await rows(database)] == [(keep, "new")]
    [one] = await rows(database, webhooks)
    assert one.waiting == 1


async def test_one_that_told_nothing_is_gone_when_it_is_removed(database: Database) -> None:
    silent, told = await hook(database), await hook(database, Owner("site", "site/bob"))
    await tell(database, end("t1", Owner("site", "site/bob")))
    use = using(database)
    await use.remove(caller(ANN), silent)
    assert [row.id for row in await rows(database, webhooks)] == [told]


async def test_a_user_who_is_forgotten_has_no_webhooks_and_is_in_nobodys_log(database: Database) -> None:
    await hook(database, ANN)
    all_users = await hook(database, Owner("site", "site"), every=True)
    bob = Owner("site", "site/bob")
    await tell(database, end("t1"), end("t2", bob))
    while True:
        async with database.writing() as connection:
            if not await store.forget(connection, ANN.user, NOW):
                break
    assert [(row.webhook, row.object_id) for row in await rows(database) if row.user_name != ""] == [
        (all_users, "t2")
    ]
    async with database.reading() as connection:
        left = await connection.scalar(
            select(func.count()).select_from(webhooks).where(webhooks.c.user_name == ANN.user)
        )
        assert left == 0
        [one] = (await connection.execute(select(webhooks).where(webhooks.c.id == all_users))).all()
        assert one.waiting == 1
