"""Batches in the SQL database, and what came of their lines until it stands in files.

A batch is led by one replica at a time: the one that holds its lease. Each change by a leader names its epoch, which the next one
raises: so whoever was replaced, and does not know it yet, changes nothing more. All raise DatabaseUnavailable; then a change may
have been made all the same, and is made again without harm.
"""

from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Select, and_, bindparam, case, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.batches.models import UNENDED, Batch, Problem, Status
from fairlane.gateway.batches.results import Outcome
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.inserting import insert_and_tell, insert_new
from fairlane.gateway.database.tables import batch_results, batches
from fairlane.gateway.files.rows import keep_until
from fairlane.gateway.records.batches import forget_oldest, forget_results
from fairlane.gateway.records.erasure import FORGOTTEN, ErasedUsers
from fairlane.gateway.webhooks.enqueue import enqueue
from fairlane.gateway.webhooks.store import one_at_a_time
from fairlane.streaming.views.usage import Counts

CHANGE_S = 5.0
MAX_CANDIDATES = 1000
MAX_KEPT = 5000
"""Batches of one owner: who makes many that fail at once does not fill the database for as long as ended ones are kept."""
PAGE = 200
PAGE_BYTES = 4 << 20
"""Of results read at once, about: of at most so many lines, and fewer where they are long."""


NOTHING_SUBMITTED: Final = {"waiting": 0, "running": 0, "whys": ""}
"""Columns of a batch of which no line waits or runs."""


class Overtaken(Exception):
    """Another replica leads the batch now."""


class TooMany(Exception):
    """The caller has as many batches that have not ended as may be."""


class Candidate(NamedTuple):
    """A batch that has not ended, as replicas that may lead it see it."""

    id: str
    key_id: str
    status: Status
    leader: str
    lease: int
    epoch: int


class BatchStore:
    """See the module."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._forgotten = ErasedUsers(database)

    # ---- callers ----------

    async def add(self, batch: Batch, most: int, file_until: int = 0) -> None:
        """A new batch; the file that it reads does not expire before `file_until`. Raises TooMany where its owner has `most` that
        have not ended. Of those that have, the oldest go where there are more than MAX_KEPT."""
        async with self._database.writing(CHANGE_S) as connection:
            await one_at_a_time(connection, batch.owner)
            unended = select(func.count()).where(_of(batch.owner), _unended())
            if int(await connection.scalar(unended) or 0) >= most:
                raise TooMany
            await insert_new(connection, batches, [_values(batch)])
            await keep_until(connection, batch.input_file, file_until)
            await forget_oldest(connection, _of(batch.owner), MAX_KEPT)

    async def find(self, batch_id: str, owner: Owner | None) -> Batch | None:
        """A batch, if it is the owner's (None: whoever's it is)."""
        wanted = select(batches).where(batches.c.id == batch_id)
        if owner is not None:
            wanted = wanted.where(_of(owner))
        async with self._database.reading(CHANGE_S) as connection:
            row = (await connection.execute(wanted)).mappings().one_or_none()
        return None if row is None else _batch(row)

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
        """Batches, the newest first, behind `after`."""
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
            rows = (await connection.execute(wanted)).mappings().all()
        return [_batch(row) for row in rows]

    async def cancel(self, batch_id: str, now_ms: int) -> None:
        """Have a batch of an owner cancelled that has something to run still. One that is being finished, or has ended, stays as
        it is."""
        async with self._database.writing(CHANGE_S) as connection:
            await _cancel(connection, batches.c.id == batch_id, now_ms)

    async def cancel_of(self, user: str, until: int, now_ms: int) -> tuple[int, int]:
        """The same of all that a user has made until then (ms); how many it were, and how many have not ended."""
        whose = and_(batches.c.user_name == user, batches.c.created <= until)
        async with self._database.writing(CHANGE_S) as connection:
            cancelled = await _cancel(connection, whose, now_ms)
            unended = await connection.scalar(select(func.count()).where(whose, _unended()))
        return cancelled, int(unended or 0)

    # ---- whoever leads ----------

    async def unended(self, leader: str, per_caller: int, now_ms: int) -> list[Candidate]:
        """Return batches that have not ended, the oldest first: of each caller the first `per_caller`, those that are only to be
        ended, and those that `leader` has; MAX_CANDIDATES at most, callers in turns."""
        asked = {"leader": leader, "per_caller": per_caller, "now": now_ms, "most": MAX_CANDIDATES}
        async with self._database.reading(CHANGE_S) as connection:
            rows = (await connection.execute(_CANDIDATES, asked)).all()
        return sorted(Candidate(row[0], row[1], Status(row[2]), *row[3:]) for row in rows)

    async def take(self, found: Candidate, leader: str, lease: int) -> Batch | None:
        """Lead a batch that was found so; None: somebody else was faster."""
        where = and_(batches.c.id == found.id, batches.c.epoch == found.epoch, _unended())
        values = {"leader": leader, "lease": lease, "epoch": found.epoch + 1}
        async with self._database.writing(CHANGE_S) as connection:
            if not (await connection.execute(update(batches).where(where).values(values))).rowcount:
                return None
            row = (await connection.execute(select(batches).where(batches.c.id == found.id))).mappings().one()
        return _batch(row)

    async def renew(self, leader: str, ids: Collection[str], lease: int) -> frozenset[str]:
        """Go on leading these; which are still led by this one."""
        where = and_(batches.c.leader == leader, batches.c.id.in_(ids), _unended())
        async with self._database.writing(CHANGE_S) as connection:
            changed = update(batches).where(where).values(lease=lease).returning(batches.c.id)
            return frozenset((await connection.execute(changed)).scalars())

    async def release(self, leader: str) -> None:
        """Lead nothing any more: other replicas may take it immediately."""
        where = and_(batches.c.leader == leader, _unended())
        async with self._database.writing(CHANGE_S) as connection:
            await connection.execute(update(batches).where(where).values(leader="", lease=0))

    async def mark(self, batch: Batch, **values: Any) -> Batch:
        """Change a batch that is led, and tell how it stands then. Raises Overtaken."""
        async with self._database.writing(CHANGE_S) as connection:
            return await _mark(connection, batch, values)

    async def begin(self, batch: Batch, now_ms: int, **values: Any) -> Batch:
        """Its file was looked at: it goes on, if nobody wants it cancelled. Raises Overtaken."""
        goes_on = case((batches.c.status == Status.VALIDATING, Status.IN_PROGRESS), else_=batches.c.status)
        return await self.mark(batch, status=goes_on, began=now_ms, **values)

    async def was_forgotten(self, batch: Batch) -> bool:
        """Whether its user was forgotten since it was made: then nothing of it is kept."""
        async with self._database.reading(CHANGE_S) as connection:
            return await self._forgotten.was(connection, batch.user, batch.created)

    async def end(self, batch: Batch, status: Status, now_ms: int, **values: Any) -> Batch:
        """Nothing is to be done for a batch any more. Its owner's webhooks are told, of who was forgotten without the name.
        Raises Overtaken."""
        values |= {"status": status, "ended": now_ms, "leader": "", "lease": 0, **NOTHING_SUBMITTED}
        async with self._database.writing(CHANGE_S) as connection:
            ended = await _mark(connection, batch, values)
            forgotten = await self._forgotten.was(connection, batch.user, batch.created)
            owner = Owner(batch.key_id, FORGOTTEN) if forgotten else batch.owner
            await enqueue(connection, owner, f"batch.{status}", batch.id, now_ms)
        return ended

    async def keep(
        self, batch: Batch, outcomes: Sequence[Outcome], line: int, offset: int, **values: Any
    ) -> Batch:
        """Write what came of lines, and behind which line all have come to something; and of the batch these values. What is
        there already is counted once, and stays as it is. Raises Overtaken."""
        by_line = {outcome.line: outcome for outcome in reversed(outcomes)}
        rows = [
            {"batch": batch.id, "line": one.line, "failed": one.failed, "record": one.record}
            for one in by_line.values()
        ]
        async with self._database.writing() as connection:
            place = {"line": line, "offset": offset, **values}
            await _mark(connection, batch, place)  # its row is locked from here on
            new = [by_line[key[1]] for key in await insert_and_tell(connection, batch_results, rows)]
            return await _mark(connection, batch, _added(new))

    async def kept(self, batch: Batch) -> set[int]:
        """The lines that have come to something, from the first one on that had not when that was written last."""
        columns = batch_results.c
        wanted = select(columns.line).where(columns.batch == batch.id, columns.line >= batch.line)
        async with self._database.reading() as connection:
            return set((await connection.execute(wanted)).scalars())

    async def records(self, batch_id: str, *, failed: bool) -> AsyncIterator[bytes]:
        """What came of the lines of a batch, by line, a few together."""
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

    async def forget_results(self, batch_id: str) -> bool:
        """Delete a part of what came of the lines of a batch, whose files are written; whether there may be more."""
        async with self._database.writing() as connection:
            return await forget_results(connection, batch_id)


def _added(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What these add to the counts of a batch."""
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
    row = (await connection.execute(changed)).mappings().one_or_none()
    if row is None:
        raise Overtaken
    return _batch(row)


