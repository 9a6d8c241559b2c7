"""Balances of keys and users with a quota: grants, and loading from SQL into Redis.

SQL is the source of truth; Redis has a copy, which submissions use. The balance of a subject is loaded at its first task. A grant
is written to SQL first; if a gateway dies before Redis has it, reconciliation.py adds it.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import structlog

from fairlane.gateway.credits.ledger import (
    add_rows,
    grant_of,
    page_of,
    place,
    read_funds,
    subjects_of,
    window_of,
)
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.database.tables import GRANTED, LedgerRow
from fairlane.gateway.errors import ApiError, bad_request
from fairlane.gateway.prices.prices import credits_of
from fairlane.queues.clock import now_ms
from fairlane.queues.credits import Balance, BalanceStore, Funds
from fairlane.queues.errors import StoreError
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.tasks import Rejection, TaskSpec

log = structlog.get_logger("fairlane.gateway")

LOAD_S = 5.0
"""How long a submission waits for the balance."""
LOADS = 2
"""Concurrent loads: keys and records need connections, too."""
CHANGE_S = 5.0
MAX_GRANTED = 10**18
"""Micro-credits of one subject, all grants together, so that sums in SQL and Redis fit 64 bits."""


class BudgetLeft(NamedTuple):
    """A budget in its current window, micro-credits."""

    per: str
    limit: int
    used: int
    held: int
    ends_ms: int

    @property
    def remaining(self) -> int:
        return max(self.limit - self.used - self.held, 0)


class BalanceRow(NamedTuple):
    """The balance of a subject, micro-credits."""

    subject: str
    granted: int
    spent: int
    """Of the grants."""
    held: int
    """Reserved for tasks that have not ended."""
    budget: BudgetLeft | None

    @property
    def balance(self) -> int:
        """What is left of the grants; negative: a debt."""
        return self.granted - self.spent

    @property
    def available(self) -> int:
        """What the next task can reserve."""
        return max(self.balance - self.held, 0) + (self.budget.remaining if self.budget else 0)


class Granted(NamedTuple):
    """The result of a grant."""

    new: bool
    """False: it was made before."""
    row: BalanceRow


class LedgerPage(NamedTuple):
    """Rows of the ledger, the newest first, and the `after` of the next page; '': there is none."""

    rows: list[LedgerRow]
    next: str


class Balances:
    """Use cases. Raise DatabaseUnavailable, StoreError and ApiError."""

    def __init__(self, database: Database, scheduler: Scheduler) -> None:
        self._database = database
        self._balances = BalanceStore(scheduler)
        self._turns = asyncio.Semaphore(LOADS)

    async def overcomes(self, rejection: Rejection, task: TaskSpec) -> bool:
        """Load the balance that Redis does not have, or downgrade a task that cannot be paid. Return whether to submit it
        again."""
        if rejection.reason == "no_balance":
            with contextlib.suppress(DatabaseUnavailable):
                await self.load(*rejection.unknown)
                return True
        elif rejection.reason == "quota" and task.downgrade:
            task.apply_plan(task.downgrade)
            return True
        return False

    async def load(self, subject: str, window: str) -> None:
        """Load a subject from SQL into Redis, with a window of its budget ('': none), unless a concurrent call just did."""
        try:
            async with asyncio.timeout(LOAD_S), self._turns:
                known = await self._balances.find(subject)
                if known is not None and (not window or window in known.windows):
                    return
                async with self._database.reading(CHANGE_S) as connection:
                    found = await read_funds(connection, {subject: [window] if window else []})
                await self._balances.load(subject, found.get(subject, Funds()), window)
        except TimeoutError as error:
            raise DatabaseUnavailable(f"no balance within {LOAD_S:.0f} s") from error

    async def show(self, subject: str, quota: str = "") -> BalanceRow:
        """Return the balance of a subject. `quota`: of its key, in the form of `submit`, for the budget."""
        (row,) = await self.rows({subject: quota})
        return row

    async def rows(self, wanted: Mapping[str, str]) -> list[BalanceRow]:
        """Return balances of several subjects, by their quotas, in their order. One query reads those that are not in Redis."""
        budgets = {subject: _budget(quota) for subject, quota in wanted.items()}
        asked = await asyncio.gather(*map(self._balances.find, wanted))
        known = {subject: balance for subject, balance in zip(wanted, asked, strict=True) if balance}
        missing = {
            subject: [window] if window else []
            for subject, (_, _, window) in budgets.items()
            if subject not in known or (window and window not in known[subject].windows)
        }
        funds: dict[str, Funds] = {}
        if missing:
            async with self._database.reading(CHANGE_S) as connection:
                funds = await read_funds(connection, missing)
        return [
            _row_of(subject, budget, known.get(subject), funds.get(subject, Funds()))
            for subject, budget in budgets.items()
        ]

    async def subjects(self, of_key: str, text: str, after: str, limit: int) -> tuple[list[str], str]:
        """Return names of subjects in the ledger, in their order, and the `after` of the next page ('': there is none): all, or
        those of a key (`of_key`), whose names contain `text` (lower case)."""
        query = subjects_of(of_key, text, after, self._database.dialect).limit(limit + 1)
        async with self._database.reporting(CHANGE_S) as connection:
            found = list(await connection.scalars(query))
        return found[:limit], found[limit - 1] if len(found) > limit else ""

    async def known(self, subjects: Iterable[str]) -> bool:
        """Return whether one of these is in the ledger."""
        async with self._database.reading(CHANGE_S) as connection:
            return bool(await read_funds(connection, {subject: [] for subject in subjects}))

    async def grant(
        self, subject: str, amount: int, *, grant_id: str, who: str, note: str = "", quota: str = ""
    ) -> Granted:
        """Grant micro-credits to a subject, or revoke some (negative). A second call with the same id changes nothing.

        `quota`: as in `show`.
        Raises ApiError (409) if the id is of another grant, and (400) if the sum would be too large.
        """
        key_id = subject[2:].partition("/")[0]
        user = subject[2:] if subject.startswith("u:") else ""
        at = now_ms()
        row = LedgerRow(
            *("grant", grant_id, GRANTED, 0, subject, key_id, user, 0, amount, 0, "", at), who=who, note=note
        )
        async with self._database.writing(CHANGE_S) as connection:
            new = await add_rows(connection, [row]) > 0
            if not new:
                known = await grant_of(connection, grant_id)
                if known is None or (known.subject, known.amount) != (subject, amount):
                    sentence = "There is another grant of this id"
                    if known is not None:
                        sentence += f": {credits_of(known.amount):f} credits for {known.subject[2:]}"
                    raise ApiError(409, "GRANT_EXISTS", sentence)
            funds = (await read_funds(connection, {subject: []}))[subject]
            if abs(funds.granted) > MAX_GRANTED:
                raise bad_request("all grants together would be too much", "credits")
        try:
            await self._balances.load(subject, funds)
        except StoreError:  # Redis gets it once it is available again
            return Granted(new, BalanceRow(subject, funds.granted, funds.spent, 0, None))
        return Granted(new, await self.show(subject, quota))

    async def ledger_page(
        self,
        subject: str | None,
        after: str = "",
        limit: int = 50,
        *,
        kind: str = "",
        since: int | None = None,
        until: int | None = None,
    ) -> LedgerPage:
        """Return rows of a subject, or of all (None), the newest first, behind `after`: `next` of the last page. Filters: a kind
        (grant, task), and an interval from `since` to before `until`."""
        query = page_of(subject, after, limit + 1, kind, since, until)
        async with self._database.reporting(CHANGE_S) as connection:
            rows = [LedgerRow(*row) for row in await connection.execute(query)]
        return LedgerPage(rows[:limit], place(rows[limit - 1]) if len(rows) > limit else "")


def _row_of(subject: str, budget: tuple[str, int, str], balance: Balance | None, funds: Funds) -> BalanceRow:
    """Return the balance by Redis (None: it has none), and by SQL where Redis has nothing."""
    per, limit, window = budget
    granted, spent, held = funds.granted, funds.spent, 0
    used, window_held = funds.windows.get(window, 0), 0
    if balance is not None:
        granted, spent, held = balance.granted, balance.spent, balance.held
        if window in balance.windows:  # else the window is unused, or only SQL has it
            used, window_held = balance.windows[window], balance.reserved_of(window)
    left = BudgetLeft(per, limit, used, window_held, int(window[1:])) if window else None
    return BalanceRow(subject, granted, spent, held, left)


def _budget(quota: str) -> tuple[str, int, str]:
    """Return the period, the limit and the current window of a quota's budget; '', 0, '' if it has none."""
    _, *budget = quota.split(" ")
    if not budget:
        return "", 0, ""
    limit, letter, *ends = budget
    now_ms = time.time() * 1000
    window = letter + next((end for end in ends if int(end) > now_ms), ends[-1])
    return window_of(window)[0], int(limit), window
