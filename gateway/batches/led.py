"""A batch that is led here, and what those need who carry it out: its row, its file, its caller, and patience."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import structlog

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.batches.batch import NO_WHYS, Batch, Status, Whys, whys_json
from fairlane.gateway.batches.lines import Asked, Problem
from fairlane.gateway.batches.names import line_task
from fairlane.gateway.batches.reading import FileLines, Pace, asked_in, longest_line
from fairlane.gateway.batches.splitting import Line
from fairlane.gateway.batches.standing import Standing
from fairlane.gateway.batches.store import NOTHING_UNDER_WAY, BatchStore
from fairlane.gateway.batches.surfaces import READERS, Reading, Request
from fairlane.gateway.calls.bodies import Bodies
from fairlane.gateway.current import Current
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.files.files import Files
from fairlane.gateway.tasks.cancel import Cancel
from fairlane.gateway.tasks.submit import Submit
from fairlane.queues.clock import now_ms
from fairlane.queues.errors import StoreError
from fairlane.queues.metrics import Metrics
from fairlane.queues.scheduler import Scheduler
from fairlane.streaming.results import Results
from fairlane.streaming.turns import Turns

log = structlog.get_logger("fairlane.gateway")

AGAIN_S = 1.0
"""When something is tried again that the store, the database or the storage did not do."""
AT_ONCE = 8
"""Calls of the store under way for one batch."""
WORKED_ON_AT_ONCE, LOOKED_AT_AT_ONCE = 2, 1
"""Batches of one process, however many it leads: the others wait for their turns, owners in turns."""
MODELS_TOLD = 10
TELL_S, TELL_COUNTS_S = 1.0, 5.0
"""How often it is written down how a batch stands, at most: where what it waits for has changed, or only how many lines are under
way. What is written with the outcomes of lines needs nothing of its own."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tools:
    """What batches are carried out with."""

    current: Current
    bodies: Bodies
    submit: Submit
    cancel: Cancel
    scheduler: Scheduler
    results: Results
    files: Files
    store: BatchStore
    metrics: Metrics
    working: Turns = field(default_factory=lambda: Turns(WORKED_ON_AT_ONCE))
    """Whose turn it is to submit and collect lines, of all batches of one process."""
    looking: Turns = field(default_factory=lambda: Turns(LOOKED_AT_AT_ONCE))
    """And to have its file looked at."""


class Known(NamedTuple):
    """A line as it was read."""

    asked: Asked
    request: Request


class Stopped(Exception):
    """Nothing more of the batch is run, and it ends in this status."""

    def __init__(self, status: Status, problem: Problem | None = None) -> None:
        super().__init__(status)
        self.status = status
        self.problem = problem


