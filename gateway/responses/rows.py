"""What is known of a response that is kept, beside its content. Pure."""

from typing import NamedTuple

from fairlane.gateway.accounts.owner import Owner
from fairlane.streaming.views.responses import response_id
from fairlane.streaming.views.task import TaskInfo

TASK_TYPE = "openaiLike"
CONTINUED = frozenset({"completed", "incomplete"})
"""How a response must have ended for others to go on from it."""


class Row(NamedTuple):
    """A response as its row in SQL has it; times in ms since 1970."""

    task_id: str
    key_id: str
    user: str
    """With `key_id` whose it is, as of a task."""
    created: int
    expires: int
    background: bool
    model: str
    """With which it was submitted."""
    falls: bool
    """Another model may have run, which the log tells."""
    previous: str
    """The task of the response that it goes on from; '' = none."""
    echo: bytes
    """What its object repeats of its request, JSON."""
    ended: int | None = None
    """None: SQL does not have its log yet."""
    status: str = ""
    """As Responses tell it, once it has ended."""

    @property
    def id(self) -> str:
        """As callers know it."""
        return response_id(self.task_id)

    @property
    def owner(self) -> Owner:
        """Whose it is."""
        return Owner(self.key_id, self.user)

    @property
    def info(self) -> TaskInfo:
        """What views know of its task: the same wherever and whenever it is read."""
        return TaskInfo(
            self.task_id, self.model, self.created // 1000, TASK_TYPE, user=self.user, falls=self.falls
        )


class New(NamedTuple):
    """A response that is to be kept."""

    row: Row
    input_items: bytes
    """JSON, a list of items."""

    @property
    def size(self) -> int:
        """Bytes of its content so far."""
        return len(self.row.echo) + len(self.input_items)


class Turn(NamedTuple):
    """One response in the line of those that a conversation consists of."""

    row: Row
    size: int
