"""Webhooks and their deliveries in SQL, as their owners and operators read and change them. All raise DatabaseUnavailable."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from sqlalchemy import and_, delete, func, insert, or_, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.database.tables import webhook_deliveries, webhooks
from fairlane.gateway.webhooks.events import EVERY_USER

REMOVED = "(removed)"
"""Stands for the key of a webhook that is gone, as long as retention has not removed all that it told. No key is named so."""
MAX_PURGED = 1000


class Cursor(NamedTuple):
    """Where a list of deliveries goes on: behind this one, from new to old."""

    created: int
    id: str

    def __str__(self) -> str:
        return f"{self.created}-{self.id}"


def _mine(owner: Owner) -> Any:
    """What tells the webhooks of an owner: his own, and those of all users of the key, where he is no user of it."""
    columns = webhooks.c
    users = [owner.user]
    if owner.key_id and owner.user == owner.key_id:
        users.append(EVERY_USER)
    return and_(columns.key_id == owner.key_id, columns.user_name.in_(users))


async def one_at_a_time(connection: AsyncConnection, owner: Owner) -> None:
    """Others who add webhooks of this owner wait until the end of this transaction. (SQLite has one writer at a time.)"""
    if connection.dialect.name == "postgresql":
        number = int.from_bytes(sha256(repr(owner).encode()).digest()[:8], "big", signed=True)
        await connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": number})


async def add(connection: AsyncConnection, row: Mapping[str, Any]) -> None:
    """Add a webhook."""
    await connection.execute(insert(webhooks).values(dict(row)))


async def count(connection: AsyncConnection, owner: Owner) -> int:
    """How many webhooks an owner has."""
    return await connection.scalar(select(func.count()).select_from(webhooks).where(_mine(owner))) or 0


async def all_of(connection: AsyncConnection, owner: Owner) -> Sequence[Any]:
    """An owner's webhooks, the oldest first."""
    found = select(webhooks).where(_mine(owner)).order_by(webhooks.c.created, webhooks.c.id)
    return (await connection.execute(found)).all()


async def find(
    connection: AsyncConnection, webhook: str, owner: Owner | None, *, change: bool = False
) -> Any | None:
    """One of an owner's webhooks (None: whoever's); with `change` nobody else changes it until the end of this transaction."""
    found = select(webhooks).where(webhooks.c.id == webhook)
    if owner is not None:
        found = found.where(_mine(owner))
    return (await connection.execute(found.with_for_update() if change else found)).one_or_none()


async def set_values(connection: AsyncConnection, webhook: str, values: Mapping[str, Any]) -> None:
    """Change these columns."""
    await connection.execute(update(webhooks).where(webhooks.c.id == webhook).values(dict(values)))


_GONE = {
    "key_id": REMOVED,
    **dict.fromkeys(("user_name", "url", "events", "note", "secret", "old_secret", "error", "claim"), ""),
    **dict.fromkeys(("due", "failing_since")),
}


async def remove(connection: AsyncConnection, webhook: str, now_ms: int) -> None:
    """Remove one: nobody finds it any more, and retention takes away what it told. One that told nothing is gone at once: they
    are made and removed as fast as anybody calls."""
    await set_values(connection, webhook, {**_GONE, "off_since": now_ms})
    told = select(webhook_deliveries.c.id).where(webhook_deliveries.c.webhook == webhook).exists()
    await connection.execute(delete(webhooks).where(webhooks.c.id == webhook, ~told))


async def first_due(connection: AsyncConnection, webhook: str) -> int | None:
    """When the first delivery that is owed is to be sent; None: none is."""
    columns = webhook_deliveries.c
    due: int | None = await connection.scalar(select(func.min(columns.due)).where(columns.webhook == webhook))
    return due


# ---- deliveries ----------


async def delivery(connection: AsyncConnection, webhook: str, delivery_id: str) -> Any | None:
    """One of a webhook's deliveries."""
    columns = webhook_deliveries.c
    found = select(webhook_deliveries).where(columns.id == delivery_id, columns.webhook == webhook)
    return (await connection.execute(found)).one_or_none()


async def add_delivery(connection: AsyncConnection, row: Mapping[str, Any]) -> None:
    """Add a delivery, which its webhook counts."""
    await connection.execute(insert(webhook_deliveries).values(dict(row)))