class NotNow(Exception):
    """The file of a batch cannot be read at the moment."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Led:
    """One batch. `may_act`: whether the lease holds still. `standing`: as it was known here, when it gave up its seat last."""

    def __init__(
        self, tools: Tools, batch: Batch, may_act: Callable[[], bool], standing: Standing | None = None
    ) -> None:
        self.tools = tools
        self.may_act = may_act
        self.batch = batch
        """Its row, as far as it is known here."""
        self.cancelled = batch.status is Status.CANCELLING
        """Somebody wants it to end; set from outside."""
        self.resumed = batch.epoch > 1
        """Others led it before, who have left tasks and files that nobody here knows."""
        self.opener = (batch.key_id, batch.user)
        self.pace = Pace()
        self.looking = False
        """Its file is being looked at."""
        self.lacks_files = False
        """It stands still, as was told, for files that cannot be read or written here: perhaps elsewhere."""
        now = time.monotonic()
        since = now - (now_ms() - batch.still) / 1000 if batch.still else None
        self.standing = standing or Standing(now, since)
        # what the leader before said holds until this one knows better: seats change each minute, where many wait
        self._stands: dict[str, Any] = {**NOTHING_UNDER_WAY, "still": batch.still, "whys": batch.whys}
        self._told_at = 0.0

    @property
    def facts(self) -> dict[str, Any]:
        """Which it is, for the log."""
        return {"batch": self.batch.id, "key_id": self.batch.key_id, "user": self.batch.user}

    @property
    def window(self) -> int:
        """How many lines may wait or run."""
        return self.tools.current.settings.batches.window

    @property
    def over(self) -> bool:
        """Whether it is to end."""
        return self.cancelled or now_ms() >= self.batch.expires

    def check(self) -> None:
        """Raise Stopped where it is to end."""
        if self.over:
            raise Stopped(Status.CANCELLED if self.cancelled else Status.EXPIRED)

    def caller(self) -> Caller:
        """Whose tasks its lines are, as the key stands now. Raises Stopped."""
        batch = self.batch
        caller = self.tools.current.callers.again(batch.key_id, batch.user, batch.tier)
        if caller is None:
            sentence = "The key, or the tier, with which the batch was made is not valid any more"
            raise Stopped(Status.FAILED, Problem("key_not_valid", sentence))
        return caller

    # ---- its lines ----------

    def task_id(self, line: int) -> str:
        """The id of the task of a line."""
        return line_task(self.batch.id, self.batch.created, line)

    def lines_from(self, line: int, offset: int) -> FileLines:
        """Its lines from one on, and where that begins."""
        most = longest_line(self.tools.current.settings.max_body_bytes)
        batch = self.batch

        def opened(start: int) -> Any:
            return self.tools.files.open(batch.owner, batch.input_file, start)

        return FileLines(opened, most, line, offset)

    async def asked_in(self, line: Line) -> Asked:
        """What a line asks for. Raises Unfit, and ApiError."""
        return await asked_in(line, self.batch.endpoint, self.tools.bodies, self.opener)

    def read(self, asked: Asked) -> Awaitable[Request]:
        """Return the request of a line. Raise what its call would be rejected with."""
        tools, most = self.tools, self.tools.current.settings.max_body_bytes
        reading = Reading(tools.bodies, self.opener, most)
        return READERS[self.batch.endpoint](asked.body, reading)

    # ---- how it goes ----------

    def moves(self, waiting: int = 0, running: int = 0, whys: Whys = NO_WHYS) -> None:
        """So many lines wait or run, or some have come to something; `whys`: why others are not submitted."""
        if self.standing.moves(time.monotonic()):
            log.info("batch goes on", **self.facts)
        self.lacks_files = False
        self._stands = {"waiting": waiting, "running": running, "still": 0, "whys": whys_json(whys)}

    def still(self, whys: Whys) -> None:
        """Nothing runs and nothing can be done: operators are told why, where that lasts."""
        now = time.monotonic()
        tell_s = self.standing.still(now)
        if tell_s is not None:
            models = sorted({model for models in whys.values() for model in models})
            facts = {"why": sorted(whys), "models": models[:MODELS_TOLD], "since_s": int(tell_s)}
            log.warning("batch stands still", **self.facts, **facts)
        if self.standing.lasts(now):
            self.lacks_files = "STORAGE_UNAVAILABLE" in whys
        still = self._stands["still"] or now_ms() - int(self.standing.for_s(now) * 1000)
        self._stands = {"waiting": 0, "running": 0, "still": still, "whys": whys_json(whys)}

    async def goes_on(self) -> None:
        """What it stood still for is there again, and nothing of it waits or runs: it is told, and written down. Raises
        Overtaken."""
        if self._stands["still"]:
            self.moves()
            await self.tell()

    @property
    def stands(self) -> dict[str, Any]:
        """How it stands, as columns of its row. Who writes them with others takes them from here."""
        self._told_at = time.monotonic()
        return self._stands

    async def tell(self) -> None:
        """Write down how it stands, where others do not know yet. Raises Overtaken."""
        batch, stands = self.batch, self._stands
        if all(getattr(batch, name) == value for name, value in stands.items()):
            return
        same = all(getattr(batch, name) == stands[name] for name in ("still", "whys"))
        if time.monotonic() - self._told_at >= (TELL_COUNTS_S if same else TELL_S):
            with contextlib.suppress(DatabaseUnavailable):  # told with the next look
                self.batch = await self.tools.store.mark(batch, **self.stands)

    # ---- what does not always answer ----------

    async def again(self, call: Callable[[], Awaitable[T]]) -> T:
        """What a call of the database comes to that may be repeated."""
        while True:
            try:
                return await call()
            except DatabaseUnavailable:
                await asyncio.sleep(AGAIN_S)

    async def until_answered(self, call: Callable[[], Awaitable[T]]) -> T:
        """The same of the store."""
        while True:
            try:
                return await call()
            except StoreError:
                await asyncio.sleep(AGAIN_S)
