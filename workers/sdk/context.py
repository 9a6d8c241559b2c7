"""A handler's view of its running task."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Generator, Mapping, MutableMapping
from types import SimpleNamespace
from typing import Any

import msgspec

from fairlane.workers import protocol
from fairlane.workers.sdk.values import Task, Usage, attempt_mark

log = logging.getLogger("fairlane.worker")


class Cancelled(asyncio.Event):
    """False until the task is to stop; then true. `await` it to wait for that moment.

    `reason` is then `client`, `timeout`, `admin` or `superseded` (from the gateway), or `shutdown` or
    `disconnected`. Reading it is safe from a thread; awaiting it is for the event loop.
    """

    reason: str | None = None

    def __bool__(self) -> bool:
        return self.is_set()

    def __await__(self) -> Generator[Any, None, bool]:
        return self.wait().__await__()

    def set(self, reason: str = "") -> None:
        """Mark the task as cancelled. The first reason stays."""
        if not self.is_set():
            self.reason = reason
            super().set()


class _TaskLog(logging.LoggerAdapter[logging.Logger]):
    """Puts the task's id and attempt (`attempt_mark`) before each line, and into the record as `task_id` and `attempt`."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        known: Mapping[str, Any] = self.extra or {}
        kwargs["extra"] = {**known, **(kwargs.get("extra") or {})}
        return f"[{known.get('task_id')} #{attempt_mark(known.get('attempt', 0))}] {msg}", kwargs


class Context:
    """A handler's second argument.

    `deadline` is when the task's time is over, in the event loop's time; None when the gateway named none.
    `state` is what the start-up hooks have put there. `cancelled` is true when the task is to stop: a
    handler on the event loop gets `CancelledError` at its next await anyway, a plain function in a thread has
    to look.
    """

    def __init__(
        self,
        task: Task,
        *,
        state: SimpleNamespace | None = None,
        deadline: float | None = None,
        send_progress: Callable[[protocol.TaskProgress], Awaitable[None]] | None = None,
        send_sent: Callable[[], None] | None = None,
    ) -> None:
        """`Context(task)` is enough to call a handler in a test. `send_sent`: None if the gateway did not ask for `sent`."""
        self.task_id = task.task_id
        self.attempt = task.attempt
        self.model = task.model
        self.state = state or SimpleNamespace()
        self.deadline = deadline
        self.cancelled = Cancelled()
        self.usage_json: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
        self.log = _TaskLog(log, {"task_id": task.task_id, "attempt": task.attempt})
        self._send_progress = send_progress
        self._send_sent = send_sent
        self._clock = (
            asyncio.get_running_loop().time if deadline is not None else None
        )  # `remaining` may run in a thread

    def remaining(self) -> float:
        """Seconds until the deadline; never negative, infinite when there is none."""
        if self.deadline is None or self._clock is None:
            return math.inf
        return max(0.0, self.deadline - self._clock())

    async def progress(
        self,
        *,
        pct: float | None = None,
        note: str | None = None,
        stage: protocol.Stage | None = None,
        usage: Usage | None = None,
    ) -> None:
        """Report to the readers the task's progress: per cent, a sentence, a stage, usage so far. Waits while much is unsent.

        `usage` counts if the task ends without a word of this worker; at most 2,048 bytes of JSON. Raises
        `msgspec.ValidationError` when a value is out of its range, `TypeError` when `usage.details` holds no JSON.
        """
        reported = msgspec.UNSET if usage is None else usage.as_json()
        message = protocol.TaskProgress(
            task_id=self.task_id, attempt=self.attempt, pct=pct, note=note, stage=stage, usage=reported
        )
        msgspec.json.decode(protocol.encoder.encode(message), type=protocol.TaskProgress)
        if self._send_progress is not None:
            await self._send_progress(message)

    def sent(self) -> None:
        """Say that the task's request to its target has left: it is written, and nothing of it waits here any more.

        Of a model with windows the gateway may then start another task as soon as the window is over, and need not wait for the
        end of this one; for any other model it does nothing. The first call counts. Never before the request has left: the
        target could get more than its window allows. Where the handler makes several requests, call it behind the last one. Also
        from a thread.
        """
        send, self._send_sent = self._send_sent, None
        if send is not None:
            send()

    def set_usage(self, usage: Usage) -> None:
        """Record what the task has used so far. The last call counts, also when the task fails.

        Raise `TypeError` when `details` holds something that is not JSON.
        """
        self.usage_json = usage.as_json()
