"""Batches in the SQL database, and the results of their lines until these are in files.

One replica at a time leads a batch: the one that holds its lease. Each change by a leader names its epoch, which the next
leader increments: a leader that was replaced changes nothing more. All raise DatabaseUnavailable: then the change may have been
made, and can be repeated.
"""

from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import (
    BindParameter,
    ColumnElement,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.batches.models import UNENDED, Batch, Outcome, Problem, Status
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.tables import batch_results, batches
from fairlane.gateway.files.rows import keep_until
from fairlane.gateway.records.erasure import ERASED, ErasedUsers
from fairlane.gateway.webhooks.enqueue import End, enqueue
from fairlane.gateway.webhooks.store import lock_owner
from fairlane.streaming.views.usage import Counts

CHANGE_S = 5.0
MAX_CANDIDATES = 2000
PAGE = 200
PAGE_BYTES = 4 << 20
"""Results that are read together: up to PAGE lines, and about PAGE_BYTES."""


NOTHING_SUBMITTED: Final = {"waiting": 0, "running": 0, "blocked_on": ""}
"""Columns of a batch without submitted lines."""


class Overtaken(Exception):
    """Another replica leads the batch now."""


class TooMany(Exception):
    """The owner has too many batches that have not ended."""


class Candidate(NamedTuple):
    """A batch that a replica may lead."""

    id: str
    key_id: str
    status: str
    leader: str
    lease: int
    epoch: int


class BatchStore:
    """See the module."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._erased = ErasedUsers(database)

    # ---- owners and operators ----------

    async def add(self, batch: Batch, most: int, file_until: int = 0) -> None:
        """Add a batch; its input file does not expire before `file_until`. Raises TooMany if its owner has `most` that have not
        ended."""
        async with self._database.writing(CHANGE_S) as connection:
            await lock_owner(connection, batch.owner)
            unended = select(func.count()).where(_of(batch.owner), _unended())
            if int(await connection.scalar(unended) or 0) >= most:
                raise TooMany
            await connection.execute(insert(batches).values(batch._asdict()))
            await keep_until(connection, batch.input_file, file_until)

    async def find(self, batch_id: str, owner: Owner | None) -> Batch | None:
        """Return a batch of an owner (None: of any)."""
        wanted = select(batches).where(batches.c.id == batch_id)
        if owner is not None:
            wanted = wanted.where(_of(owner))
        async with self._database.reading(CHANGE_S) as connection:
            row = (await connection.execute(wanted)).one_or_none()
        return None if row is None else Batch(*row)

    async def page(
        self,
        owner: Owner | None,
        after: str,
        limit: int,
        *,
        statuses: Collection[str] = (),
        key_id: str = "",
        user: str = "",
    ) -> list[Batch]:
        """Return batches, the newest first, behind `after`."""
        wanted = select(batches).order_by(batches.c.id.desc()).limit(limit)
        if owner is not None:
            wanted = wanted.where(_of(owner))
        if after:
            wanted = wanted.where(batches.c.id < after)
        if statuses:
            wanted = wanted.where(batches.c.status.in_(statuses))
        if key_id:
            wanted = wanted.where(batches.c.key_id == key_id)
        if user:
            wanted = wanted.where(batches.c.user_name == user)
        async with self._database.reading(CHANGE_S) as connection:
            return [Batch(*row) for row in await connection.execute(wanted)]

    async def cancel(self, batch_id: str, now_ms: int) -> None:
        """Cancel a batch. One that is finalizing or has ended does not change."""
        async with self._database.writing(CHANGE_S) as connection:
            await _cancel(connection, batches.c.id == batch_id, now_ms)

    async def cancel_of(self, user: str, until: int, now_ms: int) -> tuple[int, int]:
        """Cancel a user's batches that were created until then (ms). Return their number, and the number of those that have not
        ended."""
        whose = and_(batches.c.user_name == user, batches.c.created <= until)
        async with self._database.writing(CHANGE_S) as connection:
            cancelled = await _cancel(connection, whose, now_ms)
            unended = await connection.scalar(select(func.count()).where(whose, _unended()))
        return cancelled, int(unended or 0)

    # ---- leaders ----------

    async def unended(self, per_owner: int, now_ms: int) -> list[Candidate]:
        """Return batches that have not ended, MAX_CANDIDATES at most: the first `per_owner` of each owner, and all that are
        cancelled or expired. Those that have begun precede those that wait, older ones precede newer ones."""
        async with self._database.reading(CHANGE_S) as connection:
            rows = await connection.execute(_CANDIDATES, {"now": now_ms, "per_owner": per_owner})
            return [Candidate(*row) for row in rows]

    async def take(self, found: Candidate, leader: str, lease: int) -> Batch | None:
        """Lead a batch; None: another replica was faster."""
        where = and_(batches.c.id == found.id, batches.c.epoch == found.epoch, _unended())
        values = {"leader": leader, "lease": lease, "epoch": found.epoch + 1}
        async with self._database.writing(CHANGE_S) as connection:
            if not (await connection.execute(update(batches).where(where).values(values))).rowcount:
                return None
            row = (await connection.execute(select(batches).where(batches.c.id == found.id))).one()
        return Batch(*row)

    async def renew(self, leader: str, ids: Collection[str], lease: int) -> frozenset[str]:
        """Renew the leases of these; return those that this replica still leads."""
        where = and_(batches.c.leader == leader, batches.c.id.in_(ids), _unended())
        async with self._database.writing(CHANGE_S) as connection:
            changed = update(batches).where(where).values(lease=lease).returning(batches.c.id)
            return frozenset((await connection.execute(changed)).scalars())

    async def release(self, leader: str) -> None:
        """Release all batches of a replica, so that others can lead them immediately."""
        where = and_(batches.c.leader == leader, _unended())
        async with self._database.writing(CHANGE_S) as connection:
            await connection.execute(update(batches).where(where).values(leader="", lease=0))

    async def mark(self, batch: Batch, **values: Any) -> Batch:
        """Change a batch; return its row. Raises Overtaken."""
        async with self._database.writing(CHANGE_S) as connection:
            return await _mark(connection, batch, values)

    async def begin(self, batch: Batch, now_ms: int, **values: Any) -> Batch:
        """Start a validated batch, unless it is cancelled. Raises Overtaken."""
        status = case((batches.c.status == Status.VALIDATING, Status.IN_PROGRESS), else_=batches.c.status)
        return await self.mark(batch, status=status, began=now_ms, **values)

    async def was_erased(self, batch: Batch) -> bool:
        """Return whether its user was erased since it was created: then none of its results are kept."""
        async with self._database.reading(CHANGE_S) as connection:
            return await self._erased.was(connection, batch.user_name, batch.created)

    async def end(self, batch: Batch, status: Status, now_ms: int, **values: Any) -> Batch:
        """End a batch, and notify its owner's webhooks, without the name of an erased user. Raises Overtaken."""
        values |= {"status": status, "ended": now_ms, "leader": "", "lease": 0, **NOTHING_SUBMITTED}
        async with self._database.writing(CHANGE_S) as connection:
            ended = await _mark(connection, batch, values)
            erased = await self._erased.was(connection, batch.user_name, batch.created)
            owner = Owner(batch.key_id, ERASED) if erased else batch.owner
            await enqueue(connection, [End(owner, f"batch.{status}", batch.id, now_ms)])
        return ended

    async def keep(self, batch: Batch, outcomes: Sequence[Outcome], **values: Any) -> Batch:
        """Write results of lines, and these values. A second result of a line is ignored. Raises Overtaken."""
        by_line = {outcome.line: outcome for outcome in reversed(outcomes)}
        async with self._database.writing() as connection:
            await _mark(connection, batch, {"epoch": batch.epoch, **values})  # its row is locked from here on
            results = batch_results.c
            known = select(results.line).where(results.batch == batch.id, results.line.in_([*by_line]))
            for line in (await connection.execute(known)).scalars():
                by_line.pop(line, None)
            if new := list(by_line.values()):
                await connection.execute(insert(batch_results), [_result(batch, one) for one in new])
            return await _mark(connection, batch, _added(new))

    async def kept(self, batch: Batch) -> set[int]:
        """Return the lines with results."""
        wanted = select(batch_results.c.line).where(batch_results.c.batch == batch.id)
        async with self._database.reading() as connection:
            return set((await connection.execute(wanted)).scalars())

    async def records(self, batch_id: str, *, failed: bool) -> AsyncIterator[bytes]:
        """Yield the results of a batch in the order of lines, some at a time."""
        columns, line = batch_results.c, 0
        while True:
            behind = and_(columns.batch == batch_id, columns.failed == failed, columns.line > line)
            sizes = select(columns.line, func.length(columns.record)).where(behind)
            async with self._database.reading() as connection:
                found = (await connection.execute(sizes.order_by(columns.line).limit(PAGE))).all()
                if not found:
                    return
                line = _last_of(PAGE_BYTES, found)
                wanted = select(columns.record).where(behind, columns.line <= line).order_by(columns.line)
                records = (await connection.execute(wanted)).scalars().all()
            yield b"".join(records)

    async def delete_results(self, batch_id: str) -> bool:
        """Delete a part of the results of a batch whose files are written; return whether there may be more."""
        columns = batch_results.c
        part = select(columns.line).where(columns.batch == batch_id).order_by(columns.line).limit(PAGE)
        which = and_(columns.batch == batch_id, columns.line.in_(part))
        async with self._database.writing() as connection:
            return (await connection.execute(delete(batch_results).where(which))).rowcount > 0


def _added(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return what these outcomes add to the counts of a batch."""
    columns, failed = batches.c, sum(outcome.failed for outcome in outcomes)
    used = {
        f"{name}_tokens": sum(getattr(outcome.used, name) or 0 for outcome in outcomes)
        for name in Counts._fields
    }
    added = {"completed": len(outcomes) - failed, "failed": failed, **used}
    return {name: columns[name] + count for name, count in added.items()}


async def _cancel(connection: AsyncConnection, which: ColumnElement[bool], now_ms: int) -> int:
    running = (Status.VALIDATING, Status.IN_PROGRESS)
    where = and_(which, batches.c.status.in_(running), batches.c.outcome == "")
    values = {"status": Status.CANCELLING, "cancelling": now_ms}
    return (await connection.execute(update(batches).where(where).values(values))).rowcount


async def _mark(connection: AsyncConnection, batch: Batch, values: dict[str, Any]) -> Batch:
    where = and_(batches.c.id == batch.id, batches.c.epoch == batch.epoch, _unended())
    changed = update(batches).where(where).values(values).returning(batches)
    row = (await connection.execute(changed)).one_or_none()
    if row is None:
        raise Overtaken
    return Batch(*row)


def _last_of(most: int, sizes: Sequence[Any]) -> int:
    """Return the last line of a page of about `most` bytes, which has at least one line."""
    last, total = sizes[0][0], 0
    for line, size in sizes:
        total += size
        if total > most:
            break
        last = line
    return int(last)


def problems_json(problems: Sequence[Problem]) -> str:
    """Return the column `errors`."""
    return msgspec.json.encode([tuple(problem) for problem in problems]).decode()


def _unended() -> ColumnElement[bool]:
    return batches.c.status.in_(UNENDED)


def _of(owner: Owner) -> ColumnElement[bool]:
    return and_(batches.c.key_id == owner.key_id, batches.c.user_name == owner.user)


def _result(batch: Batch, one: Outcome) -> dict[str, Any]:
    return {"batch": batch.id, "line": one.line, "failed": one.failed, "record": one.record}


_now: BindParameter[int] = bindparam("now")
_ending = or_(batches.c.status == Status.CANCELLING, batches.c.expires <= _now)
_order = batches.c.status == Status.VALIDATING, batches.c.id
_place = func.row_number().over(
    partition_by=(batches.c.key_id, batches.c.user_name), order_by=(_ending, *_order)
)
_ranked = (
    select(batches.c.id, or_(_ending, _place <= bindparam("per_owner")).label("led"))
    .where(_unended())
    .subquery()
)
# built once: a statement with labels leaves cycles of references, and this one runs each second
_CANDIDATES = (
    select(
        batches.c.id, batches.c.key_id, batches.c.status, batches.c.leader, batches.c.lease, batches.c.epoch
    )
    .join(_ranked, _ranked.c.id == batches.c.id)
    .where(_ranked.c.led)
    .order_by(*_order)
    .limit(MAX_CANDIDATES)
)
