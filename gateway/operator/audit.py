"""The record of what operators do, which all replicas share: on its way in the outbox, and then in SQL."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.errors import ApiError
from fairlane.gateway.operator.settings import in_force
from fairlane.gateway.records import refusals
from fairlane.gateway.records.audit import Values, WantedActs, read_page
from fairlane.gateway.records.refusals import WantedRefusals
from fairlane.gateway.records.slots import ReportSlots
from fairlane.gateway.settings import external
from fairlane.queues.errors import StoreError
from fairlane.queues.overrides import Actor
from fairlane.queues.rules import Kind, decode, settings_of
from fairlane.queues.scheduler import Scheduler

log = structlog.get_logger("fairlane.audit")

NOBODY = "(open)"
"""Who did something in a gateway without keys; no key can be named so."""


def actor_of(caller: Caller, address: str) -> Actor:
    """Who does what this caller asks for."""
    return Actor(caller.key_id or NOBODY, address)


class AuditRecord:
    """Entries, newest first. What Redis has taken is SQL's as soon as the outbox is carried there."""

    def __init__(
        self, scheduler: Scheduler, slots: ReportSlots, catch_up: Callable[[], Awaitable[None]]
    ) -> None:
        """`catch_up`: `Outbox.catch_up`."""
        self._scheduler = scheduler
        self._slots = slots
        self._catch_up = catch_up

    async def note(
        self, actor: Actor, action: str, target: str, before: Mapping[str, Any], after: Mapping[str, Any]
    ) -> None:
        """Write down what an operator did beside changing a setting: a line of the log in any case, and an entry.

        `target`: its kind and name; where users are named in `before` or `after`, the member is `user`: forgetting finds them so.
        Raises ApiError (500) when the store cannot take it: what was done is done, and the operator learns that the entry is
        missing. Not 503: a proxy may send a call that was refused so to another replica, which would find nothing to do.
        """
        log.info(
            "operator action",
            actor=actor.name,
            address=actor.address,
            action=action,
            target=target,
            before=before,
            after=after,
        )
        try:
            await self._scheduler.record_action(actor, action, target, before, after)
        except StoreError as error:
            why = f"It is done, but could not be written to the audit record; the log has it ({error})"
            raise ApiError(500, "AUDIT_MISSING", why) from error

    async def noted(
        self,
        notes: list[str],
        actor: Actor,
        action: str,
        target: str,
        before: Mapping[str, Any],
        after: Mapping[str, Any],
    ) -> None:
        """The same for a call that is answered all the same: that the entry is missing comes to the `notes` of its answer."""
        try:
            await self.note(actor, action, target, before, after)
        except ApiError as error:
            notes.append(error.message)

    async def newest(self) -> str | None:
        """The id of the newest entry, be it in SQL or on its way. Raises StoreError."""
        return await self._scheduler.newest_audit_id()

    async def read(self, wanted: WantedActs, after: str | None, limit: int, who: str) -> dict[str, Any]:
        """At most `limit` entries behind the entry `after`, and the `next` one to go on behind: what was done before is there,
        unless SQL is slow. `who` asks: the id of a key. Raises DatabaseUnavailable and ApiError."""
        if after is None:
            await self._catch_up()
        async with self._slots(who) as connection:
            entries, more = await read_page(connection, wanted, after, limit)
        return {"entries": entries, "next": more}

    async def refusals(self, wanted: WantedRefusals, after: str, limit: int, who: str) -> dict[str, Any]:
        """Refused calls by minute, key and code, the newest minute first. Raises as `read` does."""
        async with self._slots(who) as connection:
            rows, more = await refusals.read_page(connection, wanted, after, limit)
        return {"rejections": rows, "next": more}


def as_shown(target: str, stored: Values) -> Values:
    """Settings are told as Redis keeps them, others as they are shown."""
    word = target.partition(" ")[0]
    kind: Kind | None = "queue" if word == "queue" else "model" if word == "model" else None
    if isinstance(values := stored.get("values"), Mapping):  # of an override
        return {**stored, "values": external(values)}
    if kind is None:
        return stored
    known = settings_of(kind)
    held = in_force(kind, {name: decode(kind, name, text) for name, text in stored.items() if name in known})
    return external({name: held.get(name, value) for name, value in stored.items()})
