"""Webhooks and their deliveries in SQL, as owners and operators read and change them. All raise DatabaseUnavailable."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from sqlalchemy import and_, func, select, text, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.database.tables import webhook_deliveries, webhooks
from fairlane.gateway.http.paging import read_place
from fairlane.gateway.webhooks.events import EVERY_USER

_WAITING = (
    select(func.count())
    .where(webhook_deliveries.c.webhook == webhooks.c.id, webhook_deliveries.c.due.is_not(None))
    .scalar_subquery()
)
_SHOWN = select(webhooks, _WAITING.label("waiting"))


def _of(owner: Owner) -> Any:
    """Match the webhooks of an owner: for a key itself also those that cover all its users."""
    columns = webhooks.c
    users = [owner.user]
    if owner.key_id and owner.user == owner.key_id:
        users.append(EVERY_USER)
    return and_(columns.key_id == owner.key_id, columns.user_name.in_(users))


async def lock_owner(connection: AsyncConnection, owner: Owner) -> None:
    """Let transactions that add webhooks of this owner run one after the other. (SQLite has one writer at a time.)"""
    if connection.dialect.name == "postgresql":
        number = int.from_bytes(sha256(repr(owner).encode()).digest()[:8], "big", signed=True)
        await connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": number})


async def all_of(connection: AsyncConnection, owner: Owner) -> Sequence[Any]:
    """Return an owner's webhooks, the oldest first."""
    found = _SHOWN.where(_of(owner)).order_by(webhooks.c.created, webhooks.c.id)
    return (await connection.execute(found)).all()


async def page(connection: AsyncConnection, key_id: str | None, after: str, limit: int) -> Sequence[Any]:
    """Return webhooks of all owners, or of a key, by id."""
    found = _SHOWN.where(webhooks.c.id > after)
    if key_id is not None:
        found = found.where(webhooks.c.key_id == key_id)
    return (await connection.execute(found.order_by(webhooks.c.id).limit(limit))).all()


async def find(
    connection: AsyncConnection, webhook: str, owner: Owner | None, *, lock: bool = False
) -> Any | None:
    """Return a webhook of an owner (None: of any); with `lock`, no other transaction changes it until this one ends."""
    found = _SHOWN.where(webhooks.c.id == webhook)
    if owner is not None:
        found = found.where(_of(owner))
    return (await connection.execute(found.with_for_update() if lock else found)).one_or_none()


async def update_webhook(connection: AsyncConnection, webhook: str, values: Mapping[str, Any]) -> Any:
    """Change columns of a webhook; return it."""
    await connection.execute(update(webhooks).where(webhooks.c.id == webhook).values(dict(values)))
    return await find(connection, webhook, None)


# ---- deliveries ----------


async def delivery(connection: AsyncConnection, webhook: str, delivery_id: str) -> Any | None:
    """Return a delivery of a webhook."""
    columns = webhook_deliveries.c
    found = select(webhook_deliveries).where(columns.id == delivery_id, columns.webhook == webhook)
    return (await connection.execute(found)).one_or_none()


async def deliveries(
    connection: AsyncConnection, webhook: str, status: str | None, after: str, limit: int
) -> Sequence[Any]:
    """Return deliveries of a webhook, the newest event first."""
    columns = webhook_deliveries.c
    found = select(webhook_deliveries).where(columns.webhook == webhook)
    if status is not None:
        found = found.where(columns.state == status)
    if after:
        found = found.where(tuple_(columns.created, columns.id) < tuple_(*read_place(after)))
    return (
        await connection.execute(found.order_by(columns.created.desc(), columns.id.desc()).limit(limit))
    ).all()
