"""A replica's parts that have to do with quotas, over a real Redis and a real database: none is started, tests call them."""

import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import func, select
from tests.contract.store.store import sample_ends
from tests.support.records import KEYS, RECORDED, tier_of

from fairlane.gateway.credits.balances import Balances
from fairlane.gateway.credits.ledger import read_charge, rows_of
from fairlane.gateway.credits.reconciliation import BalanceReconciler
from fairlane.gateway.database.address import parse_address
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.tables import GRANTED, LedgerRow, balances, ledger
from fairlane.gateway.records.erasure import ErasedUsers
from fairlane.gateway.records.outbox import Outbox, Table
from fairlane.gateway.records.records import EndTable
from fairlane.gateway.usage.usage import UsageTable
from fairlane.queues.chains import ChainEnd, ChainStart, StageEntry, Step, advance, parse_advance
from fairlane.queues.credits import BalanceStore
from fairlane.queues.metrics import Recorder
from fairlane.queues.scheduler import Limits, Scheduler
from fairlane.queues.store.address import Address
from fairlane.queues.store.link import RedisLink
from fairlane.queues.store.scripts import load_scripts
from fairlane.queues.tasks import End, Grant, Rejection, State, Submitted, TaskSpec, Used

CREDIT = 1_000_000
PRICE = f"{CREDIT} {CREDIT} 0 0 0"
"""A token of input costs a micro-credit."""


class Bank:
    """One replica. A task is held 100, if it can be paid."""

    def __init__(self, link: RedisLink, database: Database, replica: str = "r1") -> None:
        self.link, self.database = link, database
        self.scheduler = Scheduler(link, KEYS, replica, sample_ends(), Limits())
        self.balances = Balances(database, self.scheduler)
        self.balance_store = BalanceStore(self.scheduler)
        erased = ErasedUsers(database)
        tables: dict[str, Table] = {
            "usage": EndTable(erased, RECORDED, UsageTable(tier_of)).write,
            "charge": EndTable(erased, RECORDED).write,
        }
        self.outbox = Outbox(link, KEYS, database, tables, Recorder())
        self.metrics = Recorder()
        self.reconciler = BalanceReconciler(database, self.scheduler, link, KEYS, self.metrics)
        self._numbers = itertools.count(1)

    async def set_up(self) -> None:
        await self.scheduler.configure({"free": {"weight": 1.0}}, {})
        await self.scheduler.offer(["m"], [], 10**9, 0)

    async def submit(
        self, task: str = "", user: str = "acme", chain: ChainStart | None = None, **more: Any
    ) -> Submitted | Rejection:
        """Once, or again when the store has been told what there is."""
        name = task or f"{self.scheduler.replica}-{next(self._numbers)}"
        extras = {"price": PRICE, "quota": "k"} | more
        spec = TaskSpec(name, "m", "free", user, b"{}", estimated_input=100, extras=extras)
        if chain is not None:
            chain.begin(spec)
        for _ in range(3):
            reply = await self.scheduler.submit(spec, 0, self.scheduler.nonce(), "w")
            answer = self.scheduler.parse_submit(reply)
            if not isinstance(answer, Rejection) or answer.reason != "no_balance":
                break
            await self.balances.load(*answer.unknown)
        return answer

    async def take(self, want: int = 1) -> list[Grant]:
        reply = await self.scheduler.take(["m"], want, self.scheduler.nonce(), "w")
        return self.scheduler.parse_take(reply).grants

    async def advance(self, grant: Grant, tokens: int, then: StageEntry | ChainEnd | None) -> str:
        step = Step(b"{}", Used(tokens, 0), self.scheduler.nonce(), then, worker="w")
        return parse_advance(self.scheduler, await advance(self.scheduler, grant, 2, [], step)).outcome

    async def finish(self, grant: Grant, tokens: int, state: State = State.COMPLETED) -> str:
        end = End(
            state, "", ("done", b"{}"), Used(tokens, 0), self.scheduler.nonce(), models=("m",), worker="w"
        )
        return self.scheduler.parse_finish(await self.scheduler.finish(grant, 2, [], end)).outcome

    async def pay(self, tokens: int, user: str = "acme", **more: Any) -> None:
        """Run a task that uses so many."""
        answer = await self.submit(user=user, **more)
        assert isinstance(answer, Submitted), answer
        (grant,) = await self.take()
        assert await self.finish(grant, tokens) == "ok"

    async def carry(self) -> None:
        """Bring to SQL all that this one may."""
        for _ in range(3):
            while await self.outbox.carry():
                pass

    async def reckon(self, times: int = 3) -> None:
        """Compare everybody, until nothing changes any more."""
        for _ in range(times):
            self.reconciler.reconcile_all()
            await self.reconciler.step()

    async def rows(self) -> list[LedgerRow]:
        async with self.database.reading() as connection:
            return [LedgerRow(*row) for row in await connection.execute(select(ledger))]

    async def on_the_way(self) -> list[LedgerRow]:
        """Rows of the outbox."""
        entries: Sequence[Any] = await self.link.command("XRANGE", KEYS("outbox"), "-", "+")
        charges = [read_charge(fields[1]) for _, fields in entries]
        return [row for charge in charges if charge for row in rows_of(charge)]

    async def check(self, *subjects: str) -> None:
        """The sums of SQL are those of its rows; and what Redis holds is what the rows of SQL and those on their way come to."""
        rows = await self.rows()
        async with self.database.reading() as connection:
            found = (await connection.execute(select(balances))).all()
            total = await connection.scalar(select(func.coalesce(func.sum(ledger.c.amount), 0)))
        assert sum(row.amount for row in found) == total
        for row in found:
            theirs = [r for r in rows if (r.subject, r.fund, r.ends) == (row.subject, row.fund, row.ends)]
            assert row.amount == sum(r.amount for r in theirs)
            assert row.granted == sum(r.amount for r in theirs if r.kind == "grant")
            assert row.grants == sum(r.kind == "grant" for r in theirs)
            assert row.number == max(r.number for r in theirs)
        every = {row[:3]: row for row in [*await self.on_the_way(), *rows]}.values()
        for subject in subjects:
            balance = await self.balance_store.find(subject)
            assert balance is not None, subject
            of_it = [row for row in every if row.subject == subject]
            granted = [row for row in of_it if row.fund == GRANTED]
            assert balance.balance == sum(row.amount for row in granted), (subject, balance, granted)
            for window, spent in balance.windows.items():
                of_window = [row for row in of_it if row.fund[0] + str(row.ends) == window]
                assert spent == -sum(row.amount for row in of_window), (subject, window)


@contextlib.asynccontextmanager
async def banking(redis_url: str, database_url: str, replica: str = "r1") -> AsyncIterator[Bank]:
    """A replica, which has been set up."""
    database = Database(parse_address(database_url, Path()))
    link = RedisLink(Address(redis_url), load_scripts(), KEYS.prefix, metrics=Recorder())
    await database.start()
    await link.start()
    bank = Bank(link, database, replica)
    try:
        await bank.set_up()
        yield bank
    finally:
        await link.close()
        await database.close()
