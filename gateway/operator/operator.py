"""What operators can see and do: all that their surface is given."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairlane.gateway.bodies import Bodies
from fairlane.gateway.current import Current
from fairlane.gateway.errors import ApiError
from fairlane.gateway.operator import changes
from fairlane.gateway.operator.audit import AuditRecord
from fairlane.gateway.operator.drain import Drain
from fairlane.gateway.operator.search import FILTERS, search
from fairlane.gateway.operator.state import StateReader
from fairlane.gateway.operator.users import top_users
from fairlane.gateway.tasks.cancel import Cancel
from fairlane.gateway.tasks.links import StreamLinks
from fairlane.gateway.tasks.poll import Poll
from fairlane.queues.rules import Kind
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.tasks import Record, State
from fairlane.queues.users import UserReader
from fairlane.web.dashboard import SharedFeed
from fairlane.web.dashboard_history import History

CANCELLED_AT_ONCE = 50
"""Tasks that a bulk cancel ends at the same time: others are served between."""


@dataclass(frozen=True, slots=True)
class Operator:
    """Use cases. All raise StoreError."""

    current: Current
    bodies: Bodies
    scheduler: Scheduler
    state: StateReader
    users: UserReader
    history: History
    live: SharedFeed
    audit: AuditRecord
    drain: Drain
    poll: Poll
    cancel: Cancel
    links: StreamLinks

    async def search(
        self, wanted: Mapping[str, str], after: str, limit: int
    ) -> tuple[list[dict[str, Any]], str | None]:
        """See `search.search`."""
        return await search(self.scheduler, wanted, after, limit)

    async def cancel_all(self, wanted: Mapping[str, str], limit: int, who: str) -> tuple[list[str], bool]:
        """Cancel at most `limit` tasks that wait or run and have the `wanted` fields, the newest first; written down as one act.

        Returns which, and whether there are more. What ends by itself meanwhile is not counted.
        """
        states = [wanted["st"]] if "st" in wanted else [State.QUEUED, State.EXECUTING]
        cancelled: list[str] = []
        more = False
        for state in states:
            after = ""
            while not more:
                rows, next_after = await self.search({**wanted, "st": state}, after, CANCELLED_AT_ONCE)
                room = limit - len(cancelled)
                more = len(rows) > room
                ids = [row["taskId"] for row in rows[:room]]
                outcomes = await asyncio.gather(*(self.cancel.end(task_id, "admin") for task_id in ids))
                cancelled += [task_id for task_id, ended in zip(ids, outcomes, strict=True) if ended]
                if next_after is None:
                    break
                after = next_after
        if cancelled:
            shown = {name: wanted[field] for name, field in FILTERS.items() if field in wanted}
            await self.audit.note(who, "cancel", "tasks", shown, {"cancelled": len(cancelled), "more": more})
        return cancelled, more

    async def known(self, task_id: str) -> tuple[Record, bool]:
        """What is known of a task, and whether its events are still kept. Raises ApiError (404)."""
        remembered = await self.scheduler.remembered(task_id)
        try:
            record = await self.poll.record(task_id)
        except ApiError:
            if remembered is None:
                raise
            return remembered, False
        if remembered is not None:
            record.fields["er"] = remembered.fields.get("er", "")
        return record, True

    async def top_users(self, limit: int) -> dict[str, Any]:
        """See `users.top_users`."""
        return await top_users(self.users, self.history, limit)

    async def change(self, kind: Kind, name: str, fields: Mapping[str, Any], who: str) -> dict[str, Any]:
        """See `changes.change`."""
        return await changes.change(self.current.settings, self.scheduler, kind, name, fields, who)
