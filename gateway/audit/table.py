"""Audit log entries in SQL: what operators did. Each is written once; pages begin with the newest."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import desc, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.database.inserting import insert_new
from fairlane.gateway.database.tables import audit
from fairlane.gateway.records.entries import at_of
from fairlane.gateway.records.erasure import ErasedUsers, erase_from_audit, users_of_audit, values_of
from fairlane.gateway.usage.reports import Wanted

Values = dict[str, Any]


class _Act(msgspec.Struct):
    """An entry (outbox.lua)."""

    id: str
    actor: str
    address: str
    action: str
    target: str
    before: Any
    after: Any


_unpack = msgspec.msgpack.Decoder(_Act).decode


class AuditTable:
    """Takes entries of the kind `audit`."""

    def __init__(self, as_shown: Callable[[str, Values], Values], erased: ErasedUsers) -> None:
        """`as_shown` converts values of a target from the names of code to their form in the API."""
        self._as_shown = as_shown
        self._erased = erased

    async def write(self, connection: AsyncConnection, packed: Sequence[bytes]) -> int:
        """See `outbox.Table`."""
        packed = await self._erased.anonymized(connection, packed, users_of_audit, erase_from_audit)
        return await insert_new(connection, audit, [self._row(entry) for entry in packed])

    def _row(self, packed: bytes) -> Mapping[str, Any]:
        act = _unpack(packed)
        shown = [
            msgspec.json.encode(self._as_shown(act.target, values_of(values))).decode()
            for values in (act.before, act.after)
        ]
        return {
            "id": act.id,
            "at": at_of(act.id),
            "who": act.actor,
            "address": act.address,
            "action": act.action,
            "target": act.target,
            "before": shown[0],
            "after": shown[1],
        }


async def read_page(
    connection: AsyncConnection, wanted: Wanted, after: str, limit: int
) -> tuple[list[dict[str, Any]], str | None]:
    """Return up to `limit` entries behind the entry `after`, newest first, and the `after` of the next page. Filters: actor,
    action, target: a whole target, or its kind."""
    columns = audit.c
    found = select(audit).where(columns.at >= wanted.since, columns.at < wanted.until)
    for name, value in wanted.filters.items():
        if name == "target":
            of_kind = columns.target.startswith(value + " ", autoescape=True)
            found = found.where(or_(columns.target == value, of_kind))
        else:
            found = found.where(columns["who" if name == "actor" else name] == value)
    if after:
        found = found.where(tuple_(columns.at, columns.id) < tuple_(at_of(after), after))
    found = found.order_by(desc(columns.at), desc(columns.id)).limit(limit + 1)
    rows = (await connection.execute(found)).mappings().all()
    entries = [_shown(row) for row in rows[:limit]]
    return entries, entries[-1]["id"] if len(rows) > limit else None


def _shown(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {
        "id": row["id"],
        "at": row["at"],
        "actor": row["who"],
        "from": row["address"],
        **{name: row[name] for name in ("action", "target")},
        **{name: msgspec.Raw(row[name].encode()) for name in ("before", "after")},
    }
