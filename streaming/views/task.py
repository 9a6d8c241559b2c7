"""What a view has of its task in addition to the events."""

from msgspec import Struct


class TaskInfo(Struct, frozen=True, gc=False):
    """Fixed when the task is submitted.

    `created` is in Unix seconds; `metadata` is JSON, echoed to native readers; `user` is the task's user; `has_fallback`: another
    model may run it, which its `start` event names.
    """

    task_id: str
    model: str
    created: int
    task_type: str
    metadata: bytes | None = None
    user: str = ""
    has_fallback: bool = False
