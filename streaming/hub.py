"""The readers of one replica. A reader is a cursor and a wake-up; the events lie once per task, in its feed.

A feed holds the newest events of a task without a gap. They come from the local writer (acknowledged
appends), from the replica's channel, or from the log itself. An event that does not follow the last one makes
the feed read the log once; feeds that stay silent are compared with the log now and then, so that a lost
message delays a reader but never loses it.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence

import structlog

from fairlane.queues.errors import StoreError
from fairlane.queues.loops import Periodic, cancel_and_wait
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.semaphore import FairSemaphore
from fairlane.queues.tasks import TERMINAL as TERMINAL_STATES
from fairlane.queues.tasks import Entry, Record
from fairlane.streaming.events import TERMINAL, Event, parse_event_id
from fairlane.streaming.timer_wheel import TimerWheel

log = structlog.get_logger("fairlane.streaming")

KEEP_EVENTS = 256
KEEP_BYTES = 64 * 1024
SILENT_S = 5.0
PAGE_RETRY_S = 0.2
TICK_S = 0.25
"""How exact long waits of readers are."""
PRECISE_S = 1.0
"""Shorter waits have timers of their own."""
KEEP_ALIVE_S = 5.0
MAX_COMPARED = 500
MAX_CONCURRENT_PAGES = 4
"""Readings of logs under way: a single event may be large, and what is asked of Redis behind them waits."""
PAGE_BYTES = 128 * 1024
"""What a reader has in hand at most, about, and an event more: it may stop reading."""


Take = Callable[[list[Event]], int]
"""Takes events as they come: how many of them, from the first on. See `Reader.next`."""
NO_EVENTS: deque[Event] = deque()
"""Stands for the events of every feed that has none, which are most of those that wait. Never appended to."""


class Lost(Exception):
    """The log does not hold what the reader needs: it expired, or a crash of the store took it."""


class Interrupted(Exception):
    """There is something else to attend to (see `Reader.interrupt`), and no event is at hand."""


class LiveLog:
    """What this replica knows of one task's log: the newest events, contiguous in `seq`."""

    __slots__ = (
        "_bytes",
        "_hub",
        "_waiting",
        "begun",
        "deadline",
        "ended",
        "ephemeral",
        "ephemeral_epoch",
        "ephemeral_number",
        "events",
        "fetching",
        "keep_alive",
        "known_top",
        "last_seen",
        "lost",
        "readers",
        "registered",
        "task_id",
        "top",
        "top_epoch",
        "user",
    )

    def __init__(self, hub: "Hub", task_id: str, user: str) -> None:
        self._hub = hub
        self._bytes = 0
        self._waiting: dict[Reader, None] = {}
        self.task_id = task_id
        self.user = user
        """The task's user; empty as long as it is not known."""
        self.events: deque[Event] = NO_EVENTS
        self.top = 0
        self.top_epoch = 0
        self.known_top = 0
        self.registered = True
        self.begun = True
        """Whether there is a log: not before its task is submitted."""
        self.ended = False
        self.lost = False
        self.ephemeral: Event | None = None
        self.ephemeral_number = 0
        self.ephemeral_epoch = 0
        """Of the attempt that it is about; 0: not known."""
        self.readers = 0
        self.keep_alive = 0
        self.last_seen = hub.time()
        self.deadline = math.inf
        """When the task ends at the latest, for those that follow it (loop time)."""
        self.fetching: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """The task has been submitted: its log is there."""
        self.begun = True
        self.last_seen = self._hub.time()

    def accept(self, events: Sequence[Event], *, follows: bool = False) -> None:
        """Take `events`, neighbours in the log, from wherever: known ones are dropped, a gap is filled from the log.

        `follows`: the log was seen to hold what is known here, and these behind it.
        1 The next event of the same attempt follows what is known, and so does one whose neighbour before it is known. 2 The
        first one of another attempt may follow other events at the places that are known here, so the log is asked,
        as for a gap. 3 An event at a known place that is not the known one means that the store has lost the end of the log
        and others replaced it: what readers here have seen is not what happened, and the feed is `lost`.
        """
        top = self.top
        follows = follows or not top
        for event in events:
            if event.seq == top + 1 and (follows or event.epoch == self.top_epoch):  # 1
                if self.events is NO_EVENTS:
                    self.events = deque()
                self.events.append(event)
                self._bytes += len(event.data)
                top = event.seq
                self.top_epoch = event.epoch
                if event.type in TERMINAL:
                    self.ended = True
                follows = True
            elif event.seq > top:  # 2
                self.catch_up(event.seq)
                break
            elif self._contradicts(event, top):  # 3
                self.invalidate()
                break
            else:
                follows = event.seq == top
        if top != self.top:
            self.top = top
            self.last_seen = self._hub.time()
            while len(self.events) > KEEP_EVENTS or (self._bytes > KEEP_BYTES and len(self.events) > 1):
                self._bytes -= len(self.events.popleft().data)
            self.wake()

    def _contradicts(self, event: Event, top: int) -> bool:
        """Whether an event that is not new differs from the one known at its place."""
        back = top - event.seq
        if back < len(self.events):
            return self.events[-1 - back] != event
        if not back:
            return event.epoch != self.top_epoch
        return event.epoch > self.top_epoch or (event.type in TERMINAL and not self.ended)

    def agrees(self, epoch: int, seq: int) -> bool:
        """Whether an event of the log may be what is known here of its place."""
        back = self.top - seq
        if back == 0:
            return not seq or epoch == self.top_epoch
        return not 0 < back < len(self.events) or self.events[-1 - back].epoch == epoch

    def catch_up(self, seq: int) -> None:
        """The log is known to reach `seq` (0 = further than the feed): bring the feed up to it."""
        self.known_top = max(self.known_top, seq)
        self._hub.fetch(self)

    def skip_to(self, epoch: int, top: int, ended: bool) -> None:
        """The log is longer than what is known here: readers take what lies behind from the log itself."""
        self.events.clear()
        self._bytes = 0
        self.top, self.top_epoch, self.ended = top, epoch, ended
        self.wake()

    def invalidate(self) -> None:
        """Give up: every reader here must start over. New readers get another feed."""
        self.lost = True
        self._hub.drop(self)
        self.wake()

    def show(self, event: Event) -> None:
        """Show an event that is not logged to the current readers; only the latest is kept."""
        self.ephemeral = event
        self.ephemeral_number += 1
        self.ephemeral_epoch = self.top_epoch
        self.wake()

    def ephemeral_for(self, seq: int) -> Event | None:
        """The event that is not logged, if it is new to a reader that has read all before it, up to `seq`.

        What an attempt before the newest one said is not shown any more.
        """
        read = seq >= max(self.top, self.known_top)
        return self.ephemeral if read and self.ephemeral_epoch in (0, self.top_epoch) else None

    def wake(self) -> None:
        """Let the waiting readers look again."""
        for reader in list(self._waiting):
            reader.woken()

    def after(self, seq: int) -> list[Event] | None:
        """The events behind `seq`; None when the oldest of them are kept only in the log."""
        if seq >= self.top:
            return []
        count, held = self.top - seq, len(self.events)
        if count > held:
            return None
        if count == 1:
            return [self.events[-1]]
        if count == held:
            return list(self.events)
        return [self.events[i] for i in range(held - count, held)]

    def add_waiter(self, reader: "Reader") -> None:
        """Wake a reader when something may have changed, until it is forgotten."""
        self._waiting[reader] = None

    def remove_waiter(self, reader: "Reader") -> None:
        """This one waits no more."""
        self._waiting.pop(reader, None)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Reader:
    """One reading of one task's log from a cursor on. Its creator opens and releases the feed.

    `ephemerals`: it is shown what is not logged (`queued`, `progress`) too.
    """

    __slots__ = (
        "_broken",
        "_deadline",
        "_held",
        "_hub",
        "_interrupted",
        "_last_ephemeral",
        "_show_ephemeral",
        "_take",
        "_timeout",
        "_waiter",
        "epoch",
        "feed",
        "seq",
    )

    def __init__(
        self, hub: "Hub", feed: LiveLog, epoch: int = 0, seq: int = 0, *, ephemerals: bool = False
    ) -> None:
        self._hub = hub
        self._show_ephemeral = ephemerals
        self._last_ephemeral = 0
        self._interrupted = False
        self.feed = feed
        self.epoch = epoch
        self.seq = seq
        self._held = True
        self._waiter: asyncio.Future[None] | None = None
        self._take: Take | None = None
        self._timeout = self._deadline = 0.0
        self._broken: Exception | None = None

    def begin_behind(self, epoch: int, seq: int, *, held: bool = True) -> None:
        """Go to a place in the log. `held`: behind an event that the log must hold, else there is a gap."""
        self.epoch, self.seq, self._held = epoch, seq, held

    async def next(self, timeout: float, take: "Take | None" = None) -> list[Event]:
        """The events behind the cursor, which moves on, at most a page of them; [] after `timeout` seconds without any.

        Events that come while this waits are offered to `take` first, as they come and without waking the caller, unless
        it leaves some; what it takes is read, and the time begins again. What it raises is raised here.

        Behind all of them comes the newest event that is not logged, if it is new to a reader that wants it. A loop of calls
        blocks no other task: if it returns [] it has let others run, and all other results are consumed. While Redis does not
        answer it waits, also for events that only the log has. Raises Lost, and Interrupted when there is nothing more to return.
        """
        hub = self._hub
        self._timeout = timeout
        self._deadline = hub.time() + timeout
        suspended = False
        while True:
            pause = self._deadline - hub.time()
            events = self.feed.after(self.seq)
            if events is None:
                try:
                    events = await hub.page(
                        self.feed.task_id, self.epoch, self.seq, held=self._held, user=self.feed.user
                    )
                except StoreError:
                    pause = min(pause, PAGE_RETRY_S)
                else:
                    if not events or events[0].seq != self.seq + 1:
                        raise Lost
            if events:
                self.epoch, self.seq, self._held = events[-1].epoch, events[-1].seq, True
            ephemeral = None
            if self._show_ephemeral and self.feed.ephemeral_number != self._last_ephemeral:
                ephemeral = self.feed.ephemeral_for(self.seq)
            if ephemeral is not None:
                self._last_ephemeral = self.feed.ephemeral_number
                events = [*(events or ()), ephemeral]
            if events:
                return events
            if self.feed.lost:
                raise Lost
            if self._interrupted:
                raise Interrupted
            if pause <= 0:
                if not suspended:
                    await asyncio.sleep(0)
                return []
            self._take = take
            waiter = self._waiter = hub.loop.create_future()
            self.feed.add_waiter(self)
            due = hub.loop.time() + pause
            timer = hub.loop.call_at(due, _resolve, waiter) if pause < PRECISE_S else None
            slot = hub.timers.add(due, waiter) if timer is None else 0
            try:
                await waiter  # here: another frame would cost each quiet stream 300 bytes
            finally:
                self._take = self._waiter = None
                self.feed.remove_waiter(self)
                if timer is not None:
                    timer.cancel()
                else:
                    hub.timers.discard(slot, waiter)
            if self._broken is not None:
                raise self._broken
            suspended = True

    def wait(self, timeout: float) -> None:
        """Let the wait under way, which `take` continues, last so long without events."""
        self._timeout = timeout

    def woken(self) -> None:
        """The feed's: something may have changed."""
        feed, take = self.feed, self._take
        shows = (
            self._show_ephemeral
            and feed.ephemeral_number != self._last_ephemeral
            and feed.ephemeral_for(feed.top) is not None
        )
        if take is not None and not (shows or feed.lost or self._interrupted):
            events = feed.after(self.seq)
            if events:
                try:
                    taken = take(events)
                except Exception as error:  # the reader raises it; the writer and the other readers continue
                    self._broken, taken = error, 0
                if taken:
                    last = events[taken - 1]
                    self.epoch, self.seq, self._held = last.epoch, last.seq, True
                    self._deadline = self._hub.time() + self._timeout
                    if taken == len(events):
                        return
        self._take = None  # the caller looks first
        if self._waiter is not None:
            _resolve(self._waiter)

    def interrupt(self) -> None:
        """Let `next` raise Interrupted as soon as it has no more events, now and from now on."""
        self._interrupted = True
        self.feed.wake()


