"""Forgets batches that have ended, and what came of their lines."""

from collections.abc import Collection

from sqlalchemy import and_, delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.database.tables import batch_results, batches

PURGED_AT_ONCE = 500


async def forget_results(connection: AsyncConnection, ids: Collection[str]) -> bool:
    """Delete a part of what came of the lines of these batches; whether there may be more."""
    columns = batch_results.c
    lines = select(columns.batch, columns.line).where(columns.batch.in_(ids)).limit(PURGED_AT_ONCE).subquery()
    part = and_(columns.batch == lines.c.batch, columns.line == lines.c.line)
    where = select(lines.c.line).where(part).exists()
    return (await connection.execute(delete(batch_results).where(where))).rowcount > 0


async def purge(connection: AsyncConnection, now_ms: int, kept_ms: int) -> bool:
    """Delete a part of the batches that ended before, and of what came of the lines of any that have ended, whose leader stopped
    before it did; whether there may be more."""
    columns = batches.c
    left = select(batch_results.c.line).where(batch_results.c.batch == columns.id).exists()
    ended = select(columns.id).where(columns.ended > 0, left).limit(50)
    if ids := list((await connection.execute(ended)).scalars()):
        return await forget_results(connection, ids)
    over = select(columns.id).where(columns.ended > 0, columns.ended < now_ms - kept_ms)
    ids = list((await connection.execute(over.order_by(columns.ended).limit(50))).scalars())
    if ids:
        await connection.execute(delete(batches).where(columns.id.in_(ids)))
    return bool(ids)


async def forget(connection: AsyncConnection, user: str, until: int) -> int:
    """Forget a user's batches that were made until then and have ended: some of them; how many. Their files are forgotten by
    themselves."""
    columns = batches.c
    wanted = select(columns.id).where(columns.user_name == user, columns.created <= until, columns.ended > 0)
    ids = list((await connection.execute(wanted.limit(50))).scalars())
    if not ids:
        return 0
    while await forget_results(connection, ids):
        pass
    return (await connection.execute(delete(batches).where(columns.id.in_(ids)))).rowcount