def _last_of(most: int, sizes: Sequence[Any]) -> int:
    """The last line of those that have so many bytes together, and the first one in any case."""
    last, total = sizes[0][0], 0
    for line, size in sizes:
        total += size
        if total > most:
            break
        last = line
    return int(last)


def problems_json(problems: Sequence[Problem]) -> str:
    """What is wrong with a file, as its row has it."""
    return msgspec.json.encode([tuple(problem) for problem in problems]).decode()


def _unended() -> ColumnElement[bool]:
    return batches.c.status.in_(UNENDED)


def _candidates() -> Select[Any]:
    columns = batches.c
    turn = case((columns.status == Status.CANCELLING, 2), (columns.status == Status.VALIDATING, 1), else_=0)
    place = func.row_number().over(
        partition_by=(columns.key_id, columns.user_name), order_by=(turn, columns.id)
    )
    shown = columns.id, columns.key_id, columns.status, columns.leader, columns.lease, columns.epoch
    found = select(*shown, columns.expires, place.label("place")).where(_unended()).subquery()
    wanted = or_(
        found.c.place <= bindparam("per_caller"),
        found.c.status == Status.CANCELLING,
        found.c.expires <= bindparam("now"),
        found.c.leader == bindparam("leader"),
    )
    listed = (found.c[column.name] for column in shown)
    return select(*listed).where(wanted).order_by(found.c.place, found.c.id).limit(bindparam("most"))


_CANDIDATES = _candidates()
"""Made once: its parts are in reference cycles, which the collector would have to find after each look."""


def _of(owner: Owner) -> ColumnElement[bool]:
    return and_(batches.c.key_id == owner.key_id, batches.c.user_name == owner.user)


_NAMES = {"user": "user_name", "window": "completion_window"}
"""Columns that are called otherwise: their names mean something in SQL."""


def _values(batch: Batch) -> dict[str, Any]:
    return {_NAMES.get(name, name): value for name, value in batch._asdict().items()}


def _batch(row: Any) -> Batch:
    values = {name: row[_NAMES.get(name, name)] for name in Batch._fields}
    return Batch(**{**values, "status": Status(values["status"])})
