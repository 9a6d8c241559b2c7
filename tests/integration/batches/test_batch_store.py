"""Batches in SQL, on each kind of database: one leader at a time, each line counted once, and what is forgotten."""

import asyncio

import pytest
from sqlalchemy import func, insert, select, update
from tests.support.records import expire

from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.attached import DatabaseGauges
from fairlane.gateway.batches.feature import GAUGES, read_gauges
from fairlane.gateway.batches.models import Batch, Outcome, Status, new_batch_id
from fairlane.gateway.batches.store import MAX_CANDIDATES, BatchStore, Overtaken, TooMany
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.tables import batch_results, batches
from fairlane.gateway.metrics.scrape import DatabaseSurveyor
from fairlane.gateway.records.erasure import PARTS
from fairlane.gateway.records.retention import BATCHES_DAYS
from fairlane.gateway.usage.usage import DAY_MS
from fairlane.streaming.views.usage import Counts

pytestmark = pytest.mark.anyio
NOW = 1_800_000_000_000
LATER = NOW + 86_400_000


def made(number: int = 0, user: str = "ann") -> Batch:
    """The batch of this number, by time."""
    batch_id = new_batch_id(NOW + number)
    return Batch(batch_id, "acme", user, "free", "/v1/embeddings", "file-1", "24h", NOW, LATER)


def outcome(line: int, failed: bool = False) -> Outcome:
    return Outcome(line, failed, b"%d\n" % line, Counts(line, 1, None, 2))


async def led(store: BatchStore, leader: str, batch: Batch) -> Batch:
    [found] = [one for one in await store.unended(10, NOW) if one.id == batch.id]
    taken = await store.take(found, leader, NOW + 1000)
    assert taken is not None
    return taken


async def test_one_replica_leads_and_a_replaced_leader_changes_nothing_more(database: Database) -> None:
    store = BatchStore(database)
    batch = made()
    await store.add(batch, 10)
    [found] = await store.unended(10, NOW)
    first, second = await asyncio.gather(
        store.take(found, "one", NOW + 1000), store.take(found, "two", NOW + 1000)
    )
    assert (first is None) != (second is None), "one of them is faster"
    old = first or second
    assert old is not None
    new = await led(store, "three", batch)
    assert (old.epoch, new.epoch) == (1, 2)
    for change in (
        lambda: store.mark(old, total=1),
        lambda: store.keep(old, [outcome(1)], waiting=1),
        lambda: store.begin(old, NOW),
        lambda: store.end(old, Status.COMPLETED, NOW),
    ):
        with pytest.raises(Overtaken):
            await change()
    assert await store.kept(new) == set(), "and what it wrote is not there"
    assert await store.renew("one", [batch.id], NOW) == frozenset()
    assert await store.renew("three", [batch.id], NOW) == {batch.id}
    await store.release("three")
    assert [one.leader for one in await store.unended(10, NOW)] == [""]


async def test_a_line_is_counted_once(database: Database) -> None:
    store = BatchStore(database)
    await store.add(made(), 10)
    batch = await led(store, "one", await _only(store))
    batch = await store.begin(batch, NOW, total=5, model="m")
    assert batch.status == Status.IN_PROGRESS
    batch = await store.keep(batch, [outcome(1), outcome(3, failed=True)])
    batch = await store.keep(batch, [outcome(1, failed=True), outcome(3), outcome(2)], waiting=4)
    assert (batch.completed, batch.failed, batch.waiting) == (2, 1, 4)
    used = batch.input_tokens, batch.output_tokens, batch.cached_tokens, batch.reasoning_tokens
    assert used == (1 + 3 + 2, 3, 0, 6)
    assert await store.kept(batch) == {1, 2, 3}
    records = [part async for part in store.records(batch.id, failed=False)]
    assert b"".join(records) == b"1\n2\n"
    assert [part async for part in store.records(batch.id, failed=True)] == [b"3\n"]


async def _only(store: BatchStore) -> Batch:
    [batch] = await store.page(None, "", 10)
    return batch


async def test_a_cancelled_batch_does_not_begin(database: Database) -> None:
    store = BatchStore(database)
    await store.add(made(), 10)
    batch = await led(store, "one", await _only(store))
    await store.cancel(batch.id, NOW)
    batch = await store.begin(batch, NOW, total=5)
    assert (batch.status, batch.cancelling) == (Status.CANCELLING, NOW)
    ended = await store.end(batch, Status.CANCELLED, NOW + 1)
    await store.cancel(batch.id, NOW + 2)
    assert await store.find(batch.id, None) == ended
    assert (ended.status, ended.leader, ended.lease) == (Status.CANCELLED, "", 0)
    with pytest.raises(Overtaken):
        await store.end(batch, Status.COMPLETED, NOW + 3)


