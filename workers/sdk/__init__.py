"""The worker SDK: write a handler, run a worker.

Worker                        holds handlers, connects to a gateway, runs tasks
Task, Context                 what a handler gets
Delta, Usage, Result          what a handler may yield, in addition to plain text
TaskError                     what a handler raises to fail with a code of its own
GatewayRefusedError, BadAddressError    why a worker cannot work
"""

from fairlane.workers.protocol import Stage
from fairlane.workers.sdk.context import Context
from fairlane.workers.sdk.errors import BadAddressError, GatewayRefusedError, TaskError
from fairlane.workers.sdk.values import Delta, Result, Task, Usage
from fairlane.workers.sdk.worker import Worker

__all__ = [
    "BadAddressError",
    "Context",
    "Delta",
    "GatewayRefusedError",
    "Result",
    "Stage",
    "Task",
    "TaskError",
    "Usage",
    "Worker",
]
