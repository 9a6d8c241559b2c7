"""The audit log of operators' actions, shared by all replicas: in the outbox first, then in SQL."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.admin.changes import effective_values
from fairlane.gateway.audit import rejections
from fairlane.gateway.audit.table import Values, read_page
from fairlane.gateway.errors import ApiError
from fairlane.gateway.settings import external
from fairlane.gateway.usage.reports import ReportSlots, Wanted
from fairlane.queues.errors import StoreError
from fairlane.queues.overrides import Actor, audit_mark
from fairlane.queues.rules import Kind, settings_of
from fairlane.queues.scheduler import Scheduler

log = structlog.get_logger("fairlane.audit")

NOBODY = "(open)"
"""The actor at a gateway without keys; no key can have this id."""


def actor_of(caller: Caller, address: str) -> Actor:
    """Return the actor of a call."""
    return Actor(caller.key_id or NOBODY, address)


@dataclass(eq=False)
class AuditRecord:
    """Audit log entries, newest first. Entries in Redis reach SQL with the outbox."""

    _scheduler: Scheduler
    _slots: ReportSlots
    _catch_up: Callable[[], Awaitable[None]]
    """`Outbox.catch_up`."""

    async def note(
        self,
        actor: Actor,
        action: str,
        target: str,
        before: Mapping[str, Any],
        after: Mapping[str, Any],
        notes: list[str] | None = None,
    ) -> None:
        """Log an operator's action that is no change of a setting, and add an audit log entry.

        `target`: kind and name. Users in `before` and `after` are members `user`, where an erasure finds them. If the store
        rejects the entry, the action is done all the same: the error is added to `notes`, or raised as ApiError (500). Not 503,
        because a proxy may repeat such a call at another replica, which would find nothing to do.
        """
        facts = {"action": action, "target": target, "before": before, "after": after}
        log.info("operator action", actor=actor.name, address=actor.address, **facts)
        try:
            await self._record(actor, action, target, before, after)
        except StoreError as error:
            text = (
                f"It is done, but could not be written to the audit log; the gateway's log has it ({error})"
            )
            if notes is None:
                raise ApiError(500, "AUDIT_MISSING", text) from error
            notes.append(text)

    async def _record(
        self, actor: Actor, action: str, target: str, before: Mapping[str, Any], after: Mapping[str, Any]
    ) -> None:
        values = {"before": _encoded(before), "after": _encoded(after)}
        entry = {"action": action, "target": target, **values}
        who = {"actor": actor.name, "address": actor.address, "mark": audit_mark()}
        await self._scheduler.run("record_action", {"action": entry | who})

    async def newest(self) -> str | None:
        """Return the id of the newest entry, in SQL or in the outbox. Raise StoreError."""
        return (await self._scheduler.hash("pool")).get("acted")

    async def read(self, wanted: Wanted, after: str, limit: int, who: str) -> dict[str, Any]:
        """Return at most `limit` entries after the entry `after`, and the cursor of the next page. Earlier actions are included,
        unless SQL is slow. `who`: id of the caller's key. Raise DatabaseUnavailable and ApiError."""
        if not after:
            await self._catch_up()
        async with self._slots(who) as connection:
            entries, more = await read_page(connection, wanted, after, limit)
        return {"entries": entries, "next": more}

    async def rejections(self, wanted: Wanted, after: str, limit: int, who: str) -> dict[str, Any]:
        """Return rejected calls by minute, key and code, the newest minute first. Raise as `read`."""
        async with self._slots(who) as connection:
            rows, more = await rejections.read_page(connection, wanted, after, limit)
        return {"rejections": rows, "next": more}


def as_shown(target: str, stored: Values) -> Values:
    """Return values as they are shown: settings by their names in files, and a default where none is set."""
    word = target.partition(" ")[0]
    kind: Kind | None = "queue" if word == "queue" else "model" if word == "model" else None
    if isinstance(values := stored.get("values"), Mapping):  # of an override
        return {**stored, "values": external(values)}
    if kind is None:
        return stored
    known = settings_of(kind)
    held = effective_values(kind, {name: value for name, value in stored.items() if name in known})
    return external({name: held.get(name, value) for name, value in stored.items()})


def _encoded(values: Mapping[str, Any]) -> str:
    """Return what a script stores as it is: Lua knows neither null nor an empty map."""
    return msgspec.json.encode(values).decode()
