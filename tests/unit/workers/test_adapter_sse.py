"""The parser of server-sent events."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.workers.adapters.sse import ErrorEvent, EventParser, EventTooLargeError

STREAMS = {
    b'data: {"a":1}\n\ndata: [DONE]\n\n': [b'{"a":1}', b"[DONE]"],
    b"data: a\r\n\r\ndata: b\r\n\r\n": [b"a", b"b"],
    b"data: a\r\rdata: b\r\r": [b"a", b"b"],
    b"data:tight\n\ndata:  two spaces\n\n": [b"tight", b" two spaces"],
    b": keep-alive\n\n:\n\ndata: a\n: in between\ndata: b\n\n": [b"a\nb"],
    b"event: message\nid: 7\nretry: 10\ndata: a\n\nevent: empty\n\n": [b"a"],
    b"\xef\xbb\xbfdata: bom\n\n": [b"bom"],
    b"data\ndatax: no\ndata: yes\n\n": [b"yes"],
    b"data: \xc3\xa9\xf0\x9f\x98\x80\n\n": ["é😀".encode()],
    b"data:\n\n\n\ndata: after empty\n\n": [b"", b"after empty"],
}


def parse(parts: list[bytes]) -> list[bytes]:
    parser = EventParser()
    return [event for part in parts for event in parser.feed(part)]


@pytest.mark.parametrize("stream", STREAMS, ids=lambda s: repr(s[:24]))
def test_a_stream_gives_the_same_events_at_every_split(stream: bytes) -> None:
    expected = STREAMS[stream]
    assert parse([stream]) == expected
    assert parse([stream[i : i + 1] for i in range(len(stream))]) == expected
    for first in range(len(stream) + 1):
        for second in range(first, len(stream) + 1):
            assert parse([stream[:first], stream[first:second], stream[second:]]) == expected


LINES = st.sampled_from([b"data: a", b"data:b", b": c", b"", b"", b"event: x", b"data: \xc3\xa9", b"junk"])
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(st.lists(st.tuples(LINES, ENDS), max_size=15), st.lists(st.integers(0, 120), max_size=12))
def test_splits_never_matter(lines: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    stream = b"".join(line + end for line, end in lines)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    parts = [stream[a:b] for a, b in itertools.pairwise(places)]
    assert parse(parts) == parse([stream])


def test_an_event_without_its_blank_line_is_given_at_the_end() -> None:
    parser = EventParser()
    assert parser.feed(b"data: a\n\ndata: cut of") == [b"a"]
    assert parser.close() == [b"cut of"]
    assert parser.close() == []


def test_an_event_that_is_named_an_error_is_one_and_other_text_is_kept() -> None:
    parser = EventParser()
    told = parser.feed(
        b'event: error\ndata: a\n\n: note\noops\n{"b":1}\nevent: error\n\nevent: x\n\ndata: c\n\n'
    )
    assert told == [b"a", b'{"b":1}', b"", b"c"]
    assert [isinstance(event, ErrorEvent) for event in told] == [True, False, True, False]
    assert parser.text == b"oops\n"


@pytest.mark.parametrize("part", [b"x" * 30, b"data: xxxxxxxx\n", b"data:\n"])
def test_an_endless_event_is_refused(part: bytes) -> None:
    parser = EventParser(max_event_bytes=100)

    def feed_much() -> None:
        for _ in range(100):
            parser.feed(part)

    with pytest.raises(EventTooLargeError):
        feed_much()
