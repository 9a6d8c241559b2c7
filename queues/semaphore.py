"""A semaphore that is fair between keys."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Hashable


class FairSemaphore:
    """At most `limit` holders at a time. Keys take turns, and one key's waiters are served first in, first out."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiters: dict[Hashable, deque[asyncio.Future[None]]] = {}

    @contextlib.asynccontextmanager
    async def hold(self, key: Hashable) -> AsyncIterator[None]:
        """Wait for a place, and release it at the end of the block."""
        await self._acquire(key)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, key: Hashable) -> None:
        if self._free:
            self._free -= 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(key, deque()).append(place)
        try:
            await place
        except BaseException:
            if place.cancelled():
                self._remove(key, place)
            else:
                self._release()  # it was granted in the same moment
            raise

    def _remove(self, key: Hashable, place: "asyncio.Future[None]") -> None:
        waiters = self._waiters.get(key)
        if waiters is not None and place in waiters:
            waiters.remove(place)
            if not waiters:
                del self._waiters[key]

    def _release(self) -> None:
        while self._waiters:
            key = next(iter(self._waiters))
            waiters = self._waiters.pop(key)
            place = waiters.popleft()
            if waiters:
                self._waiters[key] = waiters  # behind all other keys
            if not place.done():
                place.set_result(None)
                return
        self._free += 1