async def test_the_first_batches_of_each_owner_are_led_up_to_a_limit(database: Database) -> None:
    store = BatchStore(database)
    of_ann, of_bob = [made(number) for number in range(5)], [made(10 + number, "bob") for number in range(3)]
    for batch in (*of_ann, *of_bob):
        await store.add(batch, 5)
    with pytest.raises(TooMany):
        await store.add(made(20), 5)
    found = [one.id for one in await store.unended(2, NOW)]
    assert found == [batch.id for batch in (*of_ann[:2], *of_bob[:2])]
    await store.cancel(of_ann[4].id, NOW)
    found = [one.id for one in await store.unended(2, NOW)]
    assert sorted(found) == [batch.id for batch in (*of_ann[:2], of_ann[4], *of_bob[:2])]
    late = await store.unended(2, LATER)
    assert len(late) == 8, "what has expired is to be ended, whoever's turn it is"
    for begun in of_ann[1:3]:
        await store.begin(await led(store, "one", begun), NOW)
    found = [one.id for one in await store.unended(2, NOW)]
    assert {batch.id for batch in of_ann[1:3]} <= {*found}, "those that have begun go before those that wait"
    assert of_ann[0].id not in found
    assert [batch.id for batch in await store.page(Owner("acme", "bob"), "", 10)] == [
        batch.id for batch in reversed(of_bob)
    ]
    assert await store.page(Owner("other", "bob"), "", 10) == []
    assert await store.find(of_bob[0].id, Owner("acme", "ann")) is None


async def test_owners_with_many_batches_leave_the_others_their_turn(database: Database) -> None:
    store, users = BatchStore(database), 20
    many = [made(number, f"user-{number % users}") for number in range(MAX_CANDIDATES)]
    async with database.writing() as connection:
        await connection.execute(insert(batches), [batch._asdict() for batch in many])
    last = made(MAX_CANDIDATES)
    await store.add(last, 5)
    assert [one.id for one in await store.unended(2, NOW)] == [
        batch.id for batch in (*many[: 2 * users], last)
    ]


async def test_metrics_group_unended_batches_by_status(database: Database) -> None:
    store = BatchStore(database)
    for number in range(4):
        await store.add(made(number, f"u{number}"), 5)
    lonely = await led(store, "one", made(0, "u0")._replace(id=(await store.page(None, "", 10))[3].id))
    stands = {"waiting": 0, "running": 0, "blocked_on": '{"NO_WORKER":["m"]}'}
    await store.mark(await store.begin(lonely, NOW, total=9), **stands)
    over = await led(store, "one", (await store.page(None, "", 10))[0])
    await store.end(over, Status.FAILED, NOW)
    rows = await DatabaseSurveyor(database, [DatabaseGauges(GAUGES, read_gauges)]).recent()
    assert rows is not None
    assert rows["fairlane_batches_unended"] == {
        **dict.fromkeys([("finalizing",), ("cancelling",)], 0),
        ("in_progress",): 1,
        ("validating",): 2,
    }
    assert rows["fairlane_batches_stalled"] == {("NO_WORKER",): 1}


async def test_ended_batches_are_deleted_with_their_results(database: Database) -> None:
    store = BatchStore(database)
    for number in range(3):
        batch = made(number)
        await store.add(batch, 10)
        batch = await led(store, "one", batch)
        await store.keep(batch, [outcome(line) for line in range(1, 1101)])
        if number < 2:
            await store.end(batch, Status.COMPLETED, NOW + number)

    async def count() -> tuple[int, int]:
        async with database.reading() as connection:
            rows = [select(func.count()).select_from(table) for table in (batches, batch_results)]
            return tuple([int(await connection.scalar(one) or 0) for one in rows])  # type: ignore[return-value]

    await expire(database, NOW + 1)
    assert await count() == (3, 1100), "of those that have ended nothing is left over but the batch"
    await expire(database, NOW + 1 + BATCHES_DAYS * DAY_MS)
    assert await count() == (2, 1100)
    async with database.writing() as connection:
        await connection.execute(update(batches).values(created=NOW - 5))
        assert await PARTS["batches"](connection, "ann", NOW - 10) == 0
        assert await PARTS["batches"](connection, "ann", NOW) == 1
    assert await count() == (1, 1100), "what runs still is nobody's to forget"
