"""Deletes records after their retention, a part at a time."""

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.database.database import Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.queues.clock import now_ms
from fairlane.queues.loops import Periodic

LOOK_S = 600.0
REST_S = 0.2
"""Between two parts, so that records can be written."""

Purge = Callable[[AsyncConnection, int, int], Awaitable[bool]]
"""Deletes a part of the rows that at an instant are older than their retention, both ms; returns whether there may be more."""


class Kept(NamedTuple):
    """Records of one kind."""

    purge: Purge
    ms: Callable[[], int]
    """The retention, from the end of a row, its creation, or its expiry."""


class Retention(Periodic):
    """Runs in every replica."""

    name = "retention"
    interval_s = LOOK_S
    expected = (DatabaseUnavailable,)

    def __init__(self, database: Database, kinds: Sequence[Kept]) -> None:
        self._database = database
        self._kinds = kinds
        self.delay_s = random.uniform(0, LOOK_S)  # noqa: S311 - not all replicas at the same time

    async def step(self) -> float:
        """Delete a part. Return the time to wait."""
        return REST_S if await self.forget(now_ms()) else LOOK_S

    async def forget(self, now_ms: int) -> bool:
        """Delete a part; return whether there may be more. Raises DatabaseUnavailable."""
        more = False
        for kind in self._kinds:  # each in a transaction of its own, which is short
            async with self._database.writing() as connection:
                more = await kind.purge(connection, now_ms, kind.ms()) or more
        return more
