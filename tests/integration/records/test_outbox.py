"""Entries of the outbox reach SQL, each once, whatever dies or is away meanwhile: on SQLite and on PostgreSQL."""

import asyncio
from typing import Any

import msgspec
import pytest
from sqlalchemy import select
from structlog.testing import capture_logs
from tests.support.databases import Postgres, running_postgres
from tests.support.records import KEYS, NOON, carry_all, carrying, entry, expire, put, tasks_in
from tests.support.serving import until

from fairlane.gateway.database.database import Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.database.tables import MEASURES, usage, usage_sums, usage_users
from fairlane.gateway.records import outbox as module
from fairlane.gateway.records.outbox import Outbox
from fairlane.gateway.usage.usage import DAY_MS, HOUR_MS, UsageTable
from fairlane.queues.store.link import RedisLink

pytestmark = pytest.mark.anyio


async def left_in(link: RedisLink) -> int:
    number: int = await link.command("XLEN", KEYS("outbox"))
    return number


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another one has taken and not recorded is left at once."""
    monkeypatch.setattr(module, "LEFT_MS", 0)


async def test_an_entry_becomes_a_row_and_is_added_up(redis_url: str, database_url: str) -> None:
    async with carrying(redis_url, database_url) as (outbox, database, link):
        await put(
            link,
            entry("a", more="4 2 0", price="1000000 500000 2000000 2000000 10", cost="58"),
            entry("b", state="failed", code="TOTAL_TIMEOUT", tokens=(-1, -1)),
            entry("c", user="site/bob", tokens=(1, 2), more="-1 -1 1", model="*", asked="gpt-x"),
        )
        await carry_all(outbox)
        assert await left_in(link) == 0
        async with database.reading() as connection:
            row = (await connection.execute(select(usage).where(usage.c.task == "a"))).mappings().one()
            days = select(usage_sums).where(usage_sums.c.span == DAY_MS)
            sums = (await connection.execute(days.order_by(usage_sums.c.model, usage_sums.c.code))).all()
            hours = (await connection.execute(select(usage_sums).where(usage_sums.c.span == HOUR_MS))).all()
            users = (await connection.execute(select(usage_users).order_by(usage_users.c.user_name))).all()
        shown = {
            "ended": NOON,
            "granted": NOON - 700,
            "tier": "paid",
            "model": "m",
            "input": 10,
            "output": 20,
        }
        shown |= {"cached": 4, "reasoning": 2, "estimated": False, "cost": 58, "price": "1/0.5/2/2/0.00001"}
        shown |= {"chain": "", "stage": None, "template": "", "trace": ""}
        assert {name: row[name] for name in shown} == shown
        day, late = NOON - NOON % DAY_MS, "TOTAL_TIMEOUT"
        assert [tuple(row) for row in sums] == [
            (DAY_MS, day, "site", "paid", "gpt-x", "completed", "", 1, 1, 0, 0, 1, 2, 0, 0, 1, 200, 700, 0),
            (DAY_MS, day, "site", "paid", "m", "completed", "", 1, 1, 0, 0, 10, 20, 4, 2, 0, 200, 700, 58),
            (DAY_MS, day, "site", "paid", "m", "failed", late, 1, 0, 1, *[0] * 6, 200, 700, 0),
        ]
        assert sorted(tuple(row)[2:] for row in hours) == sorted(tuple(row)[2:] for row in sums)
        assert {row.began for row in hours} == {NOON - NOON % HOUR_MS}
        assert [(row.user_name, row.model, row.tasks, row.failed, row.output) for row in users] == [
            ("site/ann", "m", 2, 1, 20),
            ("site/bob", "gpt-x", 1, 0, 2),
        ]
        assert len(users[0]) == 5 + len(MEASURES)


async def test_several_that_carry_at_once_write_each_row_once(
    redis_url: str, database_url: str, at_once: None
) -> None:
    """Each takes what the others have under way, too."""
    async with (
        carrying(redis_url, database_url) as (one, database, link),
        carrying(redis_url, database_url) as (two, _, _),
        carrying(redis_url, database_url) as (three, _, _),
    ):
        await put(link, *(entry(f"{n:04}", user=f"site/{n % 7}") for n in range(3000)))
        await one.carry()

        async def carry(outbox: Outbox) -> None:
            while await left_in(link):
                outbox._look_for_left_at = 0
                await outbox.carry()

        await asyncio.gather(*map(carry, (one, two, three)))
        assert len(await tasks_in(database)) == 3000


async def test_the_same_task_again_changes_nothing(redis_url: str, database_url: str) -> None:
    """Redis lost its last second, and the task ended again: SQL has told somebody of the first end."""
    async with carrying(redis_url, database_url) as (outbox, database, link):
        await put(link, entry("a"))
        await carry_all(outbox)
        await put(link, entry("a", state="failed", code="X"), entry("a"), entry("b"), entry("b"))
        await carry_all(outbox)
        assert await tasks_in(database) == ["a", "b"]
        async with database.reading() as connection:
            assert list(await connection.scalars(select(usage.c.state))) == ["completed", "completed"]


async def test_a_redis_that_was_emptied_is_carried_from_again(redis_url: str, database_url: str) -> None:
    async with carrying(redis_url, database_url) as (outbox, database, link):
        await put(link, entry("a"))
        await carry_all(outbox)
        await link.command("FLUSHALL")
        await carry_all(outbox)
        await put(link, entry("b"))
        await carry_all(outbox)
        assert await tasks_in(database) == ["a", "b"]


async def test_what_cannot_be_written_holds_up_nothing_and_stays(
    redis_url: str, database_url: str, at_once: None
) -> None:
    async with carrying(redis_url, database_url) as (outbox, database, link):
        await put(link, entry("a"), b"\xc1 nonsense", entry("b", ended=0)[:-5], entry("c"))
        with capture_logs() as logs:
            await carry_all(outbox)
        assert await tasks_in(database) == ["a", "c"]
        assert await left_in(link) == 2
        said = [line for line in logs if line["event"].startswith("a record cannot be written")]
        assert len({line["entry"] for line in said}) == 2
        await put(link, entry("d"))
        await carry_all(outbox)
        assert await tasks_in(database) == ["a", "c", "d"]


async def test_what_a_newer_release_writes_is_left_to_it(
    redis_url: str, database_url: str, at_once: None
) -> None:
    async with carrying(redis_url, database_url) as (outbox, database, link):
        await put(link, b"whatever", kind="of tomorrow")
        run, spec = msgspec.msgpack.decode(entry("a", price="1 1 1 1 1", cost="1"))
        await put(link, msgspec.msgpack.encode((run | {"tomorrow": [1]}, spec | {"soon": {"x": None}})))
        await carry_all(outbox)
        assert await tasks_in(database) == ["a"]
        assert await left_in(link) == 1


async def test_while_the_database_is_away_entries_wait_and_the_log_says_so_once(redis_url: str) -> None:
    with running_postgres() as server:
        await stopped_and_started(redis_url, server)


async def stopped_and_started(redis_url: str, server: Postgres) -> None:
    async with carrying(redis_url, server.new("records")) as (outbox, database, link):
        await put(link, entry("a"))
        await carry_all(outbox)
        server.stop()
        await put(link, entry("b"), entry("c"))
        with capture_logs() as logs:
            for _ in range(2):
                with pytest.raises(DatabaseUnavailable):
                    await outbox.carry()
            outbox.start()
            await until(lambda: bool(logs))
            server.start()
            await until(lambda: len(logs) > 1)
        await outbox.close()
        assert [line["log_level"] for line in logs] == ["error", "info"]
        assert logs[1]["event"] == "the database is available again"
        assert await tasks_in(database) == ["a", "b", "c"]
        assert await left_in(link) == 0


async def test_records_are_kept_for_their_time(database: Database) -> None:
    table = UsageTable(lambda queue: queue)
    days = [NOON - n * DAY_MS for n in range(6)]
    async with database.writing() as connection:
        for day in days:
            packed = [entry(f"{day}-{n}", ended=day, user=f"site/{n}") for n in range(300)]
            assert await table.write(connection, packed) == 300
    assert await expire(database, NOON, days=2)
    async with database.reading() as connection:
        assert set(await connection.scalars(select(usage.c.ended))) == {
            NOON,
            NOON - DAY_MS,
            NOON - 2 * DAY_MS,
        }
        kept = select(usage_sums.c.began).where(usage_sums.c.span == DAY_MS)
        midnight = NOON - NOON % DAY_MS
        wanted = {midnight, midnight - DAY_MS, midnight - 2 * DAY_MS}
        assert set(await connection.scalars(kept)) == wanted
        assert set(await connection.scalars(select(usage_users.c.began))) == wanted
        hours = select(usage_sums.c.began).where(usage_sums.c.span == HOUR_MS)
        assert min(await connection.scalars(hours)) >= NOON - 3 * DAY_MS


async def test_who_leaves_carries_the_page_that_it_has_taken(
    redis_url: str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with carrying(redis_url, database_url) as (outbox, database, link):
        taken, go_on, commit = asyncio.Event(), asyncio.Event(), outbox._commit

        async def held_up(entries: Any) -> None:
            taken.set()
            await go_on.wait()
            await commit(entries)

        monkeypatch.setattr(outbox, "_commit", held_up)
        monkeypatch.setattr(module, "CATCH_UP_S", 30.0)
        await put(link, entry("a"))
        outbox.start()
        await taken.wait()
        closing = asyncio.create_task(outbox.close())
        await asyncio.sleep(0)  # it has begun
        go_on.set()
        await closing
        assert await tasks_in(database) == ["a"]
        assert await left_in(link) == 0
