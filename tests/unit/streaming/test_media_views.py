"""Transcripts, speech, images and moderations out of any log."""

import json
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streaming_logs import INFO, TASK, TS, Log, fold

from fairlane.streaming import events as ev
from fairlane.streaming.events import Event
from fairlane.streaming.views.media.images import ImageBodyView, ModerationBodyView
from fairlane.streaming.views.media.speech import CutShort, SpeechBytesView, SpeechEventsView
from fairlane.streaming.views.media.transcripts import TranscriptBodyView, TranscriptStreamView
from fairlane.streaming.views.result import ResultShapeError

SEGMENTS = [
    {"id": 0, "start": 0.0, "end": 1.5, "text": " One & <two>"},
    {"id": 1, "start": 3661.0004, "end": 3662, "text": "three\n\nfour --> five"},
]
HEARD = {"text": "One & <two> three four", "segments": SEGMENTS, "language": "english"}


def transcript(log: Log, response_format: str = "json") -> tuple[bytes, bytes]:
    view = fold(TranscriptBodyView(INFO, response_format), log.events)
    return view.content_type, view.body()


def frames(view: Any, log: Log) -> list[dict[str, Any]]:
    """The data of all events that a stream view draws."""
    drawn = b"".join(view.feed(event) for event in log.events)
    told = []
    for frame in drawn.decode().removesuffix("\n\n").split("\n\n"):
        *kinds, data = frame.split("\n")
        told.append(json.loads(data.removeprefix("data: ")))
        if kinds:
            assert kinds == [f"event: {told[-1]['type']}"]
    assert view.ended
    assert view.feed(log.events[-1]) == b""
    return told


# ---- transcripts ----------


@pytest.mark.parametrize("response_format", ["json", "verbose_json", "diarized_json"])
def test_an_object_is_told_as_it_is_with_its_usage(response_format: str) -> None:
    log = Log().start().done(HEARD, usage={"type": "duration", "seconds": 3})
    kind, body = transcript(log, response_format)
    assert kind == b"application/json"
    assert json.loads(body) == {**HEARD, "usage": {"type": "duration", "seconds": 3}}


def test_chunks_and_a_text_are_told_in_each_format() -> None:
    for log in (
        Log().start().text("a ", "b ü").done(usage={"inputTokens": 5, "outputTokens": 2}),
        Log().start().done("a b ü", usage={"inputTokens": 5, "outputTokens": 2}),
    ):
        told = json.loads(transcript(log)[1])
        assert told["text"] == "a b ü"
        assert told["usage"] == {"type": "tokens", "input_tokens": 5, "output_tokens": 2, "total_tokens": 7}
        for response_format in ("text", "srt", "vtt"):
            assert transcript(log, response_format) == (b"text/plain; charset=utf-8", "a b ü".encode())


def test_subtitles_are_made_of_segments() -> None:
    log = Log().start().done(HEARD)
    assert transcript(log, "text")[1] == b"One & <two> three four\n"
    assert transcript(log, "srt")[1].decode() == (
        "1\n00:00:00,000 --> 00:00:01,500\nOne & <two>\n\n"
        "2\n01:01:01,000 --> 01:01:02,000\nthree\nfour --> five\n\n"
    )
    assert transcript(log, "vtt")[1].decode() == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nOne &amp; &lt;two>\n\n"
        "01:01:01.000 --> 01:01:02.000\nthree\nfour --&gt; five\n\n"
    )


@pytest.mark.parametrize(
    ("result", "response_format"),
    [
        (None, "json"),
        ({"words": 1}, "json"),
        (7, "text"),
        ([], "srt"),
        ({"text": "x"}, "srt"),
        ({"text": "x", "segments": [{"start": "soon"}]}, "vtt"),
        ({"text": "x", "segments": {}}, "vtt"),
    ],
)
def test_a_result_that_is_no_transcript_is_told_so(result: Any, response_format: str) -> None:
    with pytest.raises(ResultShapeError):
        transcript(Log().start().done(result), response_format)


