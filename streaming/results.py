"""The results that are made of logs: what a `done` event leaves to its reader where the log holds the output as chunks.

Readers of a stream do not add up what passes: the one who comes to the end asks here. The log is read once for all who ask at the
same time, and they share what is made of it; only a few logs are read at once, page by page.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from weakref import WeakValueDictionary

from fairlane.streaming.events import Event
from fairlane.streaming.hub import Lost
from fairlane.streaming.views.result import ResultFold
from fairlane.streaming.views.task import TaskInfo

AT_ONCE = 4


class Result:
    """A result as JSON, shared by all who hold it."""

    __slots__ = ("__weakref__", "json")

    def __init__(self, json: bytes) -> None:
        self.json = json


class Results:
    """Makes results. `page` reads a part of a task's log behind an event, as `Hub.page`."""

    def __init__(self, page: Callable[[str, int, int], Awaitable[list[Event]]]) -> None:
        self._page = page
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._making: dict[str, asyncio.Task[Result]] = {}
        self._made: WeakValueDictionary[str, Result] = WeakValueDictionary()

    async def of(self, info: TaskInfo) -> Result:
        """The result of a task whose log has its terminal event. It is kept while anybody holds it.

        Raises Lost when the log is not whole any more, and StoreError.
        """
        made = self._made.get(info.task_id)
        if made is not None:
            return made
        task = self._making.get(info.task_id)
        if task is None:
            task = self._making[info.task_id] = asyncio.create_task(self._make(info), name="make-result")
            task.add_done_callback(lambda done: self._on_made(info.task_id, done))
        return await asyncio.shield(task)  # who leaves takes it from nobody else

    async def close(self) -> None:
        """Give up what is being made."""
        tasks = list(self._making.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _make(self, info: TaskInfo) -> Result:
        fold = ResultFold(info)
        events = await self._page(info.task_id, 0, 0)
        # most logs are one page, and wait for nobody
        async with contextlib.nullcontext() if _whole(events) else self._turns:
            while True:
                for event in events:
                    fold.feed(event)
                if _whole(events):
                    break
                last = events[-1] if events else None
                if last is None:
                    raise Lost
                events = await self._page(info.task_id, last.epoch, last.seq)
        made = self._made[info.task_id] = Result(fold.result_json())
        return made

    def _on_made(self, task_id: str, task: "asyncio.Task[Result]") -> None:
        del self._making[task_id]
        if not task.cancelled():
            task.exception()  # who asked is told; it may be gone


def _whole(events: list[Event]) -> bool:
    return bool(events) and events[-1].terminal
