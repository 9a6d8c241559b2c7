"""Ends tasks from outside, in any state: the one way for clients, operators and the gateway itself."""

from collections.abc import Callable, Sequence
from typing import Literal

from fairlane.queues.scheduler import Scheduler
from fairlane.queues.tasks import Ended, Fragment, State
from fairlane.streaming.events import Event, cancelled_end, fragment_error, terminal_event
from fairlane.workers.server.background import Background

By = Literal["client", "admin", "timeout", "gateway"]
"""The originator of an end: the client, an operator, its client's deadline, or a gateway to which its outcome is unknown."""

TIMEOUT = Fragment(fragment_error("Task timeout", "TOTAL_TIMEOUT", False), "TOTAL_TIMEOUT")
TOMBSTONE_MS = 600_000
"""A submit of unknown outcome that arrives within this time is rejected."""


class Cancels:
    """See the module. `deliver` brings events to the readers of this replica."""

    def __init__(
        self, scheduler: Scheduler, deliver: Callable[[str, Sequence[Event]], None], background: Background
    ) -> None:
        self._scheduler = scheduler
        self._deliver = deliver
        self._background = background

    async def cancel(self, task_id: str, by: By) -> Ended:
        """End a task in any state, and show its end here. Raise StoreError; the call may be repeated then.

        By `timeout` the task fails, else it is cancelled. After `gateway`, a submit of it that arrives late is rejected.
        """
        state, kind, end = State.CANCELLED, "cancelled", cancelled_end(by)
        if by == "timeout":
            state, kind, end = State.FAILED, "error", TIMEOUT
        unknown = by == "gateway"
        ended = await self._scheduler.cancel(
            task_id,
            state=state,
            kind=kind,
            end=end,
            why="client" if unknown else by,
            tombstone_ms=TOMBSTONE_MS if unknown else 0,
        )
        if ended.outcome == "ended":
            self._deliver(task_id, [terminal_event(ended)])
        return ended

    def cancel_soon(self, task_id: str, by: By) -> None:
        """Cancel a task in the background; retry until Redis answers."""
        self._background.spawn(self._until_cancelled(task_id, by))

    def abandon_soon(self, task_id: str) -> None:
        """End a task that was not reported to its client, without waiting, and keep nothing of it: a request with its
        idempotency key starts again. Tried until Redis answers."""
        self._background.spawn(self._until_abandoned(task_id))

    async def _until_abandoned(self, task_id: str) -> None:
        await self._background.until_answered(lambda: self._scheduler.delete_task(task_id))
        await self._until_cancelled(task_id, "gateway")

    async def _until_cancelled(self, task_id: str, by: By) -> None:
        await self._background.until_answered(lambda: self.cancel(task_id, by))
