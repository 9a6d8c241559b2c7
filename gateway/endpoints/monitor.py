"""Endpoints that are added at run time, in the memory of each process.

It checks the version of all endpoints a few times a second and reads them if it has changed. So a change applies everywhere
within a second, without messages between replicas, and immediately where it was made. They stay if the database is unavailable.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.endpoints.store import EndpointStore, StoredEndpoints
from fairlane.queues.loops import Periodic

LOOK_S = 0.3
LAST_S = 1.0
"""How long `close` waits for a read under way."""


class EndpointMonitor(Periodic):
    """See the module. `start` it, `close` it."""

    name = "endpoints"
    interval_s = delay_s = LOOK_S
    expected = (DatabaseUnavailable,)

    def __init__(self, store: EndpointStore, take: Callable[[StoredEndpoints], Awaitable[None]]) -> None:
        """`take`: applies all endpoints here, whenever one has changed."""
        self._store = store
        self._take = take
        self.known = StoredEndpoints()
        """The endpoints that this process applies."""
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Read them, and begin to check. Raise DatabaseUnavailable."""
        await self.read()
        super().start()

    async def close(self) -> None:
        """Stop. A read under way has LAST_S to finish: a cancelled one may leave a connection behind."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_S):
                await self._turn.acquire()  # never released: nothing is read any more
        await super().close()

    async def read(self) -> StoredEndpoints:
        """Apply what has changed; return all endpoints as they are now. Raise DatabaseUnavailable."""
        async with self._turn:  # so that no older answer arrives after a newer one
            if not self.known.version or await self._store.version() != self.known.version:
                known = await self._store.all()
                await self._take(known)
                self.known = known  # not before: a take that failed is repeated
            return self.known

    async def step(self) -> None:
        """Apply what has changed."""
        await self.read()
