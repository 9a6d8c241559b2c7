"""Fairlane: fair queueing for shared LLMs, a gateway that queues requests instead of rejecting them.

What a worker author imports stands here: `Worker` and what its handlers use, and `FakeGateway` to test them. It is loaded when it is
first used, so that importing a part of the package costs only that part.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairlane.workers.sdk import Context, Delta, Result, Stage, Task, TaskError, Usage, Worker
    from fairlane.workers.testing import FakeGateway

__version__ = "0.1.0"

__all__ = ["Context", "Delta", "FakeGateway", "Result", "Stage", "Task", "TaskError", "Usage", "Worker"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("fairlane.workers.testing" if name == "FakeGateway" else "fairlane.workers.sdk"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
