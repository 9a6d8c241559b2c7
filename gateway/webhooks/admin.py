"""What operators see of clients' webhooks, and how they disable one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fairlane.gateway.audit.log import AuditRecord
from fairlane.gateway.database.database import Database
from fairlane.gateway.errors import ApiError
from fairlane.gateway.usage.slots import ReportSlots
from fairlane.gateway.webhooks import store
from fairlane.gateway.webhooks.webhooks import disabled, shown
from fairlane.queues.overrides import Actor
from fairlane.workers.adapters.targets import read_target

BY_OPERATOR = "An operator disabled it."


@dataclass(eq=False)
class WebhookAdmin:
    """The use cases. All raise ApiError and DatabaseUnavailable."""

    _database: Database
    _slots: ReportSlots
    _audit: AuditRecord
    _now_ms: Callable[[], int]

    async def page(self, key: str | None, after: str, limit: int, who: str) -> dict[str, Any]:
        """Return webhooks of all keys, or of one, by id."""
        async with self._slots(who) as connection:
            found = await store.page(connection, key, after, limit + 1)
        rows = [_shown(row) for row in found[:limit]]
        return {"webhooks": rows, "next": rows[-1]["id"] if len(found) > limit else None}

    async def disable(self, webhook: str, actor: Actor) -> dict[str, Any]:
        """Disable a webhook of any owner; a second call changes nothing. Its owner can enable it again."""
        async with self._database.writing() as connection:
            row: Any = await store.find(connection, webhook, None, lock=True)
            if row is None:
                raise ApiError(
                    404, "WEBHOOK_NOT_FOUND", "There is no such webhook: `fairlane webhook list` lists them"
                )
            if row.off_since is None:
                row = await store.update_webhook(connection, webhook, disabled(self._now_ms(), BY_OPERATOR))
        notes: list[str] = []
        facts = {"key": row.key_id, "user": row.user_name, "url": read_target(row.url).origin}
        await self._audit.note(actor, "disable", f"webhook {webhook}", facts, {}, notes)
        return _shown(row) | {"notes": notes}


def _shown(row: Any) -> dict[str, Any]:
    """Return a webhook as operators see it: of its URL the origin, because the rest is a secret at some services."""
    return shown(row) | {"key": row.key_id or None, "user": row.user_name, "url": read_target(row.url).origin}
