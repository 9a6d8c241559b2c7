"""What a stream that waits in the queue tells of its place."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fairlane.gateway.openai.answers import QUEUE_CHUNK_S, OpenAIStream
from fairlane.queues.tasks import Place
from fairlane.streaming.events import queued_event
from fairlane.streaming.views.chat import ChatStreamView
from fairlane.streaming.views.messages import MessagesStreamView
from fairlane.streaming.views.responses import ResponsesStreamView
from fairlane.streaming.views.task import TaskInfo

INFO = TaskInfo("0191f0aa-1111-8222-8333-444455556666", "m", 1_763_690_000, "openaiLike")


def notice(position: int) -> Any:
    return queued_event(INFO.task_id, 1, Place(position, 900, 500, 2000))


def stream(view: Any, time: Callable[[], float]) -> OpenAIStream:
    settings = SimpleNamespace(tuning=SimpleNamespace(keepalive_ms=15_000))
    tasks: Any = SimpleNamespace(hub=SimpleNamespace(time=time), settings=settings)
    none: Any = None
    return OpenAIStream(tasks, none, none, view, [])


@pytest.mark.parametrize("view", [ChatStreamView(INFO), MessagesStreamView(INFO)])
def test_each_new_place_is_told(view: Any) -> None:
    shown = stream(view, lambda: 7.0)
    for position in (3, 2, 1):
        assert b'"queuePosition":%d,' % position in shown.notice(notice(position))


def test_a_response_which_repeats_much_tells_few_of_its_places() -> None:
    now = 100.0
    shown = stream(ResponsesStreamView(INFO, b'{"store":false}'), lambda: now)
    assert shown.notice(notice(9)).count(b"event: response.queued") == 2  # it is opened, too
    told = []
    for position in range(8, 0, -1):
        now += 2.0
        told.append(shown.notice(notice(position)))
    assert [position for position, frame in zip(range(8, 0, -1), told, strict=True) if frame] == [6, 3]
    now += QUEUE_CHUNK_S
    assert b'"queuePosition":1,' in shown.idle()
