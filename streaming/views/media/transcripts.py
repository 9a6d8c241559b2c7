"""OpenAI's transcriptions and translations of audio, in any of their formats, whole or as they come.

| the worker answers with | json, verbose_json, diarized_json | text | srt, vtt |
|---|---|---|---|
| an object with a `text` | that | its `text` | subtitles of its `segments` |
| a text, or chunks of one | `{"text"}` | that | that: it has the form already |
"""

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Raw

from fairlane.streaming.events import Event, read_done
from fairlane.streaming.jsontext import EMPTY_STRING, join_object, kind_of, members, string_or_none
from fairlane.streaming.views.media.typed import MediaStreamView, frame
from fairlane.streaming.views.result import ResultShapeError, ResultView, misfit
from fairlane.streaming.views.task import TaskInfo
from fairlane.streaming.views.usage import media_usage

FORMATS: Final = ("json", "text", "srt", "verbose_json", "vtt", "diarized_json")
"""Of a transcription; a translation knows no speakers."""
_JSON_FORMATS = frozenset({"json", "verbose_json", "diarized_json"})
MAX_S = 359_999.999
"""The latest that a subtitle can say: 99:59:59."""


class _Segment(msgspec.Struct):
    start: float
    end: float
    text: str


_segments = msgspec.json.Decoder(list[_Segment])
_string = msgspec.json.Decoder(str)


class TranscriptBodyView(ResultView):
    """The transcript of a completed task. Raises ResultShapeError for a result that has not the requested format."""

    def __init__(self, info: TaskInfo, response_format: str = "json") -> None:
        super().__init__(info)
        self._format = response_format
        if response_format not in _JSON_FORMATS:
            self.content_type = b"text/plain; charset=utf-8"

    def body(self) -> bytes:
        result = self.result
        text = _text_of(result)
        if result is None and self._outputs:
            text = self.choices()[0].content
        if text is None:
            raise self.misfit("a transcript")
        found = members(result)
        if self._format in _JSON_FORMATS:
            whole = result if result is not None and found is not None else join_object([("text", text)])
            return self.with_usage(whole, found or {"text": Raw(text)}, media_usage)
        if found is None:
            said = _string.decode(text)
        elif self._format == "text":
            said = f"{_string.decode(text)}\n"
        else:
            segments = _segments_of(found.get("segments"))
            said = "".join(subtitles(segments) if self._format == "srt" else captions(segments))
        return said.encode(errors="replace")


class TranscriptStreamView(MediaStreamView):
    """Events of a transcription: its text as it comes, and all of it at the end."""

    def __init__(self, info: TaskInfo) -> None:
        super().__init__(info)
        self._said = bytearray()
        """The inside of a JSON string."""

    def _text(self, delta: bytes) -> bytes:
        self._said += memoryview(delta)[1:-1]
        return frame(b"transcript.text.delta", [("delta", delta)])

    def _done(self, event: Event) -> bytes:
        done = read_done(event.data)
        text = _text_of(done.result)
        frames = b""
        if text is None:
            if done.result is not None:
                raise misfit(done.result, "a transcript")
            text = b'"%b"' % bytes(self._said)
        elif not self._said and text != EMPTY_STRING:
            frames = frame(b"transcript.text.delta", [("delta", text)])
        return frames + frame(b"transcript.text.done", [("text", text), *self._end_pairs(done)])


def _text_of(result: bytes | None) -> bytes | None:
    """What was said, as a JSON string."""
    found = members(result)
    return string_or_none(result if found is None else found.get("text"))


def subtitles(segments: Iterable[_Segment]) -> Iterable[str]:
    """SubRip (srt)."""
    for number, segment in enumerate(segments, 1):
        yield f"{number}\n{_time(segment.start, ',')} --> {_time(segment.end, ',')}\n{_lines(segment)}\n\n"


def captions(segments: Iterable[_Segment]) -> Iterable[str]:
    """WebVTT."""
    yield "WEBVTT\n\n"
    for segment in segments:
        text = _lines(segment).replace("&", "&amp;").replace("<", "&lt;").replace("-->", "--&gt;")
        yield f"{_time(segment.start, '.')} --> {_time(segment.end, '.')}\n{text}\n\n"


def _lines(segment: _Segment) -> str:
    """Its text: an empty line would end it."""
    return "\n".join(line for line in segment.text.strip().splitlines() if line.strip())


def _time(seconds: float, point: str) -> str:
    ms = round(min(max(seconds, 0.0), MAX_S) * 1000)
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}{point}{ms % 1000:03}"


def _segments_of(raw: bytes | None) -> list[_Segment]:
    if kind_of(raw) != "[":
        raise ResultShapeError("The worker answered without segments, which subtitles need")
    try:
        return _segments.decode(raw or b"")
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ResultShapeError(f"The worker's segments cannot be subtitles: {error}") from None
