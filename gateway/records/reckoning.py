"""Compares what Redis holds of balances with the ledger in SQL, and puts right what differs.

That happens: Redis has lost its last second, and with it what tasks had paid of which SQL was told already; a gateway died
between a grant in SQL and the word of it to Redis; a database was brought back from a backup. SQL is right. Each subject is
looked at once a minute, by whichever replica comes first, and all of them when Redis is back.

1 Redis says how a subject stands, and which entry of the outbox is the newest. 2 Once SQL has all entries until that one, it
has every task that Redis had paid then, and maybe later ones, which have higher numbers. 3 What the others have cost by SQL
is what Redis had paid; if not, the difference is added, which is right whatever has happened to the subject meanwhile. SQL
may also have numbers that Redis has not given yet: what was lost. Redis goes on behind them, and is compared anew.

Entries may stay in the outbox: those of whom are known are compared when SQL has them. With more than MOST_LEFT of them nobody
is, and the log says so.
"""

import asyncio
import contextlib
from typing import Any

import structlog

from fairlane.gateway.credits.amounts import credits_of
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.records.entries import read_charge
from fairlane.gateway.records.ledger import read_funds
from fairlane.queues.credits import Balance, Funds
from fairlane.queues.errors import StoreError
from fairlane.queues.keys import Keys
from fairlane.queues.loops import end_tasks, run_periodically
from fairlane.queues.metrics import BALANCES_CORRECTED, CREDITS_CORRECTED, Recorder
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.store.link import RedisLink

log = structlog.get_logger("fairlane.gateway")

LOOK_S = 1.0
PAUSE_MS = 60_000
"""How often a subject is looked at."""
AT_ONCE = 100
CARRIED_S = 10.0
"""How long it is waited for the entries of the outbox."""
POLL_S = 0.3
PAGE = 500
MOST_LEFT = 10_000
"""Entries that are still in the outbox then, and are looked at."""
DAY_MS = 86_400_000
"""A balance that was not used for so long is forgotten in Redis: SQL knows it."""


class Reckoning:
    """Every replica does it. `start` begins, `close` ends."""

    def __init__(
        self, database: Database, scheduler: Scheduler, link: RedisLink, keys: Keys, metrics: Recorder
    ) -> None:
        self._database = database
        self._scheduler = scheduler
        self._link = link
        self._outbox = keys("outbox")
        self._metrics = metrics
        self._everybody = False
        self._too_many = False
        """The log has said that too much waits in the outbox."""
        self._soon = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        expected = (StoreError, DatabaseUnavailable)
        self._task = run_periodically("reckoning", LOOK_S, self.look, expected=expected, wake=self._soon)

    async def close(self) -> None:
        """End."""
        await end_tasks(self._task)

    def look_at_everybody(self) -> None:
        """Redis may have lost something: all are due."""
        self._everybody = True
        self._soon.set()

    async def look(self) -> None:
        """Compare those who are due. Raises StoreError and DatabaseUnavailable."""
        everybody, self._everybody = self._everybody, False
        try:
            newest, due = await self._scheduler.reckon(AT_ONCE, PAUSE_MS, everybody=everybody)
        except StoreError:
            self._everybody |= everybody
            raise
        if len(due) == AT_ONCE:
            self._soon.set()
        if due:
            under_way = await self._under_way(newest)
            if under_way is not None:
                await self._compare([one for one in due if one[0] not in under_way])

    async def _under_way(self, newest: str) -> set[str] | None:
        """Waits until SQL has all entries until this one; of whom it still has not, None: of too many."""
        if not newest:
            self._too_many = False
            return set()
        end = asyncio.get_running_loop().time() + CARRIED_S
        while await self._link.command("XRANGE", self._outbox, "-", newest, "COUNT", 1):
            if asyncio.get_running_loop().time() >= end:
                break
            await asyncio.sleep(POLL_S)
        found, first = set(), b"-"
        for _ in range(MOST_LEFT // PAGE):
            entries: list[Any] = await self._link.command(
                "XRANGE", self._outbox, first, newest, "COUNT", PAGE
            )
            for _, fields in entries:
                with contextlib.suppress(Exception):  # an entry that cannot be read: the outbox tells of it
                    charge = read_charge(fields[1]) if fields[0] in (b"usage", b"charge") else None
                    found |= {charge.subject} if charge else set()
            if len(entries) < PAGE:
                self._too_many = False
                return found
            first = b"(" + entries[-1][0]
        if not self._too_many:
            self._too_many = True
            log.warning(
                "balances are not compared with the ledger: too many records wait in the outbox."
                " They are compared when SQL has these; other lines say why it has not",
                waiting=await self._link.command("XLEN", self._outbox),
                most=MOST_LEFT,
            )
        return None

    async def _compare(self, due: list[tuple[str, Balance, int]]) -> None:
        wanted = {subject: list(balance.windows) for subject, balance, _ in due}
        async with self._database.reading() as connection:
            found = await read_funds(connection, wanted)
        for subject, balance, idle_ms in due:
            funds = found.get(subject, Funds())
            if funds.number > balance.number:
                now = await self._scheduler.balance(subject)
                if now is None:
                    continue
                if now.number < funds.number:
                    await self._scheduler.amend(subject, balance, funds, 0, {})
                    continue
                async with self._database.reading() as connection:  # some have ended meanwhile
                    found |= await read_funds(connection, {subject: wanted[subject]}, until=balance.number)
                funds = found[subject]
            await self._put_right(subject, balance, funds, idle_ms)

    async def _put_right(self, subject: str, balance: Balance, funds: Funds, idle_ms: int) -> None:
        more = funds.spent - balance.spent
        windows = {
            window: difference
            for window, used in balance.windows.items()
            if (difference := funds.windows.get(window, 0) - used)
        }
        granted = (funds.granted, funds.grants) != (balance.granted, balance.grants)
        if more or windows or granted:
            known = await self._scheduler.amend(subject, balance, funds, more, windows)
            lost = (
                granted and funds.grants <= balance.grants
            )  # more of them are grants that only now are told here
            if known and (more or windows or lost):
                added = funds.granted - balance.granted - more - sum(windows.values())
                self._metrics.count(BALANCES_CORRECTED)
                self._metrics.count(CREDITS_CORRECTED, number=float(credits_of(abs(added))))
                log.warning(
                    "a balance was not what the ledger says, and was put right",
                    subject=subject,
                    credits=_credits(added),
                    balance=_credits(funds.granted - funds.spent),
                )
        elif idle_ms > DAY_MS:
            await self._scheduler.forget_balance(subject, balance)


def _credits(micro: int) -> str:
    return f"{credits_of(micro):f}"
