"""A response that is to be stored, from the submission of its task until its row is in SQL.

    submit ──▶ accepted ──▶ row written ──▶ answer (an id, a head, a first byte)
       │           │ the task runs    └─ failed ─▶ required: the task is abandoned, 503
       └─▶ rejected: nothing is written            otherwise the answer says `store: false`, and the task continues

The row follows the acceptance, so a rejected request costs SQL nothing, and no task waits for SQL. The task may end before its
row is written: its log then waits in Redis (`log_archive.ROW_WITHIN_MS`). If a gateway dies in between, no client knows the id;
a client that repeats its idempotency key joins the task and writes the row.
"""

from collections.abc import Callable
from typing import NamedTuple

from msgspec import Raw

from fairlane.gateway.core.poll import record_info
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.responses.store import New, ResponseStore, Row
from fairlane.gateway.responses.writer import ResponseWriter
from fairlane.queues.clock import now_ms
from fairlane.queues.ids import issued_ms
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.tasks import ExistingTask, Submitted
from fairlane.streaming.jsontext import join_object, members


class ResponseStorage(NamedTuple):
    """The objects that store responses of accepted tasks."""

    writer: ResponseWriter
    store: ResponseStore
    scheduler: Scheduler
    abandon: Callable[[str], None]
    """`Cancels.abandon_soon`."""


class PendingResponse:
    """`Submit` calls `accepted` once, before it returns to its caller."""

    __slots__ = ("_new", "_required", "_storage", "echo", "row")

    def __init__(self, storage: ResponseStorage, new: New | None, echo: bytes, *, required: bool) -> None:
        """`new`: None if the response is not to be stored. `required`: the request asked for storage."""
        self._storage = storage
        self._new = new
        self._required = required
        self.row: Row | None = None
        """Once it is stored."""
        self.echo = echo
        """The members that repeat the request, JSON; `store` is true or false in it once the task is accepted."""

    async def accepted(self, answer: Submitted | ExistingTask) -> None:
        """Return when the row is written, or when it cannot be written and was not required.

        Raise DatabaseUnavailable if it was required: then the accepted task is abandoned. Raise StoreError.
        """
        new, self._new = self._new, None  # it may be long
        if new is None:
            return
        try:
            if isinstance(answer, ExistingTask):
                self.row = await self._row_of_earlier(new, answer.task_id)
            else:
                await self._storage.writer.write(new)
                self.row = new.row
        except DatabaseUnavailable:
            if self._required:
                if isinstance(answer, Submitted):
                    self._storage.abandon(new.row.task_id)
                raise
        if self.row is None:
            self.echo = join_object({**(members(self.echo) or {}), "store": Raw(b"false")}.items())

    async def _row_of_earlier(self, new: New, task_id: str) -> Row | None:
        """Return the row of the task that an earlier request submitted; None if it is not stored, or no longer."""
        storage = self._storage
        stored = await storage.store.row(task_id, now_ms())
        if stored is not None:
            return stored
        record = await storage.scheduler.position(task_id)
        if record is None or not record.archives_log:  # SQL had its log, or never will
            return None
        info, created = record_info(task_id, record), issued_ms(task_id)
        row = new.row._replace(
            task_id=task_id,
            created=created,
            expires=created + new.row.expires - new.row.created,
            model=info.model,
            falls=info.has_fallback,
        )
        await storage.writer.write(New(row, new.input_items))
        return row
