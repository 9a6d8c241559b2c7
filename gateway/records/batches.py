"""Forgets batches that have ended, and what came of their lines."""

from sqlalchemy import ColumnElement, and_, delete, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.database.tables import batch_results, batches

MAX_PURGED = 500


async def forget_results(connection: AsyncConnection, batch_id: str) -> bool:
    """Delete a part of what came of the lines of a batch; whether there may be more."""
    columns = batch_results.c
    part = select(columns.line).where(columns.batch == batch_id).order_by(columns.line)
    last = select(func.max(part.limit(MAX_PURGED).subquery().c.line)).scalar_subquery()
    which = and_(columns.batch == batch_id, columns.line <= last)
    return (await connection.execute(delete(batch_results).where(which))).rowcount > 0


async def purge(connection: AsyncConnection, now_ms: int, kept_ms: int) -> bool:
    """Delete a part of the batches that ended before, and of what came of the lines of any that have ended, whose leader stopped
    before it did; whether there may be more."""
    columns = batches.c
    left = select(batch_results.c.line).where(batch_results.c.batch == columns.id).exists()
    ended = select(columns.id).where(columns.ended > 0, left).limit(1)
    if (found := await connection.scalar(ended)) is not None:
        return await forget_results(connection, found)
    over = select(columns.id).where(columns.ended > 0, columns.ended < now_ms - kept_ms)
    ids = list((await connection.execute(over.order_by(columns.ended).limit(50))).scalars())
    if ids:
        await connection.execute(delete(batches).where(columns.id.in_(ids)))
    return bool(ids)


async def forget_oldest(connection: AsyncConnection, whose: ColumnElement[bool], most: int) -> None:
    """Forget some of the batches that have ended and are older than the last `most` of an owner. What came of the lines of one
    goes first (`purge`)."""
    columns = batches.c
    beyond = select(columns.id).where(whose).order_by(columns.id.desc()).offset(most).limit(1)
    if (newest := await connection.scalar(beyond)) is None:
        return
    left = select(batch_results.c.line).where(batch_results.c.batch == columns.id).exists()
    old = select(columns.id).where(whose, columns.id <= newest, columns.ended > 0, ~left)
    ids = list((await connection.execute(old.order_by(columns.id).limit(50))).scalars())
    if ids:
        await connection.execute(delete(batches).where(columns.id.in_(ids)))


async def forget(connection: AsyncConnection, user: str, until: int) -> int:
    """Forget a user's batches that were made until then and have ended: some of them; how many. Their files are forgotten by
    themselves."""
    columns = batches.c
    whose = select(columns.id).where(columns.user_name == user, columns.created <= until, columns.ended > 0)
    left = select(batch_results.c.line).where(batch_results.c.batch == columns.id).exists()
    ids = list((await connection.execute(whose.where(~left).limit(50))).scalars())
    if not ids:  # of one that has just ended there may be thousands of lines
        ids = list((await connection.execute(whose.limit(1))).scalars())
    for batch_id in ids:
        while await forget_results(connection, batch_id):
            pass
    return (await connection.execute(delete(batches).where(columns.id.in_(ids)))).rowcount
