"""What keys and users can pay with: the same in SQL and in Redis, whatever dies or is lost between them. On both databases."""

import asyncio
import time

import pytest
from sqlalchemy import delete
from structlog.testing import capture_logs
from tests.support.bank import Bank, banking
from tests.support.databases import running_postgres
from tests.support.records import KEYS, entry, expire, put
from tests.support.servers import Server

from fairlane.gateway.credits import reconciliation as reconciliation_module
from fairlane.gateway.credits.ledger import add_rows
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.database.tables import GRANTED, LedgerRow, balances, ledger
from fairlane.gateway.errors import ApiError
from fairlane.gateway.records import outbox as outbox_module
from fairlane.queues.metrics import BALANCES_CORRECTED, CREDITS_CORRECTED
from fairlane.queues.tasks import Rejection, State, Submitted

pytestmark = pytest.mark.anyio
ACME = "k:acme"
DAY_MS = 86_400_000


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for entries that nobody carries."""
    monkeypatch.setattr(reconciliation_module, "CARRIED_S", 0)
    monkeypatch.setattr(outbox_module, "LEFT_MS", 0)


async def stands(bank: Bank, subject: str = ACME, quota: str = "") -> tuple[int, int, int]:
    """What was granted, spent, and is held."""
    found = await bank.balances.show(subject, quota)
    return found.granted, found.spent, found.held


async def test_a_grant_is_made_once_and_an_id_names_one_alone(redis_url: str, database_url: str) -> None:
    async with banking(redis_url, database_url) as bank, banking(redis_url, database_url, "r2") as other:
        grants = [
            each.balances.grant(ACME, 70, grant_id="same", who="ops")
            for each in (bank, other)
            for _ in range(5)
        ]
        assert sum(made.new for made in await asyncio.gather(*grants)) == 1
        assert (await bank.balances.grant(ACME, -20, grant_id="back", who="ops")).row.granted == 50
        for subject, amount in ((ACME, 71), ("k:other", 70)):
            with pytest.raises(ApiError) as refused:
                await bank.balances.grant(subject, amount, grant_id="same", who="ops")
            assert (refused.value.status, refused.value.code) == (409, "GRANT_EXISTS")
        await bank.check(ACME)
        assert await stands(other) == (50, 0, 0)


async def test_two_hundred_callers_at_once_against_what_twenty_can_use(
    redis_url: str, database_url: str
) -> None:
    async with banking(redis_url, database_url) as bank, banking(redis_url, database_url, "r2") as other:
        async with bank.database.writing() as connection:  # Redis has not heard of it
            await add_rows(
                connection, [LedgerRow("grant", "g", GRANTED, 0, ACME, "acme", "", 0, 2000, 0, "", 1, "ops")]
            )
        answers = await asyncio.gather(*((bank, other)[n % 2].submit() for n in range(200)))
        assert sum(isinstance(answer, Submitted) for answer in answers) == 20
        assert all(answer.reason == "quota" for answer in answers if isinstance(answer, Rejection))
        assert await stands(bank) == (2000, 0, 2000)
        for _ in range(20):
            (grant,) = await bank.take()
            await bank.finish(grant, 0, State.FAILED)
        assert await stands(bank) == (2000, 0, 0)
        await bank.carry()
        await bank.check(ACME)


async def test_what_is_compared_while_tasks_end_is_not_taken_for_wrong(
    redis_url: str, database_url: str
) -> None:
    async with banking(redis_url, database_url) as bank, banking(redis_url, database_url, "r2") as other:
        await bank.balances.grant(ACME, 10**9, grant_id="g", who="ops")
        await bank.carry()
        over = asyncio.Event()

        async def load() -> None:
            for _ in range(60):
                await bank.pay(11)
            over.set()

        async def carry(which: Bank) -> None:
            while not over.is_set():
                await which.carry()

        async def compare(which: Bank) -> None:
            while not over.is_set():
                which.reconciler.reconcile_all()
                await which.reconciler.step()

        with capture_logs() as logs:
            await asyncio.gather(
                load(), *(work(which) for work in (carry, compare) for which in (bank, other))
            )
        assert [line for line in logs if "balance" in line["event"]] == []
        await bank.carry()
        await bank.check(ACME)


async def test_a_database_that_was_brought_back_is_right(redis_url: str, database_url: str) -> None:
    async with banking(redis_url, database_url) as bank:
        await bank.balances.grant(ACME, 1000, grant_id="a", who="ops")
        await bank.carry()
        async with bank.database.reading() as connection:
            rows = [
                (await connection.execute(table.select())).mappings().all() for table in (ledger, balances)
            ]
        await bank.pay(40)
        await bank.balances.grant(ACME, 500, grant_id="b", who="ops")
        await bank.carry()
        async with bank.database.writing() as connection:
            for table, kept in zip((ledger, balances), rows, strict=True):
                await connection.execute(delete(table))
                await connection.execute(table.insert(), [dict(row) for row in kept])
        with capture_logs() as logs:
            await bank.reckon()
        assert [line["credits"] for line in logs] == ["-0.00046"]  # 40 paid, and 500 granted
        assert await stands(bank) == (1000, 0, 0)
        await bank.check(ACME)


async def test_entries_that_stay_in_the_outbox_keep_back_those_whom_they_are_of_and_no_others(
    redis_url: str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with banking(redis_url, database_url) as bank:
        lost = []
        for name in ("acme", "other"):
            await bank.balances.grant(f"k:{name}", 1000, grant_id=name, who="ops")
            whose = (f"k:{name}", name, "")
            lost.append(LedgerRow("task", f"lost-{name}", GRANTED, 0, *whose, 0, -30, 0, "", 1))
        async with bank.database.writing() as connection:
            await add_rows(connection, lost)
        await put(bank.link, *(entry(f"{n:04}") for n in range(1203)))
        await bank.pay(40)  # behind them
        with capture_logs() as logs:
            await bank.reckon()
        assert [(line["subject"], line["credits"]) for line in logs] == [("k:other", "-0.00003")]
        counted = bank.metrics.values[BALANCES_CORRECTED.name], bank.metrics.values[CREDITS_CORRECTED.name]
        assert counted == ({(): 1}, {(): 0.00003})

        monkeypatch.setattr(reconciliation_module, "MAX_LEFT", 1000)
        with capture_logs() as logs:
            await bank.reckon()
        assert logs == [], "there are too many of them"

        with capture_logs() as logs:
            await bank.carry()
            await bank.reckon()
        assert [(line["subject"], line["credits"]) for line in logs] == [(ACME, "-0.00003")]
        await bank.check(ACME)


async def test_what_was_not_used_for_a_day_is_forgotten_in_redis_and_known_again(
    redis_url: str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with banking(redis_url, database_url) as bank:
        await bank.balances.grant(ACME, 1000, grant_id="a", who="ops")
        await bank.pay(40)
        await bank.submit("held")
        monkeypatch.setattr(reconciliation_module, "DAY_MS", -1)
        await bank.carry()
        await bank.reckon()
        assert await bank.balance_store.find(ACME) is not None, "a task holds some of it"
        (grant,) = await bank.take()
        await bank.finish(grant, 1)
        await bank.reckon()
        assert await bank.balance_store.find(ACME) is not None, "SQL does not know all"
        await bank.carry()
        await bank.reckon()
        assert await bank.balance_store.find(ACME) is None
        assert await bank.link.command("EXISTS", KEYS("balances")) == 0
        assert await stands(bank) == (1000, 41, 0)
        await bank.pay(9)
        await bank.check(ACME)


async def test_the_ledger_is_read_by_pages_and_old_rows_of_tasks_go_while_balances_stay(
    redis_url: str, database_url: str
) -> None:
    async with banking(redis_url, database_url) as bank:
        await bank.balances.grant(ACME, 10_000, grant_id="a.b", who="ops")
        await bank.balances.grant("u:acme/ann", 10_000, grant_id="c", who="ops")
        for _ in range(7):
            await bank.pay(1)
            await bank.pay(2, user="acme/ann", quota="u")
        await bank.carry()
        for subject, number in ((ACME, 8), ("u:acme/ann", 8), (None, 16), ("k:nobody", 0)):
            found, before = [], ""
            while True:
                page = await bank.balances.ledger_page(subject, before, 3)
                found += page.rows
                before = page.next
                if not before:
                    break
                assert len(page.rows) == 3
            assert len(found) == len({(row.kind, row.id) for row in found}) == number
            assert [row.at for row in found] == sorted((row.at for row in found), reverse=True)
        for wrong in ("x", "1.", "1.a", ".a.b"):
            with pytest.raises(ApiError, match="of a page before"):
                await bank.balances.ledger_page(ACME, wrong)
        before_sums = await stands(bank)
        assert await expire(bank.database, int(time.time() * 1000) + 10 * DAY_MS)
        assert sorted(row.id for row in await bank.rows()) == ["a.b", "c"]
        assert await stands(bank) == before_sums
        with capture_logs() as logs:
            await bank.reckon()
        assert logs == []


async def test_without_the_database_nothing_is_let_through_by_guess(own_redis: Server) -> None:
    with running_postgres() as postgres:
        async with banking(own_redis.tcp_url, postgres.new("fairlane")) as bank:
            await bank.balances.grant(ACME, 1000, grant_id="a", who="ops")
            postgres.stop()
            assert isinstance(await bank.submit(), Submitted), "what Redis knows is enough"
            with pytest.raises(DatabaseUnavailable):
                await bank.submit(user="other")
            with pytest.raises(DatabaseUnavailable):
                await bank.balances.grant(ACME, 1, grant_id="b", who="ops")
            await bank.link.command("FLUSHALL")
            await bank.set_up()
            with pytest.raises(DatabaseUnavailable):
                await bank.submit()
            postgres.start()
            assert isinstance(await bank.submit(), Submitted)
            assert await stands(bank) == (1000, 0, 100)
