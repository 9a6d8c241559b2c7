"""The stream of a response: OpenAI's Responses events."""

from fairlane.queues.tasks import Place
from fairlane.streaming.events import Event
from fairlane.streaming.views.task import TaskInfo


class ResponsesStreamView:
    """Events of a Responses stream from all events of a task in order.

    The sequence number of each event is a function of the log, dense from 0, whoever reads it and whenever:
    `response.created` (0), `response.queued` (1), `response.in_progress` (2) with the log's first `start`, then the items, and the
    end, behind which `[DONE]` comes. Of these only those behind `starting_after` are drawn. The first two are drawn by `open`, or
    with what comes next. After the end, `ended` is true and every event is ignored.
    """

    def __init__(self, info: TaskInfo, echo: bytes, *, starting_after: int = -1) -> None:
        self.ended = False
        raise NotImplementedError

    def open(self) -> bytes:
        """What stands before everything else, as soon as somebody is to see it; nothing a second time."""
        raise NotImplementedError

    def feed(self, event: Event) -> bytes:
        """The events that this one adds, often none; to be written in one write."""
        raise NotImplementedError

    @property
    def silence(self) -> bytes:
        """What says that the stream goes on."""
        raise NotImplementedError

    def queue_chunk(self, place: Place) -> bytes:
        """`response.queued` once more, under the number that it has, with the place in line."""
        raise NotImplementedError

    def failed(self, message: str, code: str) -> bytes:
        """The end of a stream that fails beside its task's log: an `error` event. The response may go on."""
        raise NotImplementedError
