"""The use cases of operators."""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairlane.gateway.admin.drain import Drain
from fairlane.gateway.admin.erasure import UserErasure
from fairlane.gateway.admin.overview import OverviewReader
from fairlane.gateway.admin.search import FILTERS, search
from fairlane.gateway.admin.settings_view import SettingsView
from fairlane.gateway.attached import CancelOther
from fairlane.gateway.audit.log import AuditRecord
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.core.cancel import Cancel
from fairlane.gateway.core.links import StreamLinks
from fairlane.gateway.core.poll import Poll
from fairlane.gateway.errors import ApiError
from fairlane.queues.inspect.inspector import StoreInspector, User
from fairlane.queues.overrides import Actor
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.tasks import State
from fairlane.web.dashboard import SharedFeed
from fairlane.web.history.history import History

MAX_CANCELLED = 50
"""Tasks that a bulk cancel ends at the same time, so that other requests run in between."""


@dataclass(frozen=True, slots=True)
class Operator:
    """The use cases. All raise StoreError."""

    current: ActiveConfig
    scheduler: Scheduler
    overview: OverviewReader
    inspector: StoreInspector
    history: History
    live: SharedFeed
    audit: AuditRecord
    drain: Drain
    poll: Poll
    cancel: Cancel
    links: StreamLinks
    erase: UserErasure
    settings: SettingsView
    cancel_batch: CancelOther | None
    """Cancels what is no task but has tasks, such as a batch; see `Attached.cancel`."""

    async def cancel_all(self, wanted: Mapping[str, str], limit: int, actor: Actor) -> tuple[list[str], bool]:
        """Cancel at most `limit` waiting or running tasks with the `wanted` fields, newest first, as one audit log entry.

        Return their ids, and whether there are more. Tasks that ended by themselves are not included.
        """
        cancelled: list[str] = []
        more, finished = False, False
        try:
            for state in [wanted["state"]] if "state" in wanted else [State.QUEUED, State.EXECUTING]:
                after: str | None = ""
                while after is not None and not more:
                    rows, after = await search(
                        self.scheduler, {**wanted, "state": state}, after, MAX_CANCELLED
                    )
                    room = limit - len(cancelled)
                    more = len(rows) > room
                    await self._end([row["taskId"] for row in rows[:room]], cancelled)
            finished = True
        finally:
            if cancelled:
                shown = {name: wanted[field] for name, field in FILTERS.items() if field in wanted}
                done = {"cancelled": len(cancelled), "more": more or not finished}
                with contextlib.nullcontext() if finished else contextlib.suppress(ApiError):
                    await self.audit.note(actor, "cancel", "tasks", shown, done)
        return cancelled, more

    async def _end(self, ids: list[str], cancelled: list[str]) -> None:
        """Cancel tasks. Add those that this call ended to `cancelled`, even if the store fails for others."""
        ends = await asyncio.gather(*(self.cancel.end(id_, "admin") for id_ in ids), return_exceptions=True)
        cancelled += [task_id for task_id, ended in zip(ids, ends, strict=True) if ended is True]
        for ended in ends:
            if isinstance(ended, BaseException):
                raise ended

    async def top_users(self, limit: int) -> dict[str, Any]:
        """Return the users with the most waiting and running tasks, and the tokens of their tasks that ended lately."""
        found, tokens = await self.inspector.users(), await self.history.tokens_by_user()
        total = sum(tokens.values())
        rows: list[dict[str, Any]] = [
            {
                "user": user.user,
                "waiting": user.waiting,
                "running": user.running,
                "tokens": (used := tokens.get(user.user, 0)),
                "share": used / total if total else None,
                "model": max(user.by_model, key=user.by_model.__getitem__, default=None),
            }
            for user in ({name: User(name) for name in tokens} | found.users).values()
        ]
        rows.sort(key=lambda row: (-row["waiting"], -row["running"], -row["tokens"], row["user"]))
        return {"now": found.now_ms, "users": rows[:limit], "number": len(rows), "complete": found.complete}
