"""The native stream: the log as it is, with what readers were promised filled in."""

from fairlane.streaming.events import Event, told_error
from fairlane.streaming.jsontext import join_object, kind_of, members, one_line
from fairlane.streaming.views.sse import frame_parts, frame_with, native_frame
from fairlane.streaming.views.task import TaskInfo


class NativeStreamView:
    """Frames of a task's events, from any event on: each is drawn by itself.

    Adds the task's metadata to `start` and to the terminal event, and the category of its code to an `error`. A `done` without a
    result, which the chunks make up, is not drawn but `pending`: `finish` draws it with the result of the whole log.
    """

    def __init__(self, info: TaskInfo) -> None:
        self.info = info
        self.ended = False
        """The terminal event has been drawn."""
        self.pending: Event | None = None
        self._metadata = b"" if info.metadata is None else b',"metadata":%b' % one_line(info.metadata)

    def feed(self, event: Event) -> bytes:
        """The event's frame; empty for one that is pending, and after the terminal event."""
        if self.ended or self.pending is not None:
            return b""
        if event.type == "chunk":
            return native_frame(event)
        if event.terminal:
            if event.type == "done" and not kind_of((members(event.data) or {}).get("result")):
                self.pending = event
                return b""
            self.ended = True
            data = told_error(event.data) if event.type == "error" else event.data
            return frame_with(event, self._with_metadata(data))
        if event.type == "start":
            return frame_with(event, self._with_metadata(event.data))
        return native_frame(event)

    def finish(self, result: bytes) -> list[bytes]:
        """The frame of the pending event with this result, in parts: the result is not copied."""
        event = self.pending
        assert event is not None
        self.ended, self.pending = True, None
        data = event.data
        found = members(data) or {}
        if found.pop("result", None) is not None:
            data = join_object(found.items())
        head, tail = frame_parts(event)
        return [b'%b%b,"result":' % (head, data[:-1]), result, b"%b}%b" % (self._metadata, tail)]

    def _with_metadata(self, data: bytes) -> bytes:
        """The event's data (never an empty object) with one more member at its end."""
        return b"%b%b}" % (data[:-1], self._metadata) if self._metadata else data
