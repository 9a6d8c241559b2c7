"""Chains in SQL: a row for each stage and part under the chain's id, true sums by model, and one debit. On both databases."""

import pytest
from sqlalchemy import select
from tests.support.bank import PRICE, Bank, banking

from fairlane.gateway.database.tables import usage, usage_sums
from fairlane.gateway.usage.reports import ReportSlots, UsageReports, Wanted
from fairlane.gateway.usage.usage import DAY_MS
from fairlane.queues.chains import ChainEnd, ChainStart, Part, Stage, StageEntry
from fairlane.queues.tasks import Grant, State, Submitted, TaskSpec

pytestmark = pytest.mark.anyio
ACME = "k:acme"
END = ChainEnd(State.COMPLETED, "", ("done", b"{}"))
ALWAYS = Wanted(0, 1 << 50)


def entry(number: int, model: str = "m") -> StageEntry:
    task = TaskSpec("", model, "free", "", b"{}", estimated_input=100, extras={"price": PRICE, "quota": "k"})
    return StageEntry(Stage(number, f"stage{number}"), task)


async def begin(bank: Bank, chain: str, parts: int = 0) -> list[Grant]:
    """A chain whose first stage runs."""
    start = ChainStart(Stage(0, "first"), 2, b"{}", parts=[Part(b"{}", 100)] * parts)
    assert isinstance(await bank.submit(chain, chain=start), Submitted)
    return await bank.take(parts or 1)


async def test_each_stage_has_a_row_and_the_chain_one_debit(redis_url: str, database_url: str) -> None:
    async with banking(redis_url, database_url) as bank:
        await bank.balances.grant(ACME, 1000, grant_id="g1", who="ops", note="")
        (grant,) = await begin(bank, "c")
        await bank.scheduler.offer(["n"], [], 10**9, 0)
        assert await bank.advance(grant, 60, entry(1, "n")) == "moved"
        await bank.carry()
        assert [row.kind for row in await bank.rows()] == ["grant"], "it is paid when the chain ends"
        reply = await bank.scheduler.take(["n"], 1, bank.scheduler.nonce(), "w")
        (grant,) = bank.scheduler.parse_take(reply).grants
        assert await bank.advance(grant, 30, END) == "ended"
        await bank.check(ACME)
        await bank.carry()
        await bank.check(ACME)
        async with bank.database.reading() as connection:
            columns = (usage.c.task, usage.c.chain, usage.c.stage, usage.c.stage_name, usage.c.part)
            found = (await connection.execute(select(*columns, usage.c.cost).order_by(usage.c.task))).all()
            days = select(usage_sums.c.model, usage_sums.c.tasks, usage_sums.c.cost)
            days = days.where(usage_sums.c.span == DAY_MS).order_by(usage_sums.c.model)
            sums = (await connection.execute(days)).all()
        assert [tuple(row) for row in found] == [
            ("c.0", "c", 0, "first", None, 60),
            ("c.1", "c", 1, "stage1", None, 30),
        ]
        assert [tuple(row) for row in sums] == [("m", 1, 60), ("n", 1, 30)]
        (debit,) = [row for row in await bank.rows() if row.kind == "task"]
        assert (debit.id, debit.amount, debit.price) == ("c", -90, "")


@pytest.mark.parametrize("ends", ["completed", "cancelled"])
async def test_a_chain_that_ends_with_its_parts_pays_for_them(
    redis_url: str, database_url: str, ends: str
) -> None:
    async with banking(redis_url, database_url) as bank:
        await bank.balances.grant(ACME, 1000, grant_id="g1", who="ops", note="")
        first, second = await begin(bank, "c", 2)
        assert await bank.advance(first, 60, None) == "waits"
        if ends == "completed":
            assert await bank.advance(second, 30, END) == "ended"
        else:
            assert await bank.finish(second, 30, State.CANCELLED) == "ok"
        await bank.check(ACME)
        await bank.carry()
        await bank.check(ACME)
        await bank.reckon()
        await bank.check(ACME)
        (debit,) = [row for row in await bank.rows() if row.kind == "task"]
        assert (debit.id, debit.amount) == ("c", -90 if ends == "completed" else -60)
        async with bank.database.reading() as connection:
            rows = (await connection.execute(select(usage.c.task, usage.c.part, usage.c.state))).all()
        assert sorted(tuple(row) for row in rows) == [("c.0.00", 0, "completed"), ("c.0.01", 1, ends)]


async def test_the_rows_of_a_chain_are_found_by_its_id_page_by_page(
    redis_url: str, database_url: str
) -> None:
    async with banking(redis_url, database_url) as bank:
        await bank.balances.grant(ACME, 1000, grant_id="g1", who="ops", note="")
        for grant in await begin(bank, "c", 3):
            await bank.advance(grant, 10, END)
        await bank.pay(5, task="other")
        await bank.carry()
        reports = UsageReports(ReportSlots(bank.database))
        found, after = [], ""
        for _ in range(3):
            page, more = await reports.tasks(
                Wanted(ALWAYS.since, ALWAYS.until, {"task": "c"}), after, 1, "ops"
            )
            found += page
            after = more or ""
        assert [(row["taskId"], row["stage"], row["stageIndex"], row["part"]) for row in found] == [
            ("c", "first", 0, part) for part in (2, 1, 0)
        ]
        assert after == ""
        others, _ = await reports.tasks(Wanted(ALWAYS.since, ALWAYS.until, {"task": "other"}), "", 9, "ops")
        assert [(row["taskId"], row["stage"], row["stageIndex"]) for row in others] == [("other", "", None)]
