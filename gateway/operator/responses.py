"""Kept responses as operators see them: never their content."""

from collections.abc import Sequence
from typing import Any

from fairlane.gateway.responses.rows import Row
from fairlane.gateway.responses.store import ResponseStore, Wanted
from fairlane.queues.clock import now_ms
from fairlane.queues.loops import all_of
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.tasks import State

STATUSES: dict[State, str] = {
    State.QUEUED: "queued",
    State.EXECUTING: "in_progress",
    State.COMPLETED: "completed",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
}
"""How a response stands whose end SQL does not have, by its task."""
ASKED_AT_ONCE = 50


class ResponseList:
    """Reads them, SQL for what has ended, and the store for the others."""

    def __init__(self, store: ResponseStore, scheduler: Scheduler) -> None:
        self._store = store
        self._scheduler = scheduler

    async def read(self, wanted: Wanted, after: str, limit: int) -> dict[str, Any]:
        """At most `limit` of them, the newest first, and the `after` that goes on. Raises ApiError, StoreError and
        DatabaseUnavailable."""
        rows, following = await self._store.page(wanted, after, limit, now_ms())
        standing = await self._standing([row.task_id for row in rows if row.ended is None])
        shown = [_shown(row, row.status or standing[row.task_id]) for row in rows]
        return {"responses": shown, "next": following}

    async def _standing(self, task_ids: Sequence[str]) -> dict[str, str]:
        found = {}
        for at in range(0, len(task_ids), ASKED_AT_ONCE):
            page = task_ids[at : at + ASKED_AT_ONCE]
            records = await all_of(map(self._scheduler.position, page))
            for task_id, record in zip(page, records, strict=True):
                found[task_id] = "failed" if record is None else STATUSES[record.state]
        return found


def _shown(row: Row, status: str) -> dict[str, Any]:
    return {
        "id": row.id,
        "taskId": row.task_id,
        "key": row.key_id,
        "user": row.user,
        "model": row.model,
        "status": status,
        "background": row.background,
        "createdAt": row.created,
        "endedAt": row.ended,
        "expiresAt": row.expires,
    }
