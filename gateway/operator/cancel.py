"""Ending a task as an operator."""

from collections.abc import Awaitable, Callable

from fairlane.gateway.operator.audit import AuditRecord
from fairlane.queues.tasks import TERMINAL, Fragment, Record, State
from fairlane.streaming.failures import cancelled_end

EndTask = Callable[[str, State, str, Fragment, str], Awaitable[State]]
"""`Gateway.end_task`."""


async def cancel_as_operator(
    end_task: EndTask, audit: AuditRecord, who: str, task_id: str, record: Record
) -> State:
    """End somebody's task for an operator, who is written down. The state it is in afterwards. Raises StoreError."""
    before = record.state
    if before in TERMINAL:
        return before
    state = await end_task(task_id, State.CANCELLED, "cancelled", cancelled_end("admin"), "admin")
    if state is State.CANCELLED:
        shown = {"status": before.value, "user": record.fields["u"], "queue": record.fields["q"]}
        await audit.note(who, "cancel", f"task {task_id}", shown, {"status": state.value})
    return state
