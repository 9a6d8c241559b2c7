"""Polls the queue positions of tasks with readers here, and shows changes to the readers."""

import asyncio
from typing import NamedTuple

from fairlane.queues.clock import now_ms
from fairlane.queues.errors import StoreError
from fairlane.queues.loops import Periodic
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.tasks import Place
from fairlane.streaming.events import queued_event
from fairlane.streaming.hub import LiveLog

INTERVAL_S = 1.0
PER_ROUND = 500
MIN_WAIT_MS = 1000


def is_news(shown: Place | None, now: Place) -> bool:
    """Return whether readers should see a new place: the position changed, the wait is known now, or it changed by more than a
    quarter (of a second at least: less is noise)."""
    if shown is None or shown.position != now.position or shown.estimating != now.estimating:
        return True
    return abs(now.wait_ms - shown.wait_ms) * 4 > max(shown.wait_ms, MIN_WAIT_MS)


class _Watched(NamedTuple):
    """The place that the readers of a feed were shown, and behind which event their task waits."""

    last: Place | None
    behind: int


class PositionMonitor(Periodic):
    """Polls the queued tasks with readers here, at most PER_ROUND each INTERVAL_S, in turn, and shows news (`is_news`)."""

    name = "queue-positions"
    interval_s = delay_s = INTERVAL_S
    expected = (StoreError,)

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._feeds: dict[LiveLog, _Watched] = {}

    def add(self, feed: LiveLog, known: Place | None = None, behind: int = 0) -> None:
        """Watch a feed until its task starts. `known`: the place that its readers were shown. `behind`: in a chain, the number of
        the event that says that it waits for its next stage."""
        watched = self._feeds.get(feed)
        if watched is None or watched.behind < behind:
            self._feeds[feed] = _Watched(known, behind)

    def discard(self, feed: LiveLog) -> None:
        self._feeds.pop(feed, None)

    async def step(self) -> None:
        for feed, watched in list(self._feeds.items()):
            if feed.top > watched.behind or feed.lost or not feed.readers:
                self.discard(feed)
        watched_now = list(self._feeds)[:PER_ROUND]
        records = await asyncio.gather(*(self._scheduler.position(feed.task_id) for feed in watched_now))
        for feed, record in zip(watched_now, records, strict=True):
            if feed not in self._feeds:
                continue
            last, behind = self._feeds.pop(feed)
            if record is None or record.place.position == 0 or feed.top > behind:
                continue
            news = is_news(last, record.place)
            self._feeds[feed] = _Watched(record.place if news else last, behind)  # to the end of the rotation
            if news:
                feed.show(queued_event(feed.task_id, now_ms(), record.place))
