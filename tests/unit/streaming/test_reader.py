"""Readers of a feed: who waits for one in a loop holds up nobody."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fairlane.queues.errors import StoreError
from fairlane.queues.tasks import Entry
from fairlane.streaming.events import Event, progress_event
from fairlane.streaming.hub import KEEP_EVENTS, MAX_CONCURRENT_PAGES, Hub, Interrupted, LiveLog, Reader

NO_STORE: Any = None


def in_loop(work: Callable[[Hub, LiveLog], Awaitable[None]]) -> None:
    """Run a test of a feed that needs no store: everything is in memory."""

    async def run() -> None:
        hub = Hub(NO_STORE)
        await work(hub, hub.open("t"))

    asyncio.run(run())


def events(*seqs: int) -> list[Event]:
    return [Event(7, seq, "chunk", b"{}") for seq in seqs]


def notice(pct: int) -> Event:
    return progress_event("t", 1, pct)


def test_a_reader_that_returns_nothing_has_let_others_run() -> None:
    async def work(hub: Hub, feed: LiveLog) -> None:
        reader = Reader(hub, feed, ephemerals=True)
        ran = []
        for number in range(3):
            hub.loop.call_soon(ran.append, number)
            assert await reader.next(0.0) == []
            assert ran[-1] == number

    in_loop(work)


def test_a_notice_is_returned_once_behind_the_events_and_only_to_those_who_want_it() -> None:
    async def work(hub: Hub, feed: LiveLog) -> None:
        wants, does_not = Reader(hub, feed, ephemerals=True), Reader(hub, feed)
        for pct in range(5):
            feed.show(notice(pct))
        feed.accept(events(1, 2))
        assert await wants.next(0.0) == [*events(1, 2), notice(4)]
        assert await wants.next(0.0) == []
        assert await does_not.next(0.0) == events(1, 2)
        feed.show(notice(5))
        assert await does_not.next(0.0) == []
        assert await wants.next(0.0) == [notice(5)]

    in_loop(work)


def test_an_interruption_is_raised_when_all_events_have_been_read_each_time_again() -> None:
    async def work(hub: Hub, feed: LiveLog) -> None:
        reader = Reader(hub, feed)
        feed.accept(events(1))
        reader.interrupt()
        assert await reader.next(60) == events(1)
        for _ in range(2):
            with pytest.raises(Interrupted):
                await reader.next(60)
        feed.accept(events(2))
        assert await reader.next(60) == events(2)

    in_loop(work)


def test_what_comes_while_a_reader_waits_is_offered_without_waking_it() -> None:
    async def work(hub: Hub, feed: LiveLog) -> None:
        reader = Reader(hub, feed, ephemerals=True)
        taken: list[Event] = []

        def take(found: list[Event]) -> int:
            if found[-1].seq == 4:
                return 0
            taken.extend(found)
            return len(found)

        waiting = asyncio.ensure_future(reader.next(60, take))
        await asyncio.sleep(0)
        feed.accept(events(1, 2))
        assert (taken, reader.seq) == (events(1, 2), 2)
        feed.accept(events(3))
        await asyncio.sleep(0)
        assert not waiting.done()
        feed.accept(events(4))
        assert await waiting == events(4)
        assert taken == events(1, 2, 3)
        waiting = asyncio.ensure_future(reader.next(60, take))
        await asyncio.sleep(0)
        feed.show(notice(1))
        assert await waiting == [notice(1)]

    in_loop(work)


def test_what_is_taken_where_it_comes_wakes_nobody_and_may_let_the_wait_last_longer() -> None:
    async def work(hub: Hub, feed: LiveLog) -> None:
        now = 100.0
        hub.time = lambda: now
        reader, taken = Reader(hub, feed), []

        def take(some: list[Event]) -> int:
            taken.extend(some)
            reader.wait(1000.0)
            return len(some)

        waits = asyncio.ensure_future(reader.next(0.01, take))
        await asyncio.sleep(0)
        feed.accept(events(1))
        feed.accept(events(2))
        now += 900
        await asyncio.sleep(0.05)  # its first time is over
        assert not waits.done()
        assert taken == events(1, 2)
        now += 200
        feed.wake()
        assert await waits == []

    in_loop(work)


def test_what_is_left_of_a_batch_waits_for_whoever_reads() -> None:
    async def work(hub: Hub, feed: LiveLog) -> None:
        reader = Reader(hub, feed)
        waits = asyncio.ensure_future(reader.next(5.0, lambda _: 2))
        await asyncio.sleep(0)
        feed.accept(events(1, 2, 3, 4))
        feed.accept(events(5))
        assert await waits == events(3, 4, 5)

    in_loop(work)


def test_the_events_behind_each_place_are_those_of_the_log_as_far_as_they_are_kept() -> None:
    async def work(hub: Hub, feed: LiveLog) -> None:
        last = KEEP_EVENTS + 3
        feed.accept(events(*range(1, last + 1)))
        for seq in range(last + 2):
            kept = seq >= last - KEEP_EVENTS
            assert feed.after(seq) == (events(*range(seq + 1, last + 1)) if kept else None)

    in_loop(work)


# ---- pages of the log ----------


class Logs:
    """A store of logs: it notes what it is asked for, and answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: list[asyncio.Future[list[Entry]]] = []

    async def page(self, task_id: str, after: str, most: int, *, held: bool) -> list[Entry]:
        self.asked.append(f"{task_id} {after}")
        answer: asyncio.Future[list[Entry]] = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        return await answer

    def answer(self, *seqs: int) -> None:
        """Answer what was asked first."""
        self.answers.pop(0).set_result([Entry(7, seq, "chunk", b"{}") for seq in seqs])


async def idle() -> None:
    """Let everything run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


def reading(hub: Hub, task_id: str, user: str = "") -> "asyncio.Task[list[Event]]":
    """A reader of a task whose log lies in the store alone."""
    feed = hub.open(task_id, user)
    feed.skip_to(7, 1000, ended=True)
    return asyncio.ensure_future(Reader(hub, feed).next(60))


def with_logs(work: Callable[[Hub, Logs], Awaitable[None]]) -> None:
    async def run() -> None:
        store: Any = Logs()
        hub = Hub(store)
        await work(hub, store)
        await hub.close()

    asyncio.run(run())


def test_who_reads_many_logs_holds_up_nobody_who_reads_one() -> None:
    async def work(hub: Hub, logs: Logs) -> None:
        many = [reading(hub, f"many-{number}", "ada") for number in range(100)]
        one = reading(hub, "one", "bob")
        await idle()
        assert len(logs.asked) == MAX_CONCURRENT_PAGES
        for _ in range(2):
            logs.answer(1)
            await idle()
        assert "one -" in logs.asked
        for task in (*many, one):
            task.cancel()

    with_logs(work)


def test_a_reader_whose_page_did_not_come_asks_again() -> None:
    async def work(hub: Hub, logs: Logs) -> None:
        reader = reading(hub, "t")
        await idle()
        logs.answers.pop().set_exception(StoreError("unavailable", sent=True))
        while not logs.answers:
            await asyncio.sleep(0.01)
        logs.answer(1)
        assert await reader == events(1)
        assert logs.asked == ["t -"] * 2

    with_logs(work)
