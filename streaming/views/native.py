"""The native stream: the log as it is, with what readers were promised filled in."""

from fairlane.streaming.events import Event
from fairlane.streaming.jsontext import join_object, members, one_line
from fairlane.streaming.views.result import ResultFold
from fairlane.streaming.views.sse import frame_with, native_frame
from fairlane.streaming.views.task import TaskInfo


class NativeView:
    """Frames of the events after the cursor `after`; what it is fed up to there is folded and not shown.

    Adds the task's metadata to `start` and to the terminal event, and the result to a `done` that has none
    because the chunks make it up. For that it must see all chunks of the log: hand those before the cursor to
    `skip` (or `feed`). From any cursor the frames are byte for byte those of the uncut stream.
    """

    def __init__(self, info: TaskInfo, after: tuple[int, int] | None = None) -> None:
        self.ended = False
        """The terminal event has been seen."""
        self._after = after or (0, 0)
        self._fold = ResultFold(info)
        self._metadata = None if info.metadata is None else one_line(info.metadata)

    def skip(self, event: Event) -> None:
        """Fold an event that the reader has seen already."""
        self._fold.feed(event)
        self.ended = self.ended or event.terminal

    def feed(self, event: Event) -> bytes:
        """The event's frame; empty for an event up to the cursor, and after the terminal event."""
        if self.ended:
            return b""
        self._fold.feed(event)
        if event.type == "restart":
            self._after = (0, 0)
        elif event.epoch and (event.epoch, event.seq) <= self._after:
            self.ended = event.terminal
            return b""
        if event.type == "chunk":
            return native_frame(event)
        if event.terminal:
            self.ended = True
            return frame_with(event, self._completed(event))
        if event.type == "start":
            return frame_with(event, self._with_metadata(event.data))
        return native_frame(event)

    def _completed(self, event: Event) -> bytes:
        data = event.data
        if event.type == "done" and self._fold.result is None:
            found = members(data) or {}
            if found.pop("result", None) is not None:
                data = join_object(found.items())
            data = _with_member(data, b"result", self._fold.result_json())
        return self._with_metadata(data)

    def _with_metadata(self, data: bytes) -> bytes:
        if self._metadata is None or "metadata" in (members(data) or {}):
            return data
        return _with_member(data, b"metadata", self._metadata)


def _with_member(data: bytes, name: bytes, value: bytes) -> bytes:
    """The event's data (never an empty object) with one more member at its end."""
    return b'%b,"%b":%b}' % (data[:-1], name, value)
