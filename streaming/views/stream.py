"""What all streams of client APIs but the native one have in common."""

from abc import ABC, abstractmethod

import msgspec

from fairlane.queues.tasks import Place
from fairlane.streaming.events import Done, Event, read_chunk, read_model, read_usage, why_failed
from fairlane.streaming.views.result import ResultShapeError
from fairlane.streaming.views.sse import KEEPALIVE, error_frame
from fairlane.streaming.views.task import TaskInfo
from fairlane.streaming.views.usage import pick_usage


class StreamView(ABC):
    """Frames of a stream from all events of a task in order; subclasses draw them.

    The end is in one piece: a failure, a cancellation and lost events end the stream with an error. A worker's result is shown
    where its chunks showed no content. After the end, `ended` is true and every event is ignored.
    """

    silence = KEEPALIVE
    """What is sent to keep the stream alive."""
    place_every_s = 0.0
    """Seconds between two frames with a new place, at least."""
    pending = None
    """It draws every end by itself."""

    def __init__(self, info: TaskInfo) -> None:
        self.ended = False
        self._info = info
        self._latest_usage: bytes | None = None

    def feed(self, event: Event) -> bytes:
        """The frames that this event adds, often none; to be written in one write."""
        if self.ended:
            return b""
        if event.type == "chunk":
            chunk = read_chunk(event.data)
            return self._chunk(chunk.index, chunk.kind, chunk.delta)
        if event.type == "usage":
            self._latest_usage = read_usage(event.data)
        elif event.type == "start":
            if self._info.has_fallback:
                self._info = msgspec.structs.replace(self._info, model=read_model(event.data))
            return self._started()
        elif event.terminal or event.type in ("gap", "restart"):
            self.ended = True
            return self._end(event)
        return b""

    def open(self) -> bytes:
        """What stands before the first output."""
        return b""

    def queue_chunk(self, place: Place) -> bytes:  # noqa: ARG002 - many clients know of no places
        """What keeps clients from giving up while the task waits."""
        return self.silence

    def failed(self, message: str, code: str) -> bytes:
        """How the stream ends in failure."""
        return error_frame(message, code)

    def _end(self, event: Event) -> bytes:
        """The end, of whatever kind."""
        if event.type != "done":
            return self.failed(*why_failed(event))
        try:
            return self._done(event)
        except ResultShapeError as error:
            return self.failed(str(error), "JSON_PARSE_FAILED")

    def _usage(self, done: Done) -> bytes | None:
        """The usage object that counts."""
        return pick_usage(done.usage, done.result, self._latest_usage)

    def _started(self) -> bytes:
        """An attempt has begun."""
        return b""

    @abstractmethod
    def _chunk(self, index: int, kind: str, delta: bytes) -> bytes:
        """A piece of the output of a choice."""

    @abstractmethod
    def _done(self, event: Event) -> bytes:
        """The end in success. Raise ResultShapeError for a result that is no answer to the call."""
