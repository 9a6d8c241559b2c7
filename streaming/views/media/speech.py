"""OpenAI's speech: bytes as they come, or events that hold them.

A worker's chunks are base64, and so is the whole text that they make: no piece need be a whole number of bytes. A result is
`{"contentType", "data"}`, or that `data` alone.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Final

import msgspec

from fairlane.queues.tasks import Place
from fairlane.streaming.events import Event, read_chunk, read_done, why_failed
from fairlane.streaming.jsontext import members, string_or_none
from fairlane.streaming.views.choice import what_came
from fairlane.streaming.views.media.typed import MediaStreamView, frame
from fairlane.streaming.views.result import ResultShapeError
from fairlane.streaming.views.sse import error_frame
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
_NOT = "not with audio as base64"


class CutShort(Exception):
    """An answer of bytes has begun and cannot continue: its connection is closed, as there is no other way to report that."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class SpeechBytesView:
    """The bytes of speech as they come. A failure before the first of them is reported by a status; after it, by the connection's
    end: raises CutShort. Of a result that is no audio it raises ResultShapeError."""

    silence = b""
    place_every_s = 0.0
    pending = None

    def __init__(self, info: TaskInfo) -> None:  # noqa: ARG002 - as other views are made
        self.ended = False
        self._decoder = _Decoder()
        self._begun = False

    def feed(self, event: Event) -> bytes:
        """The bytes that this event adds."""
        if self.ended:
            return b""
        if event.type == "chunk":
            chunk = read_chunk(event.data)
            if chunk.index != 0 or chunk.kind != "text":
                return b""
            self._begun = True
            return self._decoder.feed(bytes(chunk.delta))
        if event.type == "done":
            self.ended = True
            done = read_done(event.data)
            if not self._begun:
                return whole_audio(done.result)
            if not self._decoder.finish():
                raise CutShort(f"The worker answered with text, {_NOT}", "JSON_PARSE_FAILED")
            return b""
        if event.terminal or event.type in ("gap", "restart"):
            self.ended = True
            if self._begun or not event.terminal:
                raise CutShort(*why_failed(event))
        return b""

    def open(self) -> bytes:
        """What stands before everything else: nothing."""
        return b""

    def queue_chunk(self, place: Place) -> bytes:  # noqa: ARG002
        """Nothing: there is no place for it among the bytes."""
        return b""

    @staticmethod
    def failed(message: str, code: str) -> bytes:
        """How it ends independently of its task's log."""
        raise CutShort(message, code)


class SpeechEventsView(MediaStreamView):
    """The same as events, each with some of the bytes as base64."""

    def __init__(self, info: TaskInfo) -> None:
        super().__init__(info)
        self._decoder = _Decoder()
        self._begun = False

    def text(self, delta: bytes) -> bytes:
        self._begun = True
        return _audio(self._decoder.feed(delta))

    def done(self, event: Event) -> bytes:
        done = read_done(event.data)
        frames = b""
        if self._begun:
            if not self._decoder.finish():
                return error_frame(f"The worker answered with text, {_NOT}", "JSON_PARSE_FAILED")
        else:
            try:
                frames = _audio(whole_audio(done.result))
            except ResultShapeError as misfit:
                return error_frame(str(misfit), "JSON_PARSE_FAILED")
        usage = self.usage(done.usage, done.result)
        return frames + frame(b"speech.audio.done", [("usage", usage)] if usage else [])


def type_of(response_format: str) -> bytes:
    """The type of audio in a format that a caller names."""
    return TYPES.get(response_format, OTHER_TYPE)


def whole_audio(result: bytes | None) -> bytes:
    """The bytes of a worker's result. Raises ResultShapeError."""
    found = members(result)
    text = string_or_none(result) if found is None else string_or_none(found.get("data"))
    if text is None:
        raise ResultShapeError(f"The worker answered with {what_came(result)}, not with audio")
    decoder = _Decoder()
    data = decoder.feed(text)
    if not decoder.finish():
        raise ResultShapeError(f"The worker answered with {what_came(result)}, {_NOT}")
    return data


def _audio(data: bytes) -> bytes:
    if not data:
        return b""
    return frame(b"speech.audio.delta", [("audio", b'"%b"' % base64.b64encode(data))])


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