async def set_delivery(connection: AsyncConnection, delivery_id: str, values: Mapping[str, Any]) -> None:
    """Change these columns."""
    which = webhook_deliveries.c.id == delivery_id
    await connection.execute(update(webhook_deliveries).where(which).values(dict(values)))


async def deliveries(
    connection: AsyncConnection, webhook: str, status: str | None, after: Cursor | None, limit: int
) -> Sequence[Any]:
    """A webhook's deliveries, the newest first."""
    found = select(webhook_deliveries).where(webhook_deliveries.c.webhook == webhook)
    rows: Sequence[Any] = (await connection.execute(_paged(found, status, after, limit))).all()
    return rows


def _paged(found: Any, status: str | None, after: Cursor | None, limit: int) -> Any:
    columns = webhook_deliveries.c
    if status is not None:
        found = found.where(columns.state == status)
    if after is not None:
        older = and_(columns.created == after.created, columns.id < after.id)
        found = found.where(columns.created <= after.created, or_(columns.created < after.created, older))
    return found.order_by(columns.created.desc(), columns.id.desc()).limit(limit)


async def all_webhooks(
    connection: AsyncConnection, key_id: str | None, after: str, limit: int
) -> Sequence[Any]:
    """Everybody's webhooks behind this id, by id."""
    found = select(webhooks).where(webhooks.c.id > after, webhooks.c.key_id != REMOVED)
    if key_id is not None:
        found = found.where(webhooks.c.key_id == key_id)
    return (await connection.execute(found.order_by(webhooks.c.id).limit(limit))).all()


# ---- the end of their time ----------


async def purge(connection: AsyncConnection, now_ms: int, kept_ms: int) -> bool:
    """Delete a part of what is older, and of what webhooks that are gone have told; whether there may be more."""
    columns = webhook_deliveries.c
    # what was sent again by hand is kept until that is over
    oldest = select(columns.id).where(columns.created < now_ms - kept_ms, columns.began < now_ms - kept_ms)
    oldest = oldest.order_by(columns.created).limit(MAX_PURGED)
    old = await connection.execute(
        delete(webhook_deliveries).where(columns.id.in_(oldest)).returning(columns.webhook, columns.state)
    )
    rows = old.all()
    await _owe_less(connection, rows)  # those that wait are of one that is off
    return await _purge_removed(connection) or bool(rows)


async def _owe_less(connection: AsyncConnection, gone: Iterable[Any]) -> None:
    """Deliveries are gone, each told by its webhook and its state: those that waited are owed no more."""
    owed = Counter(webhook for webhook, state in gone if state == "waiting")
    for webhook in sorted(owed):  # in their order: see `announcing`
        less = {"waiting": webhooks.c.waiting - owed[webhook]}
        await connection.execute(update(webhooks).where(webhooks.c.id == webhook).values(less))


async def _purge_removed(connection: AsyncConnection) -> bool:
    """Delete a part of what those that were removed have told, and at last themselves; whether there may be more."""
    columns = webhook_deliveries.c
    removed = select(webhooks.c.id).where(webhooks.c.key_id == REMOVED)
    some = select(columns.id).where(columns.webhook.in_(removed)).limit(MAX_PURGED)
    rows = (await connection.execute(delete(webhook_deliveries).where(columns.id.in_(some)))).rowcount
    told = select(columns.id).where(columns.webhook == webhooks.c.id).exists()
    await connection.execute(delete(webhooks).where(webhooks.c.key_id == REMOVED, ~told))
    return rows > 0


async def forget(connection: AsyncConnection, user: str, until: int) -> int:
    """Remove a part of a user's webhooks, and of what any has told of this user's ends; how many rows."""
    some = select(webhooks.c.id).where(webhooks.c.user_name == user, webhooks.c.created <= until).limit(50)
    gone = await connection.execute(
        update(webhooks).where(webhooks.c.id.in_(some)).values({**_GONE, "off_since": until})
    )
    columns = webhook_deliveries.c
    told = select(columns.id).where(columns.user_name == user, columns.created <= until).limit(1000)
    ended = await connection.execute(
        delete(webhook_deliveries).where(columns.id.in_(told)).returning(columns.webhook, columns.state)
    )
    rows = ended.all()
    await _owe_less(connection, rows)
    return gone.rowcount + len(rows)
