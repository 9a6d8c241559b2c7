"""What the streams of media have in common."""

from fairlane.streaming.events import Done
from fairlane.streaming.jsontext import join_object
from fairlane.streaming.views.stream import StreamView
from fairlane.streaming.views.usage import media_usage


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
