"""How tasks ended, read from their logs, and the results that are made of them.

A `done` event has no result where the log holds the output as chunks: readers at the end of a stream ask here. Only a few
logs are read at the same time, page by page.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

from fairlane.queues.semaphore import FairSemaphore
from fairlane.streaming.events import Event
from fairlane.streaming.hub import Hub, Lost
from fairlane.streaming.views.result import ResultView
from fairlane.streaming.views.task import TaskInfo

MAX_CONCURRENT = 4
LARGE = 256 * 1024
"""The result of a log with this many bytes or more is made in a thread."""

View = TypeVar("View", bound=ResultView)
Shown = TypeVar("Shown")


class Results:
    """Reads ends, and makes results of whole logs."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._semaphore = FairSemaphore(MAX_CONCURRENT)

    async def end(self, info: TaskInfo) -> ResultView:
        """Return the view of a task's terminal event. Raise Lost when the log is gone, and StoreError."""
        last = await self._hub.last(info.task_id)
        if last is None:
            raise Lost
        view = ResultView(info)
        view.feed(last)
        return view

    async def of(self, info: TaskInfo) -> bytes:
        """Return the result, as JSON, of a task whose log has its terminal event.

        Raise Lost when the log is not whole any more, and StoreError.
        """
        return await self.shown(info, ResultView, ResultView.result_json)

    async def shown(
        self, info: TaskInfo, make_view: Callable[[TaskInfo], View], show: Callable[[View], Shown]
    ) -> Shown:
        """Return the result as `show` makes it of a view that was fed the whole log. Raise as `of` does, and as `show` does."""
        view, size = make_view(info), 0
        events = await self._hub.page(info.task_id, 0, 0)
        # most logs are one page and need not wait
        async with contextlib.nullcontext() if _whole(events) else self._semaphore.hold(info.user):
            while True:
                for event in events:
                    view.feed(event)
                    size += len(event.data)
                if _whole(events):
                    break
                last = events[-1] if events else None
                if last is None:
                    raise Lost
                events = await self._hub.page(info.task_id, last.epoch, last.seq)
        return show(view) if size < LARGE else await asyncio.to_thread(show, view)


def _whole(events: list[Event]) -> bool:
    return bool(events) and events[-1].terminal
