"""The response of a task, whatever its state."""

from fairlane.streaming.events import Chunk, Event
from fairlane.streaming.jsontext import members
from fairlane.streaming.views.blocks.stream import first_of
from fairlane.streaming.views.choice import ITEMS
from fairlane.streaming.views.responses.items import IN_PROGRESS, items_of
from fairlane.streaming.views.responses.response import Ended, is_summarised, response
from fairlane.streaming.views.responses.stream import UNDRAWN, ResponsesStreamView
from fairlane.streaming.views.result import ResultView
from fairlane.streaming.views.task import TaskInfo
from fairlane.streaming.views.usage import responses_usage

_STATES = {"queued": b"queued", "executing": IN_PROGRESS, "failed": b"failed", "cancelled": b"cancelled"}


class ResponsesBodyView(ResultView):
    """The response of a task, whatever its state. Of one that has ended it is the same as in the stream's last event, but where
    thoughts and texts took turns, which are told together here, or the worker's result is another one than its chunks.

    Chunks of which the first holds pieces of Responses (`ITEMS`, or none of them yet) are told in the order in which they came.
    """

    def __init__(self, info: TaskInfo, echo: bytes) -> None:
        self._echo = echo
        self._last: Event | None = None
        super().__init__(info)

    def _forget(self) -> None:
        super()._forget()
        self._ordered: ResponsesStreamView | None = None
        """What chunks come to whose order is told."""

    def add_chunk(self, chunk: Chunk) -> None:
        if self._ordered is None and not self.has_chunks and _holds_pieces(chunk):
            self._ordered = ResponsesStreamView(self.info, self._echo, starting_after=UNDRAWN)
        if self._ordered is None:
            super().add_chunk(chunk)
        else:
            self._ordered.add_chunk(chunk)

    def _end(self, event: Event) -> None:
        super()._end(event)
        self._last = event

    def body(self) -> bytes:
        """The response object."""
        items = self.output()
        return response(self.info, self._echo, self._state(), items, responses_usage(self.usage))

    def output(self) -> list[bytes]:
        """Its output items, each one line of JSON, with their ids."""
        if self._ordered is None or self.result is not None:
            last, summarised = self._state().last, is_summarised(self._echo)
            return items_of(first_of(self.choices()), self.info.task_id, last, summarised=summarised)
        if self._last is not None:
            self._ordered.feed(self._last)
        return self._ordered.output()

    def _state(self) -> Ended:
        if self._last is None:
            return Ended(_STATES[self.status])
        ordered = None if self.result is not None else self._ordered
        finish = ordered.finish if ordered else first_of(self.choices()).finish
        return Ended.by(self._last, finish or self.default_finish)


def _holds_pieces(chunk: Chunk) -> bool:
    return chunk.kind == "extra" and ITEMS in (members((members(chunk.delta) or {}).get("delta")) or {})
