"""How tasks ended, read from their logs, and the results that are made of them: what a `done` event leaves to its reader where
the log holds the output as chunks.

Readers of a stream do not add up what passes: the one who comes to the end asks here. What was asked for is read once for all who
ask at the same time, and they share what comes of it, as a result may be large; only a few logs are read at once, page by page,
users in turns.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from fairlane.queues.semaphore import FairSemaphore
from fairlane.streaming.events import Event
from fairlane.streaming.hub import Lost
from fairlane.streaming.shared import Shared
from fairlane.streaming.views.result import ResultView
from fairlane.streaming.views.task import TaskInfo

AT_ONCE = 4
LARGE = 256 * 1024
"""From a log of so many bytes on its result is made in a thread: others run meanwhile."""


class Result:
    """A result as JSON, shared by all who hold it."""

    __slots__ = ("__weakref__", "json")

    def __init__(self, json: bytes) -> None:
        self.json = json


View = TypeVar("View", bound=ResultView)


class Results:
    """Reads ends and makes results. `page` reads a part of a log behind an event, as `Hub.page`; `last` its newest event."""

    def __init__(
        self,
        page: Callable[[str, int, int], Awaitable[list[Event]]],
        last: Callable[[str], Awaitable[Event | None]],
    ) -> None:
        self._page = page
        self._last = last
        self._semaphore = FairSemaphore(AT_ONCE)
        self._results: Shared[Result] = Shared()
        self._ends: Shared[ResultView] = Shared()

    async def end(self, info: TaskInfo) -> ResultView:
        """What the terminal event of a task that has ended says. Raises Lost when the log is gone, and StoreError."""
        return await self._ends.get(info.task_id, partial(self._read_end, info))

    async def of(self, info: TaskInfo) -> Result:
        """The result of a task whose log has its terminal event. It is kept while anybody holds it.

        Raises Lost when the log is not whole any more, and StoreError.
        """
        return await self._results.get(info.task_id, partial(self._make, info))

    async def shown(
        self, info: TaskInfo, make_view: Callable[[TaskInfo], View], show: Callable[[View], bytes]
    ) -> Result:
        """The same as the call that submitted it shows it: all who ask for it of one task show it alike. Raises likewise, and
        what `show` raises."""
        return await self._results.get(f"{info.task_id} shown", partial(self._show, info, make_view, show))

    async def drawn(self, task_id: str, beside: str, draw: Callable[[], bytes]) -> Result:
        """The end of a task's stream, shared by all who read the stream, and saw the same `beside` its events: they asked for the
        same. `draw` makes it, in a thread; raises what that raises."""
        return await self._results.get(f"{task_id} drawn{beside}", partial(self._draw, draw))

    async def close(self) -> None:
        """Give up what is being read and made."""
        await self._results.close()
        await self._ends.close()

    @staticmethod
    async def _draw(draw: Callable[[], bytes]) -> Result:
        return Result(await asyncio.to_thread(draw))

    async def _read_end(self, info: TaskInfo) -> ResultView:
        async with self._semaphore.hold(info.user):
            last = await self._last(info.task_id)
        if last is None:
            raise Lost
        view = ResultView(info)
        view.feed(last)
        return view

    async def _make(self, info: TaskInfo) -> Result:
        return await self._show(info, ResultView, ResultView.result_json)

    async def _show(
        self, info: TaskInfo, make_view: Callable[[TaskInfo], View], show: Callable[[View], bytes]
    ) -> Result:
        view, size = make_view(info), 0
        events = await self._page(info.task_id, 0, 0)
        # most logs are one page, and wait for nobody
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
                events = await self._page(info.task_id, last.epoch, last.seq)
        return Result(show(view) if size < LARGE else await asyncio.to_thread(show, view))


def _whole(events: list[Event]) -> bool:
    return bool(events) and events[-1].terminal
