"""Ends tasks from outside."""

from collections.abc import Awaitable, Callable

from fairlane.queues.overrides import Actor
from fairlane.queues.tasks import TERMINAL, Ended, Record, State
from fairlane.workers.server.cancel import By


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
