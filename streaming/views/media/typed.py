"""What the bodies and the streams of media have in common."""

from abc import ABC, abstractmethod

from fairlane.queues.tasks import Place
from fairlane.streaming.events import Event, read_chunk, read_usage, why_failed
from fairlane.streaming.jsontext import join_object, kind_of, members
from fairlane.streaming.views.choice import what_came
from fairlane.streaming.views.result import ResultShapeError, ResultView
from fairlane.streaming.views.sse import KEEPALIVE, error_frame
from fairlane.streaming.views.task import TaskInfo
from fairlane.streaming.views.usage import COUNT_NAMES, normalise_usage, pick_usage

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"


class MediaBodyView(ResultView, ABC):
    """The body of a completed task, of whatever type."""

    def typed(self) -> bytes:
        """Type and body: see `split_typed`. Raises ResultShapeError for a result that is no answer to the call."""
        kind, body = self.body()
        return b"%b\n%b" % (kind, body)

    @abstractmethod
    def body(self) -> tuple[bytes, bytes]:
        """Its type, and itself."""

    def misfit(self, wanted: str) -> ResultShapeError:
        """That the worker answered with something else."""
        came = what_came(self.result) if self.result or not self.has_chunks else "text"
        return ResultShapeError(f"The worker answered with {came}, not with {wanted}")


def split_typed(typed: bytes) -> tuple[bytes, bytes]:
    """The type of a body, and the body."""
    kind, _, body = typed.partition(b"\n")
    return kind, body


class MediaStreamView(ABC):
    """A stream of typed events from all events of a task in order: `event` is the `type` in each one's data. The last one says
    the end; a failure, a cancellation and lost events end it with an error, as OpenAI's streams do. After the end, `ended` is
    true and every event is ignored."""

    silence = KEEPALIVE
    place_every_s = 0.0
    pending = None

    def __init__(self, info: TaskInfo) -> None:
        self.ended = False
        self.info = info
        self._latest_usage: bytes | None = None

    def feed(self, event: Event) -> bytes:
        """The frames that this event adds, often none; to be written in one write."""
        if self.ended:
            return b""
        if event.type == "chunk":
            chunk = read_chunk(event.data)
            return self.text(bytes(chunk.delta)) if chunk.index == 0 and chunk.kind == "text" else b""
        if event.type == "usage":
            self._latest_usage = read_usage(event.data)
            return b""
        if event.type == "done":
            self.ended = True
            return self.done(event)
        if event.terminal or event.type in ("gap", "restart"):
            self.ended = True
            return self.failed(*why_failed(event))
        return b""

    def open(self) -> bytes:
        """What stands before everything else: nothing."""
        return b""

    def queue_chunk(self, place: Place) -> bytes:  # noqa: ARG002 - clients of these streams know of no places
        """What keeps clients from giving up while the task waits."""
        return KEEPALIVE

    @staticmethod
    def failed(message: str, code: str) -> bytes:
        """How a stream ends in failure."""
        return error_frame(message, code)

    def usage(self, told: bytes | None, result: bytes | None) -> bytes | None:
        """The usage object that counts, in OpenAI's words for media."""
        return media_usage(pick_usage(told, result, self._latest_usage))

    def text(self, delta: bytes) -> bytes:  # noqa: ARG002 - images come with the result
        """Return the frames of a piece of text, a JSON string."""
        return b""

    @abstractmethod
    def done(self, event: Event) -> bytes:
        """The frames of the end in success."""


def frame(kind: bytes, pairs: list[tuple[str, bytes]]) -> bytes:
    """One event."""
    return b"event: %b\ndata: %b\n\n" % (kind, join_object([("type", b'"%b"' % kind), *pairs]))


def media_usage(raw: bytes | None) -> bytes | None:
    """A usage object as OpenAI has it for audio and images: `tokens` with their number, or `duration` with `seconds`; None where
    neither is known. Further members stay."""
    found = members(raw)
    if not found:
        return None
    counts = normalise_usage(raw)
    rest = [
        (name, bytes(value)) for name, value in found.items() if name != "type" and name not in COUNT_NAMES
    ]
    if counts.input is not None or counts.output is not None:
        read, wrote = counts.input or 0, counts.output or 0
        told = (("input_tokens", read), ("output_tokens", wrote), ("total_tokens", read + wrote))
        return join_object([("type", b'"tokens"'), *((name, b"%d" % count) for name, count in told), *rest])
    if kind_of(found.get("seconds")).isdigit():
        return join_object([("type", b'"duration"'), *rest])
    return None
