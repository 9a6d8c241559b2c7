"""What a stream that waits in the queue tells of its place."""

import asyncio
from collections import Counter
from functools import partial
from typing import Any

import pytest

from fairlane.gateway.api.answering import QUEUE_CHUNK_S, TaskStream
from fairlane.queues.tasks import Place
from fairlane.streaming.events import Event, compose, fragment_done, queued_event
from fairlane.streaming.results import Results
from fairlane.streaming.views import ChatStreamView, MessagesStreamView, ResponsesStreamView, TaskInfo

INFO = TaskInfo("0191f0aa-1111-8222-8333-444455556666", "m", 1_763_690_000, "openaiLike")


def notice(position: int) -> Any:
    return queued_event(INFO.task_id, 1, Place(position, 900, 500, 2000))


@pytest.mark.parametrize("view", [ChatStreamView(INFO), MessagesStreamView(INFO)])
def test_each_new_place_is_told(view: Any) -> None:
    shown = TaskStream(view, lambda: 7.0, Place(3, 900, 500, 2000))
    for position in (3, 2, 1):
        assert b'"queuePosition":%d,' % position in shown.notice(notice(position))


def test_a_response_which_repeats_much_tells_few_of_its_places() -> None:
    now = 100.0
    shown = TaskStream(ResponsesStreamView(INFO, b'{"store":false}'), lambda: now, Place(9, 900, 500, 2000))
    assert shown.notice(notice(9)).count(b"event: response.queued") == 2  # it is opened, too
    told = []
    for position in range(8, 0, -1):
        now += 2.0
        told.append(shown.notice(notice(position)))
    assert [position for position, frame in zip(range(8, 0, -1), told, strict=True) if frame] == [6, 3]
    now += QUEUE_CHUNK_S
    assert b'"queuePosition":1,' in shown.idle()


DONE = Event(
    7,
    2,
    "done",
    compose(INFO.task_id, 1, fragment_done(b'{"content":"%b"}' % (b"x" * 200_000), None, "stop")),
)
START = Event(7, 1, "start", b"{}")
NO_LOG: Any = None


@pytest.mark.parametrize(
    "make",
    [
        partial(ChatStreamView, INFO, include_usage=True),
        partial(MessagesStreamView, INFO),
        partial(ResponsesStreamView, INFO, b'{"store":false}'),
    ],
    ids=["chat", "messages", "responses"],
)
def test_those_who_saw_the_same_share_what_is_drawn_of_a_large_end(make: Any) -> None:
    """Each reads what it would have read alone, whatever it was told beside the events."""
    drawn = Counter[str]()

    def read(beside: str, results: Results | None) -> Any:
        view = make()
        feed, view.feed = view.feed, lambda event: (drawn.update([event.type]), feed(event))[1]
        share = None if results is None else partial(results.drawn, INFO.task_id)
        shown = TaskStream(view, lambda: 7.0, Place(3, 900, 500, 2000), share)
        parts = [shown.notice(notice(3)) if step == "q" else shown.open() for step in beside]
        parts += [shown.feed(START), shown.feed(DONE)]
        return shown, b"".join(parts)

    async def end(shown: TaskStream) -> bytes:
        async with shown.ending() as parts:
            return b"".join(parts)

    async def work() -> None:
        results = Results(NO_LOG, NO_LOG)
        alone = {beside: read(beside, None)[1] for beside in ("", "o", "q", "qo", "qq")}
        drawn.clear()
        streams = [(beside, *read(beside, results)) for beside in alone for _ in range(20)]
        assert not drawn["done"]
        ends = await asyncio.gather(*[end(shown) for _, shown, _ in streams])
        assert all(shown.ended and shown.pending is None for _, shown, _ in streams)
        for (beside, _, before), last in zip(streams, ends, strict=True):
            assert before + last == alone[beside]
        assert drawn["done"] <= len(alone)

    asyncio.run(work())
