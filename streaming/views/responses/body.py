"""The response of a task, whatever its state."""

from fairlane.streaming.events import Event
from fairlane.streaming.views.responses.items import IN_PROGRESS
from fairlane.streaming.views.responses.response import Ended, response
from fairlane.streaming.views.responses.stream import MAX_NUMBER, ResponsesStreamView
from fairlane.streaming.views.result import ResultView
from fairlane.streaming.views.task import TaskInfo
from fairlane.streaming.views.usage import responses_usage

_STATES = {"queued": b"queued", "executing": IN_PROGRESS, "failed": b"failed", "cancelled": b"cancelled"}


class ResponsesBodyView(ResultView):
    """The response of a task, whatever its state: what its stream says."""

    def __init__(self, info: TaskInfo, echo: bytes) -> None:
        super().__init__(info)
        self._echo = echo
        self._stream = ResponsesStreamView(info, echo, starting_after=MAX_NUMBER)

    def feed(self, event: Event) -> None:
        if event.type != "chunk":
            super().feed(event)
        self._stream.feed(event)

    def body(self) -> bytes:
        """Return the response object."""
        state = self._stream.how or Ended(_STATES[self.status])
        return response(self.info, self._echo, state, self.output(), responses_usage(self.usage))

    def output(self) -> list[bytes]:
        """Return the output items, each one line of JSON, with their ids."""
        return self._stream.items()
