"""What operators can see and do: all that their surface is given."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairlane.gateway.bodies import Bodies
from fairlane.gateway.current import Current
from fairlane.gateway.operator import changes
from fairlane.gateway.operator.audit import AuditRecord
from fairlane.gateway.operator.drain import Drain
from fairlane.gateway.operator.search import search
from fairlane.gateway.operator.state import StateReader
from fairlane.gateway.tasks.cancel import Cancel
from fairlane.gateway.tasks.links import StreamLinks
from fairlane.gateway.tasks.poll import Poll
from fairlane.queues.rules import Kind
from fairlane.queues.scheduler import Scheduler
from fairlane.web.dashboard import SharedFeed
from fairlane.web.dashboard_history import History


@dataclass(frozen=True, slots=True)
class Operator:
    """Use cases. All raise StoreError."""

    current: Current
    bodies: Bodies
    scheduler: Scheduler
    state: StateReader
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

    async def change(self, kind: Kind, name: str, fields: Mapping[str, Any], who: str) -> dict[str, Any]:
        """See `changes.change`."""
        return await changes.change(self.current.settings, self.scheduler, kind, name, fields, who)
