"""Turns at what only a few may do at once."""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator

Caller = object
"""Whatever names one: those who are equal are one and the same."""


class Turns:
    """At most so many at once, and callers in turns: who asks often waits for himself."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._lines: dict[Caller, deque[asyncio.Future[None]]] = {}

    @property
    def free(self) -> int:
        """How many more could have their turn at once."""
        return self._free

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


class GroupedTurns:
    """One at a time: groups in turns, and in each group its callers. A group of many has no more turns than one of few."""

    def __init__(self) -> None:
        self._groups = Turns(1)
        self._inside: dict[Caller, Turns] = {}
        self._members: Counter[Caller] = Counter()
        """Callers of a group who wait or have their turn; it is forgotten with the last one."""

    @property
    def taken(self) -> bool:
        """Whether somebody has a turn."""
        return not self._groups.free

    @contextlib.asynccontextmanager
    async def of(self, group: Caller, caller: Caller) -> AsyncIterator[None]:
        """Wait for a turn, and give it back at the end."""
        inside = self._inside.setdefault(group, Turns(1))
        self._members[group] += 1
        try:
            async with inside.of(caller), self._groups.of(group):
                yield
        finally:
            self._members[group] -= 1
            if not self._members[group]:
                del self._members[group], self._inside[group]
