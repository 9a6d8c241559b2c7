"""OpenAI's speech: bytes as they come, or events that hold them.

A worker's chunks are base64, and so is the whole text that they make: no piece need be a whole number of bytes. A result is
`{"contentType", "data"}`, or that `data` alone.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Final

import msgspec

from fairlane.streaming.events import Done, Event, read_done
from fairlane.streaming.jsontext import members, string_or_none
from fairlane.streaming.views.media.typed import MediaStreamView, frame
from fairlane.streaming.views.result import misfit
from fairlane.streaming.views.task import TaskInfo

TYPES: Final[Mapping[str, bytes]] = {
    "mp3": b"audio/mpeg",
    "opus": b"audio/ogg",
    "aac": b"audio/aac",
    "flac": b"audio/flac",
    "wav": b"audio/wav",
    "pcm": b"audio/pcm",
}
"""By OpenAI's names of formats."""
OTHER_TYPE: Final = b"application/octet-stream"
_string = msgspec.json.Decoder(str)
_BASE64 = "audio as base64"


class CutShort(Exception):
    """An answer of bytes has begun and cannot continue: its connection is closed, as there is no other way to report that."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class SpeechEventsView(MediaStreamView):
    """Speech as events, each with some of the bytes as base64."""

    def __init__(self, info: TaskInfo) -> None:
        super().__init__(info)
        self._decoder = _Decoder()
        self._begun = False

    def _text(self, delta: bytes) -> bytes:
        self._begun = True
        return self._draw(self._decoder.feed(delta))

    def _draw(self, data: bytes) -> bytes:
        audio = b'"%b"' % base64.b64encode(data)
        return frame(b"speech.audio.delta", [("audio", audio)]) if data else b""

    def _done(self, event: Event) -> bytes:
        done = read_done(event.data)
        if self._begun and not self._decoder.finish():
            raise misfit("text", _BASE64)
        last = self._draw(b"" if self._begun else whole_audio(done.result))
        return last + self._last(done)

    def _last(self, done: Done) -> bytes:
        return frame(b"speech.audio.done", self._end_pairs(done))


class SpeechBytesView(SpeechEventsView):
    """The bytes of speech as they come. A failure before the first of them is reported by a status; after it, by the connection's
    end: raises CutShort. Of a result that is no audio it raises ResultShapeError."""

    silence = b""

    def failed(self, message: str, code: str) -> bytes:
        """How it ends independently of its task's log."""
        raise CutShort(message, code)

    def _end(self, event: Event) -> bytes:
        if self._begun or not event.terminal:
            return super()._end(event)
        return self._done(event) if event.type == "done" else b""

    def _draw(self, data: bytes) -> bytes:
        return data

    def _last(self, done: Done) -> bytes:  # noqa: ARG002
        return b""


def type_of(response_format: str) -> bytes:
    """The type of audio in a format that a caller names."""
    return TYPES.get(response_format, OTHER_TYPE)


def whole_audio(result: bytes | None) -> bytes:
    """The bytes of a worker's result. Raises ResultShapeError."""
    found = members(result)
    text = string_or_none(result) if found is None else string_or_none(found.get("data"))
    if text is None:
        raise misfit(result, "audio")
    decoder = _Decoder()
    data = decoder.feed(text)
    if not decoder.finish():
        raise misfit(result, _BASE64)
    return data


class _Decoder:
    """Base64 that comes in pieces, as JSON strings. After what is none, nothing comes out of it any more."""

    def __init__(self) -> None:
        self._left = ""
        self._broken = False

    def feed(self, text: bytes) -> bytes:
        """The bytes that a piece brings."""
        if self._broken:
            return b""
        try:
            said = self._left + _string.decode(text)
            whole = len(said) - len(said) % 4
            self._left = said[whole:]
            return base64.b64decode(said[:whole], validate=True)
        except (msgspec.MsgspecError, binascii.Error, ValueError):
            self._broken = True
            return b""

    def finish(self) -> bool:
        """Whether all that came was base64, and is whole."""
        return not self._broken and not self._left
