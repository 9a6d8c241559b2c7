"""Erases a user: batches, archived content, results and failures, and the name in records."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairlane.gateway.attached import EndUser
from fairlane.gateway.audit.log import AuditRecord
from fairlane.gateway.database.database import Database
from fairlane.gateway.errors import bad_request
from fairlane.gateway.records.erasure import ERASED, PARTS, ErasedUsers, rows_of_user
from fairlane.queues.overrides import Actor
from fairlane.queues.scheduler import Scheduler

CALL_S = 5.0
"""Time limit of one call; the client repeats it for the rest. The command waits 10 s for a response."""
WAIT_S = 3.0
"""Part of it to wait until cancelled batches have ended and workers have stopped cancelled tasks."""
PAUSE_S = 0.25


@dataclass(eq=False)
class UserErasure:
    """Ends a user's batches and erases the user. A second call finds nothing to do."""

    _database: Database
    _erased: ErasedUsers
    _scheduler: Scheduler
    _end: Sequence[EndUser]
    """End what the user has started, such as batches."""
    _audit: AuditRecord

    async def __call__(self, user: str, actor: Actor) -> dict[str, Any]:
        """Return how many rows of each kind were erased, how many ledger rows keep the name, how many batches have not ended, how
        many cancelled tasks still run, and whether a further call is needed (`more`).

        The audit log entry has no name. Raise ApiError, StoreError, DatabaseUnavailable: what was erased stays erased.
        """
        if user == ERASED:
            raise bad_request(f"{ERASED} stands for all erased users", "user")
        began = time.monotonic()
        results = cancelled = 0
        while True:
            until = await self._scheduler.now_ms()
            await self._erased.mark(user, until)
            ends = [await end(user, until) for end in self._end]
            ended, unended = sum(one for one, _ in ends), sum(left for _, left in ends)
            removed, stopping = await self._scheduler.erase_user(user, until)
            cancelled, results = cancelled + ended, results + removed
            if not (unended or stopping) or time.monotonic() >= began + WAIT_S:
                break
            await asyncio.sleep(PAUSE_S)
        done = dict.fromkeys(PARTS, 0)
        more = False
        for name, part in PARTS.items():
            while not more:
                async with self._database.writing() as connection:
                    rows = await part(connection, user, until)
                done[name] += rows
                if not rows:
                    break
                more = time.monotonic() >= began + CALL_S
        async with self._database.reading() as connection:
            ledger = await rows_of_user(connection, user)
        erased = {**done, "results": results, "ledger": ledger, "unended": unended, "stopping": stopping}
        erased["more"] = more or unended > 0 or stopping > 0
        only_waited = (unended or stopping) and not any((cancelled, results, *done.values()))
        if not only_waited:  # one erasure may need many calls
            await self._audit.note(actor, "erase", "user", {}, erased)
        return erased
