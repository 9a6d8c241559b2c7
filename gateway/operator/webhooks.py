"""What operators see of callers' webhooks, and how they switch one off."""

from collections.abc import Callable
from typing import Any

from fairlane.gateway.database.database import Database
from fairlane.gateway.errors import ApiError
from fairlane.gateway.operator.audit import AuditRecord
from fairlane.gateway.records.slots import ReportSlots
from fairlane.gateway.webhooks import store
from fairlane.gateway.webhooks.webhooks import shown
from fairlane.queues.actor import Actor

BY_OPERATOR = "An operator disabled it."


class WebhookAdmin:
    """Use cases. All raise ApiError and DatabaseUnavailable."""

    def __init__(
        self, database: Database, slots: ReportSlots, audit: AuditRecord, now_ms: Callable[[], int]
    ) -> None:
        self._database = database
        self._slots = slots
        self._audit = audit
        self._now_ms = now_ms

    async def page(self, key: str | None, after: str, limit: int, who: str) -> dict[str, Any]:
        """Everybody's webhooks, or a key's, by id. Of their URLs the query is not told: it may hold a secret."""
        async with self._slots(who) as connection:
            found = await store.all_webhooks(connection, key, after, limit + 1)
        rows = [_of_somebody(row) for row in found[:limit]]
        return {"webhooks": rows, "next": rows[-1]["id"] if len(found) > limit else None}

    async def off(self, webhook: str, actor: Actor) -> dict[str, Any]:
        """Switch one off, whoever's it is; a second call changes nothing. Its owner may switch it on again."""
        async with self._database.writing() as connection:
            row: Any = await store.find(connection, webhook, None, change=True)
            if row is None or row.key_id == store.REMOVED:
                raise ApiError(
                    404, "WEBHOOK_NOT_FOUND", "There is no such webhook: `fairlane webhook list` lists them"
                )
            if row.off_since is None:
                off = {"off_since": self._now_ms(), "off_why": BY_OPERATOR, "due": None, "claim": ""}
                await store.set_values(connection, webhook, off)
                row = await store.find(connection, webhook, None)
        notes: list[str] = []
        told = {"key": row.key_id, "user": row.user_name, "url": _without_query(row.url)}
        await self._audit.noted(notes, actor, "disable", f"webhook {webhook}", told, {})
        return _of_somebody(row) | {"notes": notes}


def _of_somebody(row: Any) -> dict[str, Any]:
    return shown(row) | {"key": row.key_id or None, "user": row.user_name, "url": _without_query(row.url)}


def _without_query(url: str) -> str:
    path, mark, _ = url.partition("?")
    return f"{path}{mark}…" if mark else path
