"""Slots for reports: long queries of one key wait in line and delay no others."""

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator

from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.accounts.in_flight import too_many_calls
from fairlane.gateway.database.database import REPORT_S, REPORTS, Database
from fairlane.gateway.database.errors import DatabaseSlow
from fairlane.gateway.errors import ApiError

WAIT_S = 5.0
"""How long a report waits for others."""


class ReportSlots:
    """REPORTS at the same time, one for each key; others wait in line."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._all = asyncio.Semaphore(REPORTS)
        self._of_key: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        """Held by the report under way; there as long as one is, or waits."""

    @contextlib.asynccontextmanager
    async def __call__(self, who: str) -> AsyncIterator[AsyncConnection]:
        """Open a connection when it is the turn of `who`, the id of a key. Raise DatabaseUnavailable and ApiError."""
        async with contextlib.AsyncExitStack() as turn:
            try:
                async with asyncio.timeout(WAIT_S):
                    await turn.enter_async_context(self._of_key.setdefault(who, asyncio.Lock()))
                    await turn.enter_async_context(self._all)
            except TimeoutError:
                raise too_many_calls("There are too many reports at the same time") from None
            try:
                async with self._database.reporting(REPORT_S) as connection:
                    yield connection
            except DatabaseSlow as error:
                sentence = f"This report takes longer than {REPORT_S:.0f} s"
                hint = "ask for fewer days, or for one key, user or model"
                raise ApiError(503, "REPORT_TOO_LONG", f"{sentence}: {hint}") from error