class Hub(Periodic):
    """All feeds of a replica. `deliver` is called by local writers, `on_message` by the channel."""

    name = "hub-check"
    interval_s = SILENT_S / 2
    expected = (StoreError,)

    def __init__(self, scheduler: Scheduler, *, keep_alive_s: float = KEEP_ALIVE_S) -> None:
        """`keep_alive_s`: how often readers' interest is renewed; several times within the linger."""
        self._keep_alive_s = keep_alive_s
        self._scheduler = scheduler
        self._feeds: dict[str, LiveLog] = {}
        self._semaphore = FairSemaphore(MAX_CONCURRENT_PAGES)
        self.silent_s = SILENT_S
        self.loop = asyncio.get_running_loop()
        self.timers: TimerWheel[asyncio.Future[None]] = TimerWheel(self.loop, TICK_S, _resolve, early=False)
        self.time: Callable[[], float] = self.loop.time
        self.wake: asyncio.Event = asyncio.Event()
        self._renewed_at = 0.0

    async def close(self) -> None:
        """Stop checking; readers are woken a last time and find their feeds as they are."""
        await super().close()
        await cancel_and_wait(*[feed.fetching for feed in self._feeds.values()])
        for feed in self._feeds.values():
            feed.wake()

    def __len__(self) -> int:
        return len(self._feeds)

    @property
    def catching_up(self) -> bool:
        """Whether some feed reads in its log what its readers have not seen."""
        return any(feed.fetching is not None for feed in self._feeds.values())

    def open(self, task_id: str, user: str = "") -> LiveLog:
        """The feed of a task, made if need be; each `open` needs its `release`. `user`: whose task it is, where that is known."""
        feed = self._feeds.get(task_id)
        if feed is None:
            feed = self._feeds[task_id] = LiveLog(self, task_id, user)
        feed.readers += 1
        return feed

    def release(self, feed: LiveLog) -> None:
        feed.readers -= 1
        if feed.readers == 0:
            self.drop(feed)
            if feed.fetching:
                feed.fetching.cancel()

    def drop(self, feed: LiveLog) -> None:
        """Bring nothing more to a feed."""
        if self._feeds.get(feed.task_id) is feed:
            del self._feeds[feed.task_id]

    def read(
        self, task_id: str, *, keep_alive: bool = False, owner: tuple[str, str] | None = None
    ) -> "Subscription":
        """`async with`: follow a task: its record, and a reader that stands before its first event. None when it is unknown, or
        not that of the `owner` (key and user): then nothing has happened to it.

        From here on no event is missed: those up to the record's `top` are in the log, later ones come by themselves.
        """
        return Subscription(self, task_id, keep_alive, owner)

    async def follow(
        self, feed: LiveLog, keep_alive: bool, owner: tuple[str, str] | None
    ) -> tuple[Record, LiveLog] | None:
        """Bring a feed that was opened up to its task's record; another one where readers here have seen what is not in the log
        any more: then the first is released.
        """
        record = await self._scheduler.follow(feed.task_id, keep_alive=keep_alive, owner=owner)
        if record is None:
            return None
        top = record.number("top")
        epoch, _ = parse_event_id(record.fields.get("end_id") or f"{record.epoch}-{top}")
        if not feed.lost and not feed.agrees(epoch, top):
            feed.invalidate()
        if feed.lost:
            self.release(feed)
            feed = self.open(feed.task_id)
        feed.user = record.fields["user"]
        if (deadline := record.number("deadline")) and not record.fields.get(
            "permit"
        ):  # whose use may take longer
            feed.deadline = self.time() + (deadline - record.now_ms) / 1000
        if top > feed.top:
            feed.skip_to(epoch, top, record.state in TERMINAL_STATES)
        self._show_last(feed, record)
        return record, feed

    def _show_last(self, feed: LiveLog, record: Record) -> None:
        """Show who joins the last progress of the task, unless the feed has one of its attempt."""
        kept = feed.ephemeral is not None and feed.ephemeral.type == "progress"
        if record.progress and not (kept and feed.ephemeral_epoch in (0, feed.top_epoch)):
            feed.show(Event(0, 0, "progress", record.progress))

    def show(self, task_id: str, event: Event) -> None:
        """Show an event that is not logged to the readers of a task here."""
        feed = self._feeds.get(task_id)
        if feed is not None:
            feed.show(event)

    def keeping_alive(self, now: float) -> list[str]:
        """Tasks whose readers here keep them alive and must be renewed now."""
        if now - self._renewed_at < self._keep_alive_s:
            return []
        self._renewed_at = now
        return [feed.task_id for feed in self._feeds.values() if feed.keep_alive and not feed.ended]

    def deliver(self, task_id: str, events: Sequence[Event]) -> None:
        """Acknowledged events of a task whose writer is here."""
        feed = self._feeds.get(task_id)
        if feed is not None:
            feed.accept(events)

    def on_event(self, message: bytes) -> None:
        """A message of the channel: `event`, `event_id` of one too large to publish, or `ephemeral`: not logged."""
        if message.startswith(b"event\n"):
            _, task, event_id, kind, data = message.split(b"\n", 4)
            feed = self._feeds.get(task.decode())
            if feed is not None:
                epoch, _, seq = event_id.partition(b"-")
                feed.accept([Event(int(epoch), int(seq), kind.decode(), data)])
        elif message.startswith(b"ephemeral\n"):
            _, task, kind, data = message.split(b"\n", 3)
            self.show(task.decode(), Event(0, 0, kind.decode(), data))
        else:
            _, task, event_id = message.split(b"\n", 2)
            feed = self._feeds.get(task.decode())
            if feed is not None:
                epoch, _, seq = event_id.partition(b"-")
                if int(seq) > feed.top or int(epoch) != feed.top_epoch:
                    feed.catch_up(int(seq))

    def wake_all(self) -> None:
        """Let every reader look again."""
        for feed in self._feeds.values():
            feed.wake()

    def check_soon(self, *, store_lost: bool = False) -> None:
        """Compare all feeds with their logs now: messages may have been lost.

        `store_lost`: the store was unavailable and may have lost its last second, also the readers here; their interest is to be
        renewed immediately.
        """
        for feed in self._feeds.values():
            feed.last_seen = self.time() - self.silent_s
            if store_lost:
                feed.registered = False
        if store_lost:
            self._renewed_at = 0.0
        self.wake.set()

    async def page(
        self, task_id: str, epoch: int, seq: int, *, held: bool = True, user: str = ""
    ) -> list[Event]:
        """Events behind an event straight from the log, about PAGE_BYTES of them; with `seq` 0 from its beginning. Users
        have their turns at it.

        Raises Lost when the log does not hold that event, unless not `held`: what lies behind it there does not follow what its
        reader has seen.
        """
        after = f"{epoch}-{seq}" if seq else "-"
        async with self._semaphore.hold(user):
            entries = await self._scheduler.page(task_id, after, PAGE_BYTES, held=held)
        if entries is None:
            raise Lost
        return [_event(entry) for entry in entries]

    async def last(self, task_id: str) -> Event | None:
        """The newest event of a task's log."""
        entry = await self._scheduler.last_event(task_id)
        return None if entry is None else _event(entry)

    async def holds(self, feed: LiveLog, epoch: int, seq: int) -> bool:
        """Whether an event is in a feed's log: a reader may have seen what the store lost in a crash."""
        async with self._semaphore.hold(feed.user):
            return await self._scheduler.page(feed.task_id, f"{epoch}-{seq}", 0) is not None

    def fetch(self, feed: LiveLog) -> None:
        """Bring a feed up to its log, once at a time."""
        if feed.fetching is None:
            feed.fetching = asyncio.create_task(self._fetch(feed), name="hub-fetch")

    async def _fetch(self, feed: LiveLog) -> None:
        try:
            delay = 0.05
            while feed.readers and not feed.lost:
                known_top, top = feed.known_top, feed.top
                try:
                    events = await self.page(feed.task_id, feed.top_epoch, top, user=feed.user)
                except StoreError:
                    await asyncio.sleep(delay)
                    delay = min(delay * 2, 1.0)
                    continue
                except Lost:
                    if feed.top == top:
                        feed.invalidate()
                        return
                    continue  # the feed has moved on meanwhile
                if (events and events[0].seq > top + 1) or (not events and known_top > feed.top):
                    feed.invalidate()
                    return
                feed.accept(events, follows=feed.top == top)
                if feed.known_top <= feed.top:
                    return
        except Exception:  # the log cannot be read: its readers raise Lost instead of waiting for ever
            log.exception("cannot read a log", task_id=feed.task_id)
            feed.invalidate()
        finally:
            feed.fetching = None

    async def step(self) -> float:
        """Find lost events: compare the feeds that were silent for a while with their logs, in one round trip."""
        now = self.time()
        silent = [
            f for f in self._feeds.values() if f.begun and not f.ended and now - f.last_seen >= self.silent_s
        ]
        for at in range(0, len(silent), MAX_COMPARED):
            await self._compare(silent[at : at + MAX_COMPARED], now)
        return self.silent_s / 2

    async def _compare(self, feeds: list[LiveLog], now: float) -> None:
        """Bring feeds up to their logs; one whose log is gone or has become shorter is lost.

        A log may be shorter for a while after a crash of the store, until its writer has filled it up again.
        """
        away = [feed for feed in feeds if not feed.registered]
        if away:
            await asyncio.gather(*(self._scheduler.follow(feed.task_id) for feed in away))
            for feed in away:
                feed.registered = True
        tops = await self._scheduler.log_tops([feed.task_id for feed in feeds])
        for feed, found in zip(feeds, tops, strict=True):
            feed.last_seen = now
            if found is None:
                feed.invalidate()
                continue
            state, epoch, top = found
            if top > feed.top:
                feed.catch_up(top)
            elif (
                top
                and not feed.ended
                and ((epoch, top) != (feed.top_epoch, feed.top) or state in TERMINAL_STATES)
            ):
                last = await self._scheduler.last_event(feed.task_id)
                if last is not None:
                    feed.accept([_event(last)])


class Subscription:
    """A task that is followed as long as the block. It keeps the feed and nothing else, nor a generator's frame."""

    __slots__ = ("_feed", "_hub", "_keep_alive", "_owner")

    def __init__(self, hub: Hub, task_id: str, keep_alive: bool, owner: tuple[str, str] | None) -> None:
        self._hub = hub
        self._keep_alive = keep_alive
        self._owner = owner
        self._feed = hub.open(task_id)

    async def __aenter__(self) -> tuple[Record, Reader] | None:
        try:
            found = await self._hub.follow(self._feed, self._keep_alive, self._owner)
        except BaseException:
            self._hub.release(self._feed)
            raise
        if found is None:
            self._keep_alive = False
            return None
        record, self._feed = found
        self._feed.keep_alive += self._keep_alive
        return record, Reader(self._hub, self._feed, ephemerals=True)

    async def __aexit__(self, *_: object) -> None:
        self._feed.keep_alive -= self._keep_alive
        self._hub.release(self._feed)


def _event(entry: Entry) -> Event:
    return Event(entry.epoch, entry.seq, entry.kind, entry.data)
