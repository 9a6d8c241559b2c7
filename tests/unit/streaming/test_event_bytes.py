import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema_rs import ValidationError
from streaming_logs import TASK, TS, Log, frames, start_data
from tests.support.streams import NATIVE_EVENT

from fairlane.queues.tasks import Place
from fairlane.streaming import events as ev
from fairlane.streaming.events import Event, parse_event_id
from fairlane.streaming.views.sse import KEEPALIVE, native_frame


def validated(event: Event) -> None:
    """The frame says what the schema promises."""
    (frame,) = frames(native_frame(event))
    shown = {"event": frame.event, "data": json.loads(frame.data)}
    if frame.id is not None:
        shown["id"] = frame.id
    NATIVE_EVENT.validate(shown)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1790000000000000-7", (1_790_000_000_000_000, 7)),
        ("1-7", (1, 7)),
        ("0-0", (0, 0)),
        ("9007199254740991-1000000000000", (2**53 - 1, 10**12)),
    ],
)
def test_event_id_is_read(text: str, expected: tuple[int, int]) -> None:
    assert parse_event_id(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "foo", "1", "-", "1-", "-1", "-1-2", "1-2-3", "1--2", " 1-2", "1-2\n", "1-2 ", "+1-2", "1_0-2"),
        *("١-٢", "1-²", "0x1-2", "1.0-2", "1e3-2", "9007199254740992-1", "1-1000000000001"),
        "9" * 10240,
        "1-" + "0" * 10240,
    ],
)
def test_anything_else_is_no_event_id(text: str) -> None:
    with pytest.raises(ValueError, match="event id"):
        parse_event_id(text)


@given(st.integers(0, 2**53 - 1), st.integers(0, 10**12))
def test_event_ids_survive_a_round_trip(epoch: int, seq: int) -> None:
    assert parse_event_id(Event(epoch, seq, "chunk", b"{}").id) == (epoch, seq)


AWKWARD = st.text(st.characters(exclude_categories=()), max_size=20) | st.sampled_from(
    [
        '"',
        "\\",
        "\n",
        "\r\n\r\n",
        "\u2028\u2029\x85",
        "\ud83d",
        "\ude00\ud83d",
        "id: 9-9\n\ndata: x",
        "\x00",
        "é😀",
    ]
)


@given(
    text=AWKWARD,
    number=st.integers(0, 10**9),
    usage=st.sampled_from([None, b"null", b'{"inputTokens": 3,\n "outputTokens": 4}']),
    raw=st.sampled_from([None, b"null", b'{\r\n"a" : [1, "\xe2\x80\xa8"]}', b'"x"', b"0", b"false"]),
)
def test_every_builder_keeps_to_the_schema_and_to_one_line(
    text: str, number: int, usage: bytes | None, raw: bytes | None
) -> None:
    def logged(kind: str, fragment: bytes) -> Event:
        return Event(1, 7, kind, ev.compose(TASK, TS, fragment))

    made = [
        Event(1, 7, "start", start_data(number + 1, text, text)),
        logged("stage", ev.fragment_stage(text, number, number, text)),
        logged("usage", ev.fragment_usage(usage or b"{}")),
        logged("debug", ev.fragment_debug(text, raw)),
        logged("done", ev.fragment_done(raw, usage, text)),
        logged("done", ev.fragment_done(None, None, None)),
        logged("error", ev.fragment_error(text, "TOTAL_TIMEOUT", number % 2 == 0, usage)),
        logged("cancelled", ev.fragment_cancelled(text)),
        ev.queued_event(TASK, TS, Place(number + 1, number, number // 2, number * 2)),
        ev.progress_event(TASK, TS, (number % 101) / 1, text),
        ev.progress_event(TASK, TS),
        ev.gap_event(TASK, TS, text, "expired"),
        ev.gap_event(TASK, TS, text, "lost"),
        ev.restart_event(TASK, TS, text),
        ev.bye_event(TASK, TS, text, number),
    ]
    for event in made:
        assert event.data.startswith(b'{"taskId":"%b","ts":%d,' % (TASK.encode(), TS))
        assert len(event.data.decode().splitlines()) == 1
        validated(event)


@pytest.mark.parametrize(
    ("kind", "delta"),
    [
        ("text", "a"),
        ("reasoning", "b"),
        ("refusal", "c"),
        ("tool", [{"index": 0, "id": "x", "function": {"name": "f", "arguments": ""}}]),
        ("finish", "stop"),
        ("extra", {"logprobs": None, "delta": {"audio": {"id": "a"}}}),
    ],
)
def test_each_kind_of_chunk_keeps_to_the_schema(kind: str, delta: object) -> None:
    validated(Log().chunk(kind, delta, index=3, n=2).events[0])


@pytest.mark.parametrize(
    "shown",
    [
        {
            "event": "chunk",
            "data": {"taskId": TASK, "ts": 1, "index": 0, "kind": "text", "delta": "a", "n": 1},
        },
        {"event": "cancelled", "id": "1-1", "data": {"taskId": TASK, "ts": 1, "by": "x", "more": 1}},
        {"event": "cancelled", "id": "1-1", "data": {"taskId": TASK, "ts": 1.5, "by": "x"}},
        {
            "event": "queued",
            "id": "1-1",
            "data": {
                "taskId": TASK,
                "ts": 1,
                "position": 1,
                "estimatedWaitMs": 1,
                "estimatedWaitLowMs": 1,
                "estimatedWaitHighMs": 1,
            },
        },
        {"event": "unheard", "id": "1-1", "data": {"taskId": TASK, "ts": 1}},
    ],
    ids=["chunk without id", "unknown member", "fraction", "queued with id", "unknown event"],
)
def test_the_schema_is_strict(shown: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        NATIVE_EVENT.validate(shown)


def test_logged_events_carry_an_id_and_others_none() -> None:
    event = Event(1, 7, "chunk", b'{"taskId":"t","ts":1}')
    assert native_frame(event) == b'id: 1-7\nevent: chunk\ndata: {"taskId":"t","ts":1}\n\n'
    queued = ev.queued_event("t", 1, Place(3, 2000, 900, 4000))
    wait = b'"estimatedWaitMs":2000,"estimatedWaitLowMs":900,"estimatedWaitHighMs":4000'
    data = b'{"taskId":"t","ts":1,"position":3,' + wait + b"}"
    assert native_frame(queued) == b"event: queued\ndata: " + data + b"\n\n"


def test_keepalive_is_a_comment_ended_by_one_line_feed() -> None:
    assert KEEPALIVE == b": keepalive\n"


def test_terminal_events_know_that_they_are() -> None:
    assert [Event(1, 1, kind, b"{}").terminal for kind in ("done", "error", "cancelled", "chunk")] == [
        True,
        True,
        True,
        False,
    ]


def test_a_restart_takes_the_cursor_of_event_sources_away() -> None:
    (frame,) = frames(native_frame(ev.restart_event(TASK, TS, "lost")))
    assert (frame.event, frame.id) == ("restart", "")
