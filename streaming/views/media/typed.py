"""What the bodies and the streams of media have in common."""

from abc import ABC, abstractmethod

from fairlane.streaming.events import Done
from fairlane.streaming.jsontext import join_object
from fairlane.streaming.views.result import ResultView
from fairlane.streaming.views.stream import StreamView
from fairlane.streaming.views.usage import media_usage

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"


class MediaBodyView(ResultView, ABC):
    """The body of a completed task, of whatever type: `typed` has its type before it, as one text of bytes that all clients that
    ask for the same task can share."""

    def typed(self) -> bytes:
        """Type and body: see `split_typed`. Raises ResultShapeError for a result that is no answer to the call."""
        kind, body = self.body()
        return b"%b\n%b" % (kind, body)

    @abstractmethod
    def body(self) -> tuple[bytes, bytes]:
        """Its type, and itself."""


def split_typed(typed: bytes) -> tuple[bytes, bytes]:
    """The type of a body, and the body."""
    kind, _, body = typed.partition(b"\n")
    return kind, body


class MediaStreamView(StreamView):
    """A stream of typed events: `event` is the `type` in each one's data. The last one says the end."""

    def _chunk(self, index: int, kind: str, delta: bytes) -> bytes:
        return self._text(bytes(delta)) if index == 0 and kind == "text" else b""

    def _text(self, delta: bytes) -> bytes:  # noqa: ARG002 - images come with the result
        """Return the frames of a piece of text, a JSON string."""
        return b""

    def _end_pairs(self, done: Done) -> list[tuple[str, bytes]]:
        """What the last event says of the whole: its usage, if that is known."""
        usage = media_usage(self._usage(done))
        return [("usage", usage)] if usage else []


def frame(kind: bytes, pairs: list[tuple[str, bytes]]) -> bytes:
    """One event."""
    return b"event: %b\ndata: %b\n\n" % (kind, join_object([("type", b'"%b"' % kind), *pairs]))
