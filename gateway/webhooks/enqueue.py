"""Writes down, in the transaction in which something ended, who is to be told of it by webhooks."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import bindparam, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.database.inserting import MAX_ROWS, insert_rows
from fairlane.gateway.database.tables import webhook_deliveries, webhooks
from fairlane.gateway.webhooks.events import ANY, EVERY_USER, delivery_id, event_id

MAX_WAITING = 10_000
"""Deliveries that a webhook may owe. Of more ends it tells nothing, and its owner sees how many those were."""


_IF_NEW = "ON CONFLICT (id) DO NOTHING RETURNING id"


class End(NamedTuple):
    """Something that has ended."""

    owner: Owner
    event: str
    """How its end is called, one of EVENTS: `batch.completed`."""
    object_id: str
    """What callers know it by: a task's id, `resp_…`, `batch_…`."""
    ended: int
    """When, ms since 1970."""


async def enqueue(connection: AsyncConnection, owner: Owner, event: str, object_id: str, ended: int) -> int:
    """Have the owner's webhooks tell of one end; how many will. See `enqueue_all`."""
    return await enqueue_all(connection, [End(owner, event, object_id, ended)])


async def enqueue_all(connection: AsyncConnection, ends: Sequence[End]) -> int:
    """Have webhooks of their owners tell of these ends; how many deliveries are new.

    What is owed is written in this transaction: it is owed if that is committed, and only then, whoever dies. A second call for
    the same end (event and object) adds nothing, so a transaction may be repeated. For owners without webhooks it is one look
    into a small table. Raises what the database raises, and nothing of its own.
    """
    found = await _webhooks_of(connection, {end.owner for end in ends})
    rows: list[tuple[Any, ...]] = []
    of: dict[str, str] = {}
    missed: Counter[str] = Counter()
    first_due: dict[str, int] = {}
    for webhook in found:
        room = MAX_WAITING - webhook.waiting
        for end in ends:
            if not _hears(webhook, end):
                continue
            if room <= 0:
                missed[webhook.id] += 1
                continue
            room -= 1
            row = row_of(webhook.id, end.event, end.object_id, end.owner.user, end.ended)
            rows.append(tuple(row.values()))
            of[row["id"]] = webhook.id
            first_due[webhook.id] = min(first_due.get(webhook.id, end.ended), end.ended)
    new: Counter[str] = Counter()
    for at in range(0, len(rows), MAX_ROWS):
        written = await insert_rows(connection, webhook_deliveries, rows[at : at + MAX_ROWS], _IF_NEW)
        new.update(of[key] for (key,) in written)
    changes = [
        {
            "of": webhook.id,
            "more": new[webhook.id],
            "less": missed[webhook.id],
            "when": due_of(webhook, first_due[webhook.id]) if new[webhook.id] else webhook.due,
        }
        for webhook in found
        if new[webhook.id] or missed[webhook.id]
    ]
    if changes:
        columns = webhooks.c
        counted = {
            "waiting": columns.waiting + bindparam("more"),
            "missed": columns.missed + bindparam("less"),
            "due": bindparam("when"),
        }
        await connection.execute(
            update(webhooks).where(columns.id == bindparam("of")).values(counted), changes
        )
    return new.total()


async def _webhooks_of(connection: AsyncConnection, owners: Iterable[Owner]) -> Sequence[Any]:
    """Those that are on and may hear of these owners, held until the end of the transaction: whoever counts what they owe, or
    sees that it is nothing, comes before or after."""
    keys = {owner.key_id for owner in owners}
    users = {owner.user for owner in owners} | {EVERY_USER}
    return (await connection.execute(_OF_OWNERS, {"keys": list(keys), "users": list(users)})).all()


_columns = webhooks.c
_OF_OWNERS = (
    select(
        *(_columns.id, _columns.key_id, _columns.user_name, _columns.events),
        *(_columns.waiting, _columns.due, _columns.not_before, _columns.claim),
    )
    .where(
        _columns.key_id.in_(bindparam("keys", expanding=True)),
        _columns.user_name.in_(bindparam("users", expanding=True)),
        _columns.off_since.is_(None),
    )
    .order_by(_columns.id)  # two that hold several never wait for each other in a circle
    .with_for_update()
)
"""Made once: a list that is said where the statement is made leaves circles for the collector, page after page of ends."""


def _hears(webhook: Any, end: End) -> bool:
    """Whether a webhook tells of an end."""
    owner = end.owner
    if webhook.key_id != owner.key_id:
        return False
    every = (
        webhook.user_name == EVERY_USER and owner.key_id != ""
    )  # in an open gateway it is some user's name
    return (every or webhook.user_name == owner.user) and hears_of(webhook.events, end.event)


def hears_of(events: str, event: str) -> bool:
    """Whether an event is among those of a webhook, as they are stored."""
    return event in events.split(" ") or events == ANY


def row_of(webhook: str, event: str, object_id: str, user: str, at: int, name: str = "") -> dict[str, Any]:
    """A delivery that is owed from `at` on: all columns, in their order. `name`: of the event, if it is not the one event of
    its kind that the object has."""
    name = name or event_id(event, object_id)
    return {
        "id": delivery_id(webhook, name),
        "webhook": webhook,
        "event_id": name,
        "event": event,
        "object_id": object_id,
        "user_name": user,
        "created": at,
        "state": "waiting",
        "began": at,
        "tries": 0,
        "attempts": 0,
        "due": at,
        "ended": None,
        "status": None,
        "error": "",
        "log": "",
    }


def due_of(webhook: Any, at: int, *, at_once: bool = False) -> int | None:
    """When a replica has to look at a webhook that owes something more from `at` on: `at_once`, or when it has rested. While one
    sends, it sees that itself."""
    if webhook.claim:
        return int(webhook.due)
    when = at if at_once else max(at, webhook.not_before)
    return when if webhook.due is None else min(webhook.due, when)
