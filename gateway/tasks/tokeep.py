"""A response that is to be kept, from the submission of its task until it is known whether its row is in SQL.

    submit ──▶ accepted ──▶ its row is written ──▶ its caller is told (an id, a head, a first byte)
       │           │ task runs meanwhile    └─ no ─▶ he asked for it: the task is abandoned, 503
       └─▶ refused: nothing was written             else he is told `store: false`, and the task goes on

The row comes behind the admission, and before anybody is told of the task. So whoever is refused costs SQL nothing, no task
waits for SQL, and what SQL takes for a commit is hidden by what the model takes for its first output. But where SQL did not take
the last one, what its caller asked for is written before the submission: nothing is submitted that would be abandoned. At each
instant:

1 Killed before the admission: there is nothing. 2 Killed, or cut off from Redis, while it is under way: as with any task, nobody
knows the id; a task that somebody waits for ends with its linger, one in the background runs unseen; who comes again with its
idempotency key joins it. 3 Killed between admission and row: as 2, a commit later. Who joins a task whose log the archive has not
had yet writes its row where there is none (`_row_of_earlier`), so what he is told of is there. 4 Killed between row and answer:
row and task are there, and their caller does not know the id. 5 The task ends before its row is there: the archive, at whatever
replica, finds no row for its log. It leaves the log in Redis and looks again, until the task is so old that no row comes any more
(`ends.ROW_WITHIN_MS`). 6 SQL is away when the row is written. Where its caller asked for it, the task is abandoned: dropped, so
that its idempotency key is let go and no log is kept, and cancelled. Else he is told that there is no row, and the task goes on.
That SQL takes none is known from then on (`Keeping.refuses`): what its caller asked for is written before its submission, or
refused, and what nobody asked for is not kept while SQL is away. A row whose submission is refused then is removed; killed in
between it stays, and nobody knows its id. 7 A row that was given up while its commit was under way is removed (`Keeping`). 8 Its
caller leaves while it is written: it is written all the same, and the task ends as that of any caller who leaves.
"""

from collections.abc import Callable
from typing import NamedTuple

from msgspec import Raw

from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.responses.keeping import Keeping
from fairlane.gateway.responses.rows import New, Row
from fairlane.gateway.responses.store import ResponseStore
from fairlane.gateway.tasks.poll import record_info
from fairlane.queues.clock import now_ms
from fairlane.queues.ids import issued_ms
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.tasks import Known, Submitted
from fairlane.streaming.jsontext import join_object, members


class NotKept(NamedTuple):
    """A response that is not to be kept, as views see it."""

    echo: bytes
    row: None = None


class Admissions:
    """What all that are to be kept are written with."""

    def __init__(
        self, keeping: Keeping, store: ResponseStore, scheduler: Scheduler, abandon: Callable[[str], None]
    ) -> None:
        """`abandon`: `Cancels.abandon_soon`."""
        self.keeping = keeping
        self.store = store
        self.scheduler = scheduler
        self.abandon = abandon


class ToKeep:
    """See the module. `Submit` calls `before`, then `refused` or `accepted`, each once, and tells its caller of the task then."""

    __slots__ = ("_admissions", "_asked_for", "_early", "_new", "echo", "row")

    def __init__(self, admissions: Admissions, new: New, *, asked_for: bool, early: bool) -> None:
        """`asked_for`: whether its caller said that it is to be kept. `early`: its row is to be there before its task is."""
        self._admissions = admissions
        self._new: New | None = new
        self._asked_for = asked_for
        self._early = early
        self.row: Row | None = None
        """Once it is accepted; None: it is not kept."""
        self.echo = new.row.echo
        """What it repeats of its request, JSON; once it is accepted, whether it is kept is true."""

    async def before(self) -> None:
        """Its task is to be submitted. Raises DatabaseUnavailable: it is not to be."""
        if self._early:
            assert self._new is not None
            await self._admissions.keeping.keep(self._new)

    def refused(self) -> None:
        """Its task was not accepted."""
        if self._early and self._new is not None:
            self._admissions.keeping.take_back(self._new.row.task_id)

    async def accepted(self, answer: Submitted | Known) -> None:
        """Its task was accepted, or its idempotency key names one: return when its row is there, or when it is known that there
        will be none and its caller did not ask for one. Raises DatabaseUnavailable: nothing is left of a task that was accepted;
        and StoreError."""
        new, self._new = self._new, None  # it may be long
        assert new is not None
        try:
            if isinstance(answer, Known):
                if self._early:
                    self._admissions.keeping.take_back(new.row.task_id)
                self.row = await self._row_of_earlier(new, answer.task_id)
            else:
                if not self._early:
                    await self._admissions.keeping.keep(new)
                self.row = new.row
        except DatabaseUnavailable:
            if self._asked_for:
                if not isinstance(answer, Known):
                    self._admissions.abandon(new.row.task_id)
                raise
        if self.row is None:
            self.echo = _not_kept(self.echo)

    async def _row_of_earlier(self, new: New, task_id: str) -> Row | None:
        """The row of a task that was submitted with the same request before; None where it is not kept, or not any more."""
        use = self._admissions
        record = await use.scheduler.position(task_id)
        if record is None or not record.archives_log:  # SQL has its log, or never will
            return await use.store.row(task_id, now_ms())
        there = await use.store.row(task_id, now_ms())
        if there is not None:  # as nearly always: what is long is not sent to SQL by each who joins
            return there
        info, created = record_info(task_id, record), issued_ms(task_id)
        row = new.row._replace(
            task_id=task_id,
            created=created,
            expires=created + new.row.expires - new.row.created,
            model=info.model,
            falls=info.falls,
        )
        await use.keeping.keep_earlier(New(row, new.input_items))
        return row


def _not_kept(echo: bytes) -> bytes:
    """What a response repeats that is not kept after all."""
    return join_object({**(members(echo) or {}), "store": Raw(b"false")}.items())
