"""Compares the balances in Redis with the ledger in SQL, and corrects Redis: SQL is right.

They differ when Redis has lost its last second, when a gateway died between a grant in SQL and the message to Redis, or when a
database was restored from a backup. Each subject is compared once a minute, by one replica; all of them when Redis is back.

1 Redis returns the balances that are due, and the newest entry of the outbox. 2 Once SQL has all entries until that one, it
has every task that Redis had charged then, and maybe later ones, which have higher numbers. 3 The cost of the others by SQL
is what Redis should have charged; the difference is added, which is right for all changes of the balance since. SQL
may also have numbers that Redis has not assigned yet, as Redis lost them: Redis continues behind them and is compared again.

Subjects with entries that stay in the outbox are compared later; with more than MAX_LEFT entries there, all are.
"""

import asyncio
import contextlib
from typing import Any

import structlog

from fairlane.gateway.credits.ledger import read_charge, read_funds
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.prices.prices import credits_of
from fairlane.queues.credits import Balance, BalanceStore, Funds
from fairlane.queues.errors import StoreError
from fairlane.queues.keys import Keys
from fairlane.queues.loops import Periodic
from fairlane.queues.metrics import BALANCES_CORRECTED, CREDITS_CORRECTED, Recorder
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.store.link import RedisLink

log = structlog.get_logger("fairlane.gateway")

LOOK_S = 1.0
PAUSE_MS = 60_000
"""Between two comparisons of a subject."""
MAX_COMPARED = 100
"""Subjects of one comparison."""
CARRIED_S = 10.0
"""Time for the outbox to reach SQL."""
POLL_S = 0.3
MAX_LEFT = 2000
"""Entries that may stay in the outbox after that."""
DAY_MS = 86_400_000
"""A balance that was unused for a day is deleted in Redis: SQL has it."""


class BalanceReconciler(Periodic):
    """Runs in every replica."""

    name = "reconciliation"
    interval_s = LOOK_S
    expected = (StoreError, DatabaseUnavailable)

    def __init__(
        self, database: Database, scheduler: Scheduler, link: RedisLink, keys: Keys, metrics: Recorder
    ) -> None:
        self._database = database
        self._balances = BalanceStore(scheduler)
        self._link = link
        self._outbox = keys("outbox")
        self._metrics = metrics
        self._all = False
        self.wake: asyncio.Event = asyncio.Event()

    def reconcile_all(self) -> None:
        """Make all subjects due: Redis may have lost something."""
        self._all = True
        self.wake.set()

    async def step(self) -> None:
        """Compare the subjects that are due. Raise StoreError and DatabaseUnavailable."""
        everybody, self._all = self._all, False
        try:
            newest, due = await self._balances.due(MAX_COMPARED, PAUSE_MS, all_due=everybody)
        except StoreError:
            self._all |= everybody
            raise
        if len(due) == MAX_COMPARED:
            self.wake.set()
        left = await self._left(newest) if due and newest else []
        if len(left) <= MAX_LEFT:
            subjects = _subjects(left)
            await self._compare([one for one in due if one[0] not in subjects])

    async def _left(self, newest: str) -> list[Any]:
        """Wait until SQL has all entries until this one. Return those that it still does not have, MAX_LEFT + 1 at most."""
        end = asyncio.get_running_loop().time() + CARRIED_S
        while await self._link.command("XRANGE", self._outbox, "-", newest, "COUNT", 1):
            if asyncio.get_running_loop().time() >= end:
                break
            await asyncio.sleep(POLL_S)
        left: list[Any] = await self._link.command("XRANGE", self._outbox, "-", newest, "COUNT", MAX_LEFT + 1)
        return left

    async def _compare(self, due: list[tuple[str, Balance, int]]) -> None:
        if not due:
            return
        wanted = {subject: list(balance.windows) for subject, balance, _ in due}
        async with self._database.reading() as connection:
            found = await read_funds(connection, wanted)
        for subject, balance, idle_ms in due:
            funds = found.get(subject, Funds())
            if funds.number > balance.number:
                now = await self._balances.find(subject)
                if now is None:
                    continue
                if now.number < funds.number:
                    await self._balances.adjust(subject, balance, funds, 0, {})
                    continue
                async with self._database.reading() as connection:  # tasks have ended meanwhile
                    found |= await read_funds(connection, {subject: wanted[subject]}, until=balance.number)
                funds = found[subject]
            await self._correct(subject, balance, funds, idle_ms)

    async def _correct(self, subject: str, balance: Balance, funds: Funds, idle_ms: int) -> None:
        more = funds.spent - balance.spent
        windows = {
            window: difference
            for window, used in balance.windows.items()
            if (difference := funds.windows.get(window, 0) - used)
        }
        granted = (funds.granted, funds.grants) != (balance.granted, balance.grants)
        if more or windows or granted:
            known = await self._balances.adjust(subject, balance, funds, more, windows)
            lost = granted and funds.grants <= balance.grants  # else Redis had no message of a grant
            if known and (more or windows or lost):
                added = funds.granted - balance.granted - more - sum(windows.values())
                self._metrics.count(BALANCES_CORRECTED)
                self._metrics.count(CREDITS_CORRECTED, number=float(credits_of(abs(added))))
                log.warning(
                    "a balance differed from the ledger and was corrected",
                    subject=subject,
                    credits=_credits(added),
                    balance=_credits(funds.granted - funds.spent),
                )
        elif idle_ms > DAY_MS:
            await self._balances.evict(subject, balance)


def _subjects(entries: list[Any]) -> set[str]:
    """Return the subjects that entries of the outbox charge."""
    found = set()
    for _, fields in entries:
        with contextlib.suppress(ValueError):  # the outbox logs an entry that cannot be read
            charge = read_charge(fields[1]) if fields[0] in (b"usage", b"charge") else None
            found |= {charge.subject} if charge else set()
    return found


def _credits(micro: int) -> str:
    return f"{credits_of(micro):f}"
