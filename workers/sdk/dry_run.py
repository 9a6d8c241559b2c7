"""Runs a handler without a gateway."""

import asyncio
import contextlib
from collections.abc import Callable

from fairlane.workers import protocol
from fairlane.workers.sdk.context import Context
from fairlane.workers.sdk.errors import TaskError
from fairlane.workers.sdk.handlers import Item
from fairlane.workers.sdk.values import Delta, Result, Task, Usage
from fairlane.workers.sdk.worker import Worker


async def dry_run(
    worker: Worker,
    task: Task,
    show: Callable[[Item | protocol.TaskProgress], None],
    *,
    timeout_s: float | None = None,
) -> None:
    """Run one task as the worker would, hooks included; `show` gets each item as it comes.

    Raise `TaskError` (`WORKER_ERROR` when there is no handler for the task), `TimeoutError`, and whatever
    else the handler raises.
    """
    route = worker.registry.find(task.model, task.type)
    if route is None:
        raise TaskError("WORKER_ERROR", f"No handler for model {task.model!r} and type {task.type!r}.")
    loop = asyncio.get_running_loop()

    async def show_progress(message: protocol.TaskProgress) -> None:
        show(message)

    context = Context(
        task,
        state=worker.state,
        deadline=None if timeout_s is None else loop.time() + timeout_s,
        send_progress=show_progress,
    )
    async with (
        worker.started(),
        asyncio.timeout(timeout_s),
        contextlib.aclosing(route.open(task, context)) as items,
    ):
        async for item in items:
            if not isinstance(item, str | bytes | Delta | Usage | Result):
                raise TypeError(
                    f"A handler yields str, bytes, Delta, Usage or Result, not {type(item).__name__}."
                )
            show(item)
