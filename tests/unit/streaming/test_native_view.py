import pytest
from msgspec.structs import replace
from streaming_logs import INFO, TASK, TS, Log, frames, read

from fairlane.queues.tasks import Place
from fairlane.streaming import events as ev
from fairlane.streaming.events import Event
from fairlane.streaming.views.native import NativeStreamView

TAGGED = replace(INFO, metadata=b'{"order": 7,\n "x": null}')


def test_the_result_is_filled_in_where_the_log_holds_it_as_chunks() -> None:
    log = Log().start().text("Hel", "lo").done(usage={"inputTokens": 1, "outputTokens": 2})
    last = frames(read(NativeStreamView(INFO), log.events))[-1]
    assert last.json == {
        "taskId": TASK,
        "ts": TS,
        "finishReason": None,
        "usage": {"inputTokens": 1, "outputTokens": 2},
        "result": {"id": TASK, "content": "Hello", "usage": {"inputTokens": 1, "outputTokens": 2}},
    }


def test_several_choices_are_all_in_the_result() -> None:
    log = Log().start().text("b", index=1).text("a").chunk("finish", "length", index=1).done()
    assert frames(read(NativeStreamView(INFO), log.events))[-1].json["result"] == {
        "id": TASK,
        "content": "a",
        "choices": [{"index": 0, "content": "a"}, {"index": 1, "content": "b", "finishReason": "length"}],
    }


@pytest.mark.parametrize(
    "log",
    [Log().start().done("x"), Log().start().error(), Log().start().cancelled()],
    ids=["done", "error", "cancelled"],
)
def test_metadata_is_added_to_the_start_and_to_the_end(log: Log) -> None:
    log.events.insert(1, Event(1, 1, "stage", Log().stage().events[0].data))
    start, stage, end = frames(read(NativeStreamView(TAGGED), log.events))
    assert start.json["metadata"] == end.json["metadata"] == {"order": 7, "x": None}
    assert "metadata" not in stage.json


def test_a_resumed_view_shows_the_rest_and_its_end_is_made_of_the_whole_log() -> None:
    log = Log().start().text("Hel", "lo").done()
    seen, rest = log.events[:2], log.events[2:]
    text, done = frames(read(NativeStreamView(TAGGED), rest, seen))
    assert (text.id, text.json["delta"], done.json["result"]["content"]) == ("1-2", "lo", "Hello")


def test_an_end_that_is_pending_is_drawn_by_whoever_has_the_result() -> None:
    log = Log().start().text("Hello").done()
    view = NativeStreamView(TAGGED)
    assert view.feed(log.events[-1]) == b""
    assert (view.ended, view.pending) == (False, log.events[-1])
    result = b'{"content":"' + b"x" * 1000 + b'"}'
    parts = view.finish(result)
    assert any(part is result for part in parts), "it is shared, not copied"
    (frame,) = frames(b"".join(parts))
    assert (frame.json["result"], view.ended, view.pending) == ({"content": "x" * 1000}, True, None)


def test_events_for_this_reader_only_have_no_id_and_pass_any_cursor() -> None:
    view = NativeStreamView(INFO)
    (frame,) = frames(view.feed(ev.queued_event(TASK, TS, Place(2, 900, 300, 2000))))
    assert (frame.event, frame.id, frame.json["position"]) == ("queued", None, 2)
    (frame,) = frames(view.feed(ev.progress_event(TASK, TS, 50.0, "half")))
    assert (frame.event, frame.id, frame.json["pct"]) == ("progress", None, 50.0)
