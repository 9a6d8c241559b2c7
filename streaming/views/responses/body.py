"""The response of a task, whatever its state."""

from fairlane.streaming.events import Event
from fairlane.streaming.views.blocks.stream import first_of
from fairlane.streaming.views.responses.items import IN_PROGRESS, items_of
from fairlane.streaming.views.responses.response import Ended, is_summarised, response
from fairlane.streaming.views.responses.tools import Tools
from fairlane.streaming.views.result import ResultView
from fairlane.streaming.views.task import TaskInfo
from fairlane.streaming.views.usage import responses_usage

_STATES = {"queued": b"queued", "executing": IN_PROGRESS, "failed": b"failed", "cancelled": b"cancelled"}


class ResponsesBodyView(ResultView):
    """The response of a task, whatever its state. For a task that has ended, it equals the response of the stream's last event,
    except where reasoning and text alternated (they are joined here) or where the worker's result differs from its chunks.
    """

    def __init__(self, info: TaskInfo, echo: bytes) -> None:
        self._echo = echo
        self._last: Event | None = None
        super().__init__(info)

    def _end(self, event: Event) -> None:
        super()._end(event)
        self._last = event

    def body(self) -> bytes:
        """Return the response object."""
        return response(self.info, self._echo, self._state(), self.output(), responses_usage(self.usage))

    def output(self) -> list[bytes]:
        """Return the output items, each one line of JSON, with their ids."""
        last, tools, summarised = self._state().last, Tools(self._echo), is_summarised(self._echo)
        return items_of(first_of(self.choices()), self.info.task_id, last, tools, summarised=summarised)

    def _state(self) -> Ended:
        if self._last is None:
            return Ended(_STATES[self.status])
        return Ended.by(self._last, first_of(self.choices()).finish or self.default_finish)
