"""Turns at what only a few may do at once."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

Caller = object
"""Whatever names one: those who are equal are one and the same."""


class Turns:
    """At most so many at once, and callers in turns: who asks often waits for himself."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._lines: dict[Caller, deque[asyncio.Future[None]]] = {}

    @contextlib.asynccontextmanager
    async def of(self, caller: Caller) -> AsyncIterator[None]:
        """Wait for a turn, and give it back at the end."""
        await self.acquire(caller)
        try:
            yield
        finally:
            self.release()

    async def acquire(self, caller: Caller) -> None:
        """Wait for a turn, which ends with `release`."""
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(caller, deque()).append(turn)
        try:
            await turn
        except BaseException:
            if not turn.cancelled():
                self.release()  # it had come
            else:
                self._leave(caller, turn)
            raise

    def _leave(self, caller: Caller, turn: "asyncio.Future[None]") -> None:
        line = self._lines.get(caller)
        if line is not None and turn in line:
            line.remove(turn)
            if not line:
                del self._lines[caller]

    def release(self) -> None:
        """Give a turn back: to the caller who has waited longest for one."""
        while self._lines:
            caller = next(iter(self._lines))
            line = self._lines.pop(caller)
            turn = line.popleft()
            if line:
                self._lines[caller] = line  # behind all others
            if not turn.done():  # else it leaves just now
                turn.set_result(None)
                return
        self._free += 1
