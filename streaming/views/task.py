"""What a view knows of its task besides the events."""

from msgspec import Struct


class TaskInfo(Struct, frozen=True, gc=False):
    """Fixed when the task is submitted.

    `created` is in Unix seconds; `metadata` is JSON, echoed to native readers; `user` is whose it is; `falls`: another model may
    come to run it, which its `start` tells.
    """

    task_id: str
    model: str
    created: int
    task_type: str
    metadata: bytes | None = None
    user: str = ""
    falls: bool = False
