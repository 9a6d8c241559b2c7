"""The response object."""

from fairlane.streaming.views.result import ResultView
from fairlane.streaming.views.task import TaskInfo


class ResponsesBodyView(ResultView):
    """The response of a task, whatever its state: the same as in the stream's last event where it has ended."""

    def __init__(self, info: TaskInfo, echo: bytes) -> None:
        super().__init__(info)
        raise NotImplementedError

    def body(self) -> bytes:
        """The response object."""
        raise NotImplementedError

    def output(self) -> list[bytes]:
        """Its output items, each one line of JSON, with their ids."""
        raise NotImplementedError
