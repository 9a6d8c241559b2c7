"""Forgets records whose time is over: a little at a time, beside everything else."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.database.database import Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.queues.clock import now_ms
from fairlane.queues.loops import end_tasks

log = structlog.get_logger("fairlane.gateway")

LOOK_S = 600.0
REST_S = 0.2
"""Between two parts, so that records are written between."""

Purge = Callable[[AsyncConnection, int, int], Awaitable[bool]]
"""Deletes a part of what is older at an instant than it is kept, both ms; whether there may be more."""


class Kept(NamedTuple):
    """Records of one kind."""

    purge: Purge
    ms: Callable[[], int]
    """How long one is kept behind the instant that counts for it: its end, its creation, or the one until which it is kept."""


class Retention:
    """Every replica does it, and takes nothing away from another one that does. `start` begins, `close` ends."""

    def __init__(self, database: Database, kinds: Sequence[Kept]) -> None:
        """`kinds`: what is forgotten."""
        self._database = database
        self._kinds = kinds
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="retention")

    async def close(self) -> None:
        """End."""
        await end_tasks(self._task)

    async def _run(self) -> None:
        await asyncio.sleep(random.uniform(0, LOOK_S))  # noqa: S311 - not all replicas at once
        while True:
            pause = LOOK_S
            try:
                if await self.forget(now_ms()):
                    pause = REST_S
            except DatabaseUnavailable:
                pass  # which the outbox tells
            except Exception:  # what is not forgotten now is later
                log.exception("cannot delete old records")
            await asyncio.sleep(pause)

    async def forget(self, now_ms: int) -> bool:
        """Delete a part; whether there may be more. Raises DatabaseUnavailable."""
        more = False
        for kind in self._kinds:  # each in a transaction of its own, which is short
            async with self._database.writing() as connection:
                more = await kind.purge(connection, now_ms, kind.ms()) or more
        return more
