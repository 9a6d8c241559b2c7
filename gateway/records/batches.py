"""Deletes batches that have ended, and their results."""

from sqlalchemy import and_, delete, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.database.tables import batch_results, batches

MAX_PURGED = 500

_HAS_RESULTS = select(batch_results.c.line).where(batch_results.c.batch == batches.c.id).exists()


async def delete_results(connection: AsyncConnection, batch_id: str) -> bool:
    """Delete a part of the results of a batch; return whether there may be more."""
    columns = batch_results.c
    part = select(columns.line).where(columns.batch == batch_id).order_by(columns.line)
    last = select(func.max(part.limit(MAX_PURGED).subquery().c.line)).scalar_subquery()
    which = and_(columns.batch == batch_id, columns.line <= last)
    return (await connection.execute(delete(batch_results).where(which))).rowcount > 0


async def purge(connection: AsyncConnection, now_ms: int, kept_ms: int) -> bool:
    """Delete a part of the batches that ended before, and of results that a leader has left; return whether there may be more."""
    columns = batches.c
    ended = select(columns.id).where(columns.ended > 0, _HAS_RESULTS).limit(1)
    if (found := await connection.scalar(ended)) is not None:
        return await delete_results(connection, found)
    over = select(columns.id).where(columns.ended > 0, columns.ended < now_ms - kept_ms)
    old = delete(batches).where(columns.id.in_(over.order_by(columns.ended).limit(50)))
    return (await connection.execute(old)).rowcount > 0


async def erase_user(connection: AsyncConnection, user: str, until: int) -> int:
    """Delete some of a user's ended batches that were created until then; return their number. `files` erases the files."""
    columns = batches.c
    mine = select(columns.id).where(columns.user_name == user, columns.created <= until, columns.ended > 0)
    ids = list((await connection.execute(mine.order_by(_HAS_RESULTS).limit(10))).scalars())
    for batch_id in ids:
        while await delete_results(connection, batch_id):
            pass
    return (await connection.execute(delete(batches).where(columns.id.in_(ids)))).rowcount
