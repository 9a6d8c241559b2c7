"""The record of what operators do beside changing settings, and ending a task as one."""

from typing import TYPE_CHECKING, Any

import structlog

from fairlane.gateway.callers import Caller
from fairlane.queues.errors import StoreError
from fairlane.queues.tasks import TERMINAL, Record, State
from fairlane.streaming.failures import cancelled_end

if TYPE_CHECKING:
    from fairlane.gateway.runtime import Gateway

log = structlog.get_logger("fairlane.audit")

NOBODY = "(open)"
"""Who did something in a gateway without keys; no key can be named so."""


async def write_down(
    gateway: "Gateway", who: str, action: str, target: str, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """A line of the log in any case, and an entry of the audit record. Raises ApiError(503) when the store cannot take it: what
    was done is done, and the operator knows that the entry is missing."""
    log.info("operator acted", who=who, action=action, target=target, before=before, after=after)
    try:
        await gateway.scheduler.note(who, action, target, before, after)
    except StoreError:
        raise gateway.store_trouble() from None


async def cancel_as_admin(gateway: "Gateway", caller: Caller, task_id: str, record: Record) -> State:
    """End somebody's task for an operator, who is written down. The state it is in afterwards. Raises ApiError."""
    before = record.state
    if before in TERMINAL:
        return before
    state = await gateway.end_task(task_id, State.CANCELLED, "cancelled", cancelled_end("admin"), "admin")
    if state is State.CANCELLED:
        await write_down(
            gateway,
            caller.key_id or NOBODY,
            "cancel",
            f"task {task_id}",
            {"status": before.value, "user": record.fields["u"], "queue": record.fields["q"]},
            {"status": state.value},
        )
    return state
