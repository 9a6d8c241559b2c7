"""The rows of stored responses, without their content. Pure."""

from typing import NamedTuple

from fairlane.gateway.accounts.owner import Owner
from fairlane.streaming.views.responses import response_id
from fairlane.streaming.views.task import TaskInfo

TASK_TYPE = "openaiLike"
CONTINUED = frozenset({"completed", "incomplete"})
"""The statuses of responses that others can continue."""


class Row(NamedTuple):
    """A stored response; times in ms since 1970."""

    task_id: str
    key_id: str
    user: str
    """With `key_id` the owner, as of a task."""
    created: int
    expires: int
    background: bool
    model: str
    """The model at submission."""
    falls: bool
    """Another model may have run; the log has its name."""
    previous: str
    """The task of the response that it continues; '' = none."""
    echo: bytes
    """The members of its object that repeat the request, JSON."""
    ended: int | None = None
    """None: SQL does not have its log yet."""
    status: str = ""
    """The status of the response object, once it has ended."""

    @property
    def id(self) -> str:
        """The response's id."""
        return response_id(self.task_id)

    @property
    def owner(self) -> Owner:
        """The key and user that it belongs to."""
        return Owner(self.key_id, self.user)

    @property
    def info(self) -> TaskInfo:
        """The task info for views: the same in all reads."""
        return TaskInfo(
            self.task_id, self.model, self.created // 1000, TASK_TYPE, user=self.user, has_fallback=self.falls
        )


class New(NamedTuple):
    """A response to be stored."""

    row: Row
    input_items: bytes
    """JSON, a list of items."""

    @property
    def size(self) -> int:
        """The bytes of its content so far."""
        return len(self.row.echo) + len(self.input_items)


class Turn(NamedTuple):
    """One response of a conversation."""

    row: Row
    size: int
