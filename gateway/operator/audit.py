"""The record of what operators do, which all replicas share."""

from typing import Any

import msgspec
import structlog

from fairlane.gateway.operator.settings import in_force
from fairlane.queues.keys import Keys
from fairlane.queues.link import RedisLink
from fairlane.queues.rules import Kind, decode, settings_of
from fairlane.queues.scheduler import Scheduler

log = structlog.get_logger("fairlane.audit")

NOBODY = "(open)"
"""Who did something in a gateway without keys; no key can be named so."""


class AuditRecord:
    """Entries, newest first, as the store keeps them."""

    def __init__(self, link: RedisLink, keys: Keys, scheduler: Scheduler) -> None:
        self._link = link
        self._key = keys("audit")
        self._scheduler = scheduler

    async def note(
        self, who: str, action: str, target: str, before: dict[str, Any], after: dict[str, Any]
    ) -> None:
        """Write down what an operator did beside changing a setting: a line of the log in any case, and an entry.

        Raises StoreError when the store cannot take it: what was done is done, and the operator knows that the entry is missing.
        """
        log.info("operator acted", who=who, action=action, target=target, before=before, after=after)
        await self._scheduler.note(who, action, target, before, after)

    async def newest(self) -> str | None:
        """The id of the newest entry. Raises StoreError."""
        found = await self._link.command("XREVRANGE", self._key, "+", "-", "COUNT", 1)
        return found[0][0].decode() if found else None

    async def read(self, after: str | None, limit: int) -> dict[str, Any]:
        """At most `limit` entries behind the entry `after`, and the `next` one to go on behind. Raises StoreError."""
        newest = f"({after}" if after else "+"
        reply = await self._link.command("XREVRANGE", self._key, newest, "-", "COUNT", limit + 1)
        entries = [
            _entry(entry_id.decode(), dict(zip(flat[::2], flat[1::2], strict=True)))
            for entry_id, flat in reply
        ]
        more = len(entries) > limit
        return {"entries": entries[:limit], "next": entries[limit - 1]["id"] if more else None}


def _entry(entry_id: str, fields: dict[bytes, bytes]) -> dict[str, Any]:
    text = {name: fields[name.encode()].decode("utf-8", "replace") for name in ("who", "action", "target")}
    target = text["target"].partition(" ")[0]
    kind: Kind | None = "queue" if target == "queue" else "model" if target == "model" else None
    before, after = (_values(kind, msgspec.json.decode(fields[when])) for when in (b"before", b"after"))
    return {"id": entry_id, "at": int(entry_id.partition("-")[0]), **text, "before": before, "after": after}


def _values(kind: Kind | None, stored: dict[str, Any]) -> dict[str, Any]:
    """Settings are stored as Redis keeps them, others as they are shown."""
    if kind is None:
        return stored
    known = settings_of(kind)
    held = in_force(kind, {name: decode(kind, name, text) for name, text in stored.items() if name in known})
    return {name: held.get(name, value) for name, value in stored.items()}
