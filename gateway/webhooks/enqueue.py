"""Adds deliveries for ends, in the transaction that records these ends."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.database.inserting import insert_rows
from fairlane.gateway.database.tables import DeliveryRow, webhook_deliveries, webhooks
from fairlane.gateway.records.entries import read_entry
from fairlane.gateway.webhooks.events import ANY, EVERY_USER, delivery_id, event_id

_IF_NEW = "ON CONFLICT (id) DO NOTHING RETURNING 1"


class End(NamedTuple):
    """The end of a task, a response or a batch."""

    owner: Owner
    event: str
    """One of EVENTS: `batch.completed`."""
    object_id: str
    """The id that clients use: a task's, `resp_…`, `batch_…`."""
    ended: int
    """Milliseconds since 1970."""


def read_announced(packed: bytes) -> End | None:
    """Return the end that webhooks are notified of; None for most entries. Raises ValueError for an invalid entry."""
    run, spec = read_entry(packed)
    if not spec.webhooks or spec.chain or run.unannounced:
        return None
    return End(Owner(spec.key_id, spec.user), f"task.{run.state}", spec.id, run.ended_at)


async def announce(connection: AsyncConnection, _: Sequence[bytes], packed: Sequence[bytes]) -> None:
    """Add the deliveries of tasks that have ended."""
    ends = [end for end in map(read_announced, packed) if end]
    if ends:
        await enqueue(connection, ends)


async def enqueue(connection: AsyncConnection, ends: Sequence[End]) -> int:
    """Add deliveries of these ends to the webhooks of their owners; return the number of new ones.

    A second call for the same end (event and object) adds nothing, so a transaction can be repeated. For owners without webhooks
    it is one query of a small table. Raises only the errors of the database.
    """
    users = {end.owner.user for end in ends} | {EVERY_USER}
    keys = {end.owner.key_id for end in ends}
    found = (await connection.execute(_OF_OWNERS, {"keys": list(keys), "users": list(users)})).all()
    rows = [
        row_of(webhook.id, end.event, end.object_id, end.owner.user, end.ended)
        for webhook in found
        for end in ends
        if _matches(webhook, end)
    ]
    return len(await insert_rows(connection, webhook_deliveries, rows, _IF_NEW))


_columns = webhooks.c
_OF_OWNERS = select(_columns.id, _columns.key_id, _columns.user_name, _columns.events).where(
    _columns.key_id.in_(bindparam("keys", expanding=True)),
    _columns.user_name.in_(bindparam("users", expanding=True)),
    _columns.off_since.is_(None),
)
"""Made once: a list inside the statement leaves reference cycles for the collector at each page of ends."""


def _matches(webhook: Any, end: End) -> bool:
    owner = end.owner
    if webhook.key_id != owner.key_id or not (
        end.event in webhook.events.split(" ") or webhook.events == ANY
    ):
        return False
    # without keys, `*` is the name of some user
    return webhook.user_name == owner.user or (webhook.user_name == EVERY_USER and owner.key_id != "")


def row_of(webhook: str, event: str, object_id: str, user: str, at: int, name: str = "") -> DeliveryRow:
    """Return a delivery that is due at `at`. `name`: the event's id, if the object can have several events of this type."""
    name = name or event_id(event, object_id)
    return DeliveryRow(
        delivery_id(webhook, name), webhook, name, event, object_id, user, at, began=at, due=at
    )
