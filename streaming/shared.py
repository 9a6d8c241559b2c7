"""What is made once for many."""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from fairlane.queues.loops import end_tasks

Made = TypeVar("Made")


class Shared(Generic[Made]):
    """What is made once for all who ask for it, and kept while anybody holds it. `Made` can be referred to weakly."""

    def __init__(self) -> None:
        self._making: dict[Hashable, asyncio.Task[Made]] = {}
        self._made: WeakValueDictionary[Hashable, Made] = WeakValueDictionary()

    async def get(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, Made]]) -> Made:
        """What `make` makes; raises what it raises, for all who wait for it."""
        made = self._made.get(key)
        if made is not None:
            return made
        task = self._making.get(key)
        if task is None:
            task = self._making[key] = asyncio.create_task(self._make(key, make), name="make-shared")
            task.add_done_callback(lambda done: self._on_made(key, done))
        return await asyncio.shield(task)  # who leaves takes it from nobody else

    async def close(self) -> None:
        """Give up what is being made."""
        await end_tasks(*self._making.values())

    async def _make(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, Made]]) -> Made:
        made = self._made[key] = await make()
        return made

    def _on_made(self, key: Hashable, task: "asyncio.Task[Made]") -> None:
        del self._making[key]
        if not task.cancelled():
            task.exception()  # who asked is told; it may be gone
