"""Forgetting a user."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fairlane.gateway.database.database import Database
from fairlane.gateway.errors import bad_request
from fairlane.gateway.operator.audit import AuditRecord
from fairlane.gateway.records.erasure import ERASED, PARTS, ErasedUsers
from fairlane.gateway.records.ledger import rows_of_user
from fairlane.queues.overrides import Actor
from fairlane.queues.scheduler import Scheduler

FORGET_S = 5.0
"""How long a call goes on; then it is called again. The command waits for 10 s for an answer."""
BATCHES_S = 3.0
"""How long of that it waits for batches to end that it has cancelled."""
STOPPED_S = 4.0
"""And for workers to let go of tasks that were cancelled."""
LOOK_S = 0.25


class Forget:
    """Ends a user's batches and removes these, archived content, results and failures, and the name from records. A second call
    finds nothing to do."""

    def __init__(
        self,
        database: Database,
        erased: ErasedUsers,
        scheduler: Scheduler,
        end_batches: Callable[[str, int], Awaitable[tuple[int, int]]],
        audit: AuditRecord,
    ) -> None:
        """`end_batches`: `Batches.end_of`."""
        self._end_batches = end_batches
        self._database = database
        self._erased = erased
        self._scheduler = scheduler
        self._audit = audit

    async def __call__(self, user: str, actor: Actor) -> dict[str, Any]:
        """How many rows of each kind it were, in how many of the ledger the name stays, how many batches have not ended yet, of
        how many cancelled tasks the workers have not let go, and whether there is more: then call again. Written down, without
        the name. Raises ApiError, StoreError, DatabaseUnavailable: what is done stays done."""
        if user == ERASED:
            raise bad_request(f"{ERASED} stands for all erased users", "user")
        began = time.monotonic()
        end = began + FORGET_S
        until, cancelled, unended = await self._mark(user, began + BATCHES_S)
        results, stopping = await self._forget_results(user, until, began + STOPPED_S)
        done = dict.fromkeys(PARTS, 0)
        more = False
        for name, part in PARTS.items():
            while not more:
                async with self._database.writing() as connection:
                    rows = await part(connection, user, until)
                done[name] += rows
                if not rows:
                    break
                more = time.monotonic() >= end
        async with self._database.reading() as connection:
            ledger = await rows_of_user(connection, user)
        told = {**done, "results": results, "ledger": ledger, "unended": unended, "stopping": stopping}
        told["more"] = more or unended > 0 or stopping > 0
        only_waited = (unended or stopping) and not any((cancelled, results, *done.values()))
        if not only_waited:  # of one act there would be many entries
            await self._audit.note(actor, "erase", "user", {}, told)
        return told

    async def _forget_results(self, user: str, until: int, end: float) -> tuple[int, int]:
        """Remove what Redis keeps of the user's tasks; of how many, and of how many it is to be removed once they are let go."""
        removed = 0
        while True:
            results, stopping = await self._scheduler.erase_user(user, until)
            removed += results
            if not stopping or time.monotonic() >= end:
                return removed, stopping
            await asyncio.sleep(LOOK_S)

    async def _mark(self, user: str, end: float) -> tuple[int, int, int]:
        """Have the user's batches end, and record that they are erased; until when (ms), how many batches of before were
        cancelled, and how many have not ended yet. What batches leave is of before their ends, and so of before that."""
        cancelled = 0
        while True:
            until = await self._scheduler.now_ms()
            await self._erased.mark(user, until)
            more, unended = await self._end_batches(user, until)
            cancelled += more
            if not unended or time.monotonic() >= end:
                return until, cancelled, unended
            await asyncio.sleep(LOOK_S)