def test_a_transcription_as_events() -> None:
    log = Log().start().text("One ", "two").done(usage={"type": "duration", "seconds": 2.5})
    assert frames(TranscriptStreamView(INFO), log) == [
        {"type": "transcript.text.delta", "delta": "One "},
        {"type": "transcript.text.delta", "delta": "two"},
        {"type": "transcript.text.done", "text": "One two", "usage": {"type": "duration", "seconds": 2.5}},
    ]
    whole = frames(TranscriptStreamView(INFO), Log().start().done(HEARD))
    assert [event["type"] for event in whole] == ["transcript.text.delta", "transcript.text.done"]
    assert whole[0]["delta"] == whole[1]["text"] == HEARD["text"]
    failed = frames(TranscriptStreamView(INFO), Log().start().text("One ").error())
    assert failed[-1]["error"]["code"] == "UPSTREAM_ERROR"
    misfit = frames(TranscriptStreamView(INFO), Log().start().done({"x": 1}))
    assert misfit[-1]["error"]["code"] == "JSON_PARSE_FAILED"


# ---- speech ----------


@given(st.binary(max_size=300), st.lists(st.integers(1, 40), max_size=10))
def test_bytes_come_whole_however_their_base64_is_cut(data: bytes, cuts: list[int]) -> None:
    text, log, at = b64encode(data).decode(), Log().start(), 0
    for cut in cuts:
        if text[at : at + cut]:
            log.text(text[at : at + cut])
        at += cut
    if text[at:]:
        log.text(text[at:])
    if data:
        log.done(usage={"outputTokens": 3})
    else:
        log.done("")
    view = SpeechBytesView(INFO)
    assert b"".join(view.feed(event) for event in log.events) == data
    assert view.ended


def test_speech_of_a_result_and_as_events() -> None:
    log = Log().start().done({"contentType": "audio/wav", "data": b64encode(b"abcd").decode()})
    view = SpeechBytesView(INFO)
    assert b"".join(view.feed(event) for event in log.events) == b"abcd"
    assert frames(SpeechEventsView(INFO), log) == [
        {"type": "speech.audio.delta", "audio": b64encode(b"abcd").decode()},
        {"type": "speech.audio.done"},
    ]


def feed(view: Any, log: Log) -> bytes:
    return b"".join(view.feed(event) for event in log.events)


@pytest.mark.parametrize(
    "log",
    [
        Log().start().text("QUJD").error(),
        Log().start().text("QUJD").cancelled(),
        Log().start().text("QUJD", "Q").done(),
        Log().start().text("QUJD", "?!").done(),
    ],
)
def test_what_goes_wrong_after_the_first_bytes_cuts_the_answer(log: Log) -> None:
    view = SpeechBytesView(INFO)
    with pytest.raises(CutShort):
        feed(view, log)
    assert view.ended
    assert "error" in frames(SpeechEventsView(INFO), log)[-1]


def test_lost_events_cut_it_too_and_a_failure_before_is_left_to_the_status() -> None:
    restart = Event(0, 0, "restart", ev.compose(TASK, TS, b'"reason":"lost"'))
    view = SpeechBytesView(INFO)
    view.feed(Log().start().text("QUJD").events[1])
    with pytest.raises(CutShort):
        view.feed(restart)
    assert feed(SpeechBytesView(INFO), Log().start().error()) == b""
    with pytest.raises(ResultShapeError):
        feed(SpeechBytesView(INFO), Log().start().done({"data": "no base64!"}))
    with pytest.raises(ResultShapeError):
        feed(SpeechBytesView(INFO), Log().start().done(None))


# ---- images and moderations ----------


def image(log: Log) -> dict[str, Any]:
    view = fold(ImageBodyView(INFO), log.events)
    assert view.content_type == b"application/json"
    told: dict[str, Any] = json.loads(view.body())
    return told


def test_images_whole() -> None:
    listed = [{"b64_json": "QQ=="}]
    for result in (listed, {"data": listed}, {"data": listed, "created": None}):
        assert image(Log().start().done(result)) == {"created": INFO.created, "data": listed}
    theirs = {
        "created": 7,
        "data": listed,
        "usage": {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
    }
    assert image(Log().start().done(theirs)) == theirs
    for wrong in (None, "text", {"images": []}):
        with pytest.raises(ResultShapeError):
            image(Log().start().done(wrong))


def test_moderations_are_given_what_they_lack() -> None:
    results = [{"flagged": False}]

    def told(result: Any) -> Any:
        return json.loads(fold(ModerationBodyView(INFO), Log().start().done(result).events).body())

    own = {"id": f"modr-{TASK}", "model": "small-model", "results": results}
    assert told(results) == told({"results": results}) == own
    theirs = {"id": "modr-1", "model": "their-model", "results": results, "x": 1}
    assert told(theirs) == theirs
    with pytest.raises(ResultShapeError):
        told({"flagged": True})
