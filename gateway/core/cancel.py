"""Ends tasks from outside."""

import asyncio
from collections.abc import Awaitable, Callable, Collection

import structlog

from fairlane.queues.errors import StoreError
from fairlane.queues.loops import gather_all
from fairlane.queues.overrides import Actor
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.tasks import TERMINAL, Ended, Record, State
from fairlane.workers.server.background import Background
from fairlane.workers.server.cancel import By

log = structlog.get_logger("fairlane.gateway")

MAX_SCANNED = 500
"""Tasks that one call of the store scans: others are served in between."""
MAX_CONCURRENT = 50
"""Tasks that are cancelled at the same time."""
AFTER_S = 1.5
"""By then every replica knows of the change and rejects these keys."""


class Cancel:
    """Cancels tasks, also ended ones: each method returns the state afterwards, and raises StoreError."""

    def __init__(
        self, cancel: Callable[[str, By], Awaitable[Ended]], note: Callable[..., Awaitable[None]]
    ) -> None:
        """`cancel`: `Cancels.cancel`. `note`: `AuditRecord.note`."""
        self._cancel = cancel
        self._note = note

    async def own(self, task_id: str, record: Record) -> State:
        """Cancel a caller's own task."""
        return await self._end(task_id, record.state, "client")

    async def others(self, task_id: str, record: Record, actor: Actor) -> State:
        """Cancel a task for an operator, and note it in the audit log."""
        before = record.state
        state = await self._end(task_id, before, "admin")
        if state is State.CANCELLED and before not in TERMINAL:
            shown = {"status": before.value, "user": record.fields["user"], "queue": record.fields["queue"]}
            await self._note(actor, "cancel", f"task {task_id}", shown, {"status": state.value})
        return state

    async def end(self, task_id: str, by: By) -> bool:
        """End a task without a note; return whether this call did."""
        return (await self._cancel(task_id, by)).outcome == "ended"

    async def _end(self, task_id: str, state: State, by: By) -> State:
        if state in TERMINAL:
            return state
        ended = await self._cancel(task_id, by)
        return State(ended.state) if ended.state else State.CANCELLED


class KeyTasks:
    """Ends tasks by the key that submitted them, whatever they do."""

    def __init__(self, scheduler: Scheduler, cancel: Cancel, background: Background) -> None:
        self._scheduler = scheduler
        self._cancel = cancel
        self._background = background

    async def end(self, keys: Collection[str]) -> int:
        """Cancel all tasks of these keys that wait or run; return how many. May be called again after a StoreError."""
        number, cursor = 0, ""
        while cursor != "0":
            found, cursor = await self._scheduler.tasks_of_keys(keys, cursor or "0", MAX_SCANNED)
            for at in range(0, len(found), MAX_CONCURRENT):
                part = found[at : at + MAX_CONCURRENT]
                number += sum(await gather_all(self._cancel.end(task_id, "admin") for task_id in part))
        return number

    def end_soon(self, keys: Collection[str]) -> None:
        """Do the same once no replica accepts tasks of these keys, retried until Redis answers. Each replica does it, as any may
        die."""
        self._background.spawn(self._end_soon(keys))

    async def _end_soon(self, keys: Collection[str]) -> None:
        await asyncio.sleep(AFTER_S)
        try:
            number = await self._background.until_answered(lambda: self.end(keys))
        except StoreError as error:
            log.error("tasks of a revoked key may still wait or run", keys=sorted(keys), error=str(error))
            return
        if number:
            log.info("tasks of revoked keys were cancelled", keys=sorted(keys), tasks=number)
