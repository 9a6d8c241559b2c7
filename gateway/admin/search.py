"""Finds tasks by fields of their records, and describes a single one."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from fairlane.gateway.admin.rows import listed, task_row
from fairlane.gateway.core.poll import place_fields, plan_fields
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.tasks import Record, State

FILTERS = {
    "status": "state",
    "user": "user",
    "queue": "queue",
    "model": "model",
    "requestedModel": "route",
    "worker": "worker",
    "code": "code",
}
"""Parameters of a search, and the fields of a task's record that must equal them."""
STATES = frozenset(state.value for state in State)
LOOK_AT = 250
MAX_CALLS = 40
"""A search reads LOOK_AT tasks at a time, so that Redis serves others in between, and reads all recent tasks."""


async def search(
    scheduler: Scheduler, wanted: Mapping[str, str], after: str, limit: int
) -> tuple[list[dict[str, Any]], str | None]:
    """Return at most `limit` tasks after `after` whose record has the `wanted` fields, newest first, and the cursor of the next
    page (None at the end). Raise StoreError."""
    source: Literal["running", "recent"] = "running" if wanted.get("state") == State.EXECUTING else "recent"
    rows: list[dict[str, Any]] = []
    for _ in range(MAX_CALLS if limit else 0):
        found, after = await scheduler.search(
            source, wanted, after=after, most=limit - len(rows), look_at=LOOK_AT
        )
        rows += [task_row(task_id, fields) for task_id, fields in found if fields.get("state") in STATES]
        if not after or len(rows) >= limit:
            break
    return rows, after or None


def describe(task_id: str, record: Record) -> dict[str, Any]:
    """Return everything of a task except payload and output."""
    fields = record.fields

    def number(field: str) -> int | None:
        return record.number(field) if fields.get(field) else None

    row = task_row(task_id, fields) | {
        "now": record.now_ms,
        "priority": record.number("priority"),
        "tries": record.number("tries"),
        "stream": fields.get("stream") == "1",
        "waited": fields.get("waiting") == "1",
        "fallbacks": [model for model, _ in listed(fields, "fallbacks")],
        **plan_fields("", "", fields.get("template", "")),
        "estimatedInputTokens": number("input_tokens"),
        "maxOutputTokens": number("max_output"),
        "payloadBytes": number("payload_bytes"),
        "waitDeadlineAt": number("wait_deadline"),
        "deadlineAt": number("deadline"),
        "attemptDeadlineAt": number("attempt_deadline"),
        "keepMs": number("ttl"),
        "events": record.number("top"),
        "permit": None,
        "metadata": msgspec.Raw(fields["metadata"].encode()) if fields.get("metadata") else None,
    }
    if record.state is State.QUEUED:
        row |= place_fields(record.place)
    return row
