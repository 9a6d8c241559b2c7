"""A batch that this replica leads: its row, its file, and its progress."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from fairlane.gateway.batches.backlog import EVERYTHING, Backlog
from fairlane.gateway.batches.lines import AROUND_BODY, FileLines, Line, ParsedLine, Unreadable, parse_line
from fairlane.gateway.batches.models import Batch, Problem, Status, blocked_on_json, line_task
from fairlane.gateway.batches.store import BatchStore
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.core.bodies import Bodies
from fairlane.gateway.core.cancel import Cancel
from fairlane.gateway.core.submit import Submit
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.errors import ApiError
from fairlane.gateway.files.files import Files
from fairlane.queues.errors import StoreError
from fairlane.queues.metrics import Recorder
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.semaphore import FairSemaphore
from fairlane.streaming.results import Results
from fairlane.streaming.views.result import ResultView
from fairlane.streaming.views.task import TaskInfo

MAX_WORKING = 2
"""Batches of one process that parse, submit or collect at the same time."""
RETRY_S = 1.0
REPORT_S = 2.0
"""Between two writes of the progress to the row."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tools:
    """The parts that run batches."""

    current: ActiveConfig
    bodies: Bodies
    submit: Submit
    cancel: Cancel
    scheduler: Scheduler
    results: Results
    files: Files
    store: BatchStore
    metrics: Recorder
    working: FairSemaphore = field(default_factory=lambda: FairSemaphore(MAX_WORKING))


class Submitted(NamedTuple):
    """A line whose task waits or runs."""

    line: int
    custom_id: str
    task_id: str
    view: Callable[[TaskInfo], ResultView]
    needs: int
    """Bytes of the request that `view` holds."""


def code_of(error: ApiError | DatabaseUnavailable) -> str:
    """Return the code by which a batch shows what blocks it."""
    return error.code if isinstance(error, ApiError) else "DATABASE_UNAVAILABLE"


class BatchContext:
    """One batch, as its parts share it."""

    def __init__(self, tools: Tools, batch: Batch) -> None:
        self.tools = tools
        self.batch = batch
        self.cancelled = batch.status == Status.CANCELLING
        self.backlog = Backlog()
        self.submitted: dict[int, Submitted] = {}
        self.running = 0
        """How many of the submitted lines ran at the last look."""
        self.reported_at = 0.0

    @property
    def facts(self) -> dict[str, Any]:
        """Return what identifies the batch in the log."""
        return {"batch": self.batch.id, "key_id": self.batch.key_id, "user": self.batch.user_name}

    # ---- its file ----------

    def lines(self) -> FileLines:
        """Return its lines, from the first one on."""
        return FileLines(self._open, self.tools.current.settings.max_body_bytes + AROUND_BODY)

    async def _open(self, start: int) -> AsyncIterator[bytes]:
        files = self.tools.files
        try:
            row = await files.row(self.batch.owner, self.batch.input_file)
            async with contextlib.aclosing(files.pieces(row, start)) as opened:
                async for piece in opened:
                    yield piece
        except ApiError as error:
            if error.status >= 500:
                raise
            raise Unreadable(Problem("file_not_found", error.message, None, "input_file_id")) from None

    async def parse(self, line: Line) -> ParsedLine:
        """Parse a line. Raises InvalidLine, and ApiError."""
        return await parse_line(line.text, self.batch.endpoint, self.tools.bodies)

    def task_id(self, line: int) -> str:
        """Return the id of a line's task."""
        return line_task(self.batch.id, self.batch.created, line)

    async def next_line(self, lines: FileLines) -> Line | None:
        """Return the next line, waiting while the file cannot be read; None behind the last one that can be."""
        while True:
            try:
                line = await lines.next()
                self.backlog.unblock(EVERYTHING)
                return line
            except Unreadable:
                return None
            except (ApiError, DatabaseUnavailable) as error:
                await self.report_blocked(error)

    async def report_blocked(self, error: ApiError | DatabaseUnavailable) -> None:
        """Show that nothing continues, and wait before the next try. Raises Overtaken."""
        self.backlog.block(EVERYTHING, RETRY_S, code_of(error), time.monotonic())
        await self.report()
        await asyncio.sleep(RETRY_S)

    # ---- its row ----------

    def status(self) -> dict[str, Any]:
        """Return its progress, as columns of its row."""
        waiting = max(len(self.submitted) - self.running, 0)
        return {
            "waiting": waiting,
            "running": self.running,
            "blocked_on": blocked_on_json(self.backlog.blocked_on),
        }

    async def report(self) -> None:
        """Write its progress to its row, if it changed. Raises Overtaken."""
        status = self.status()
        if all(getattr(self.batch, name) == value for name, value in status.items()):
            return
        if time.monotonic() - self.reported_at >= REPORT_S:
            self.reported_at = time.monotonic()
            with contextlib.suppress(DatabaseUnavailable):
                self.batch = await self.tools.store.mark(self.batch, **status)

    async def retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a call of the database or the store that may be repeated."""
        while True:
            try:
                return await call()
            except (DatabaseUnavailable, StoreError):
                await asyncio.sleep(RETRY_S)
