"""Ends tasks from outside."""

from collections.abc import Awaitable, Callable

from fairlane.queues.scheduler import Scheduler
from fairlane.queues.tasks import TERMINAL, Record, State
from fairlane.streaming.failures import cancelled_end


class Cancel:
    """Cancels tasks. Both ways are fine for a task that has ended; they tell the state afterwards, and raise StoreError."""

    def __init__(
        self,
        scheduler: Scheduler,
        show_end: Callable[[str, str, str, bytes], None],
        note: Callable[..., Awaitable[None]],
    ) -> None:
        """`show_end(task_id, event_id, kind, data)` brings the terminal event to the readers here. `note`: `AuditRecord.note`."""
        self._scheduler = scheduler
        self._show_end = show_end
        self._note = note

    async def own(self, task_id: str, record: Record) -> State:
        """For the caller whose task it is."""
        return await self._end(task_id, record.state, "client")

    async def others(self, task_id: str, record: Record, who: str) -> State:
        """For an operator, who is written down."""
        before = record.state
        state = await self._end(task_id, before, "admin")
        if state is State.CANCELLED and before not in TERMINAL:
            shown = {"status": before.value, "user": record.fields["u"], "queue": record.fields["q"]}
            await self._note(who, "cancel", f"task {task_id}", shown, {"status": state.value})
        return state

    async def _end(self, task_id: str, state: State, by: str) -> State:
        if state in TERMINAL:
            return state
        ended = await self._scheduler.cancel(
            task_id, state=State.CANCELLED, kind="cancelled", end=cancelled_end(by), why=by
        )
        if ended.outcome == "ended":
            self._show_end(task_id, ended.event_id, ended.kind, ended.data)
        return State(ended.state) if ended.state else State.CANCELLED
