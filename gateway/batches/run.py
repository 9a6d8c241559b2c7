"""One batch, from its file to the files of its answers, as its leader carries it out.

    validate -> feed and collect, a window of lines at a time -> write the files -> end

A line is submitted as a task with an id that follows from batch and line (`names.line_task`), so that the store takes it once,
whoever submits it again. Redis keeps the end of such a task until SQL has what came of it (`BatchStore.keep`), and then lets it
go. So there is nothing to remember but SQL's rows: a leader who dies at any instant leaves lines with results, which are not
looked at again; lines whose tasks wait, run or have ended, which the next one finds by submitting them again; and lines of which
there is nothing.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import structlog

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.batches.batch import Batch, Status
from fairlane.gateway.batches.lines import Asked, Findings, Problem, Unfit, model_in
from fairlane.gateway.batches.names import file_of, line_task
from fairlane.gateway.batches.outcomes import NotRun, Outcome, answered, not_run, refused
from fairlane.gateway.batches.reading import FileLines, Pace, asked_in, longest_line, look_at
from fairlane.gateway.batches.splitting import Line, LineTooLong
from fairlane.gateway.batches.standing import Standing
from fairlane.gateway.batches.store import BatchStore, problems_json
from fairlane.gateway.batches.surfaces import READERS, Reading, Request, View
from fairlane.gateway.calls.bodies import Bodies
from fairlane.gateway.calls.intake import Options
from fairlane.gateway.current import Current
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.errors import (
    ApiError,
    InsufficientQuota,
    NoWorker,
    bad_request,
    gateway_failed,
    task_failed,
)
from fairlane.gateway.files.files import Files
from fairlane.gateway.tasks.cancel import Cancel
from fairlane.gateway.tasks.making import make
from fairlane.gateway.tasks.poll import now_ms, record_info
from fairlane.gateway.tasks.submit import Submit
from fairlane.queues.errors import StoreError
from fairlane.queues.loops import all_of
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.tasks import TERMINAL, Record, State, TaskSpec
from fairlane.streaming.hub import Lost
from fairlane.streaming.results import Results
from fairlane.streaming.turns import Turns
from fairlane.streaming.views.result import MisfitError
from fairlane.streaming.views.task import TaskInfo

log = structlog.get_logger("fairlane.gateway")

LEAST_PAUSE_S, MOST_PAUSE_S = 0.05, 1.0
"""Between two looks at the tasks of a batch: short while they end, long while nothing happens."""
AGAIN_S = 1.0
"""When something is tried again that the store, the database or the storage did not do."""
AT_ONCE = 8
"""Calls of the store under way for one batch."""
WORKED_ON_AT_ONCE, LOOKED_AT_AT_ONCE = 2, 1
"""Batches of one process, however many it leads: the others wait for their turns, owners in turns."""
KEPT_BYTES, KEPT_AT_ONCE = 4 << 20, 500
"""Of what came of lines, and of how many: so much is written together, about, before anything else is done."""
HELD_BYTES = 4 << 20
"""Of lines that wait to be submitted again, or are to be submitted at the same time: then no further ones are read."""
NEEDED_BYTES = 16 << 20
"""Of what answers need of the requests that wait or run: then no further ones are submitted."""
MOST_OF_A_RECORD = 64 << 20
"""Bytes: what is larger fits neither the drivers of databases nor the memory of those who read it well."""
AFTER_COLLECTED_MS = 30_000
"""So long Redis still knows the task of a line of which SQL has the answer, and for two leases. Longer than anybody believes that
he leads who does not, so a line that he submits late is known."""
KEPT_BEHIND_MS = 24 * 3600 * 1000
"""So long behind the end of the batch's window Redis keeps what nobody has collected, as no gateway runs."""
LOOKED_FOR_AT_ONCE = 500
DELETED_EPOCHS, DELETED_TRIES = 20, 2
"""Of how many leaders before files are looked for that nobody was told of."""
MOST_REST_S = 60.0
MOST_HOLDS = 1000
MODELS_TOLD = 10
PURPOSE = "batch_output"
MOST_BYTES = 1 << 50
"""Of a file of answers: they are there, and have been paid for."""
OF_A_MODEL = frozenset({"QUEUE_FULL", "USER_QUEUE_FULL", "WAIT_TOO_LONG", "MODEL_UNAVAILABLE", "NO_WORKER"})
"""Refusals that say nothing of other models' lines."""

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
    working: Turns = field(default_factory=lambda: Turns(WORKED_ON_AT_ONCE))
    """Whose turn it is to submit and collect lines, of all batches of one process."""
    looking: Turns = field(default_factory=lambda: Turns(LOOKED_AT_AT_ONCE))
    """And to have its file looked at."""


class InWork(NamedTuple):
    """A line that has been submitted."""

    line: int
    offset: int
    custom_id: str
    task_id: str
    view: Callable[[TaskInfo], View]
    needs: int
    """Bytes of the request that `view` holds."""


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


_WHY_NOT = {Status.EXPIRED: NotRun.EXPIRED, Status.CANCELLED: NotRun.CANCELLED, Status.FAILED: NotRun.FAILED}


class Run:
    """A batch that is led here. Call it once; it raises Overtaken when somebody else leads it."""

    def __init__(self, tools: Tools, batch: Batch, may_act: Callable[[], bool]) -> None:
        """`may_act`: whether the lease holds still."""
        self._tools = tools
        self._may_act = may_act
        self.batch = batch
        self.cancelled = batch.status is Status.CANCELLING
        """Somebody wants it to end; set from outside."""
        self._resumed = batch.epoch > 1
        self._opener = (batch.key_id, batch.user)
        self._lines = self._lines_from(batch)
        self._done: set[int] = set()
        """Lines from the first open one on that have come to something, as far as this run did not see it itself."""
        self._in_work: dict[int, InWork] = {}
        self._held: list[tuple[str, Line]] = []
        """Lines that could not be submitted, each with its model."""
        self._holds: dict[str, float] = {}
        """Until when nothing of a model is submitted; '' of any."""
        self._outcomes: list[tuple[Outcome, str]] = []
        """What came of lines and is not written yet, each with its task."""
        self._outcome_bytes = 0
        self._over = False
        """Nothing more is submitted, and what waits or runs is ended."""
        self._unrun: dict[int, int] = {}
        """Lines that will not be run, and where they begin."""
        self._pace = Pace()
        self._whys: dict[str, str] = {}
        """Why nothing of a model ('': of any) was submitted, by code."""
        self._standing = Standing(time.monotonic())

    @property
    def open_lines(self) -> int:
        """Lines that wait or run."""
        return len(self._in_work)

    @property
    def owner(self) -> Owner:
        """Whose batch it is."""
        return self.batch.owner

    @property
    def may_leave(self) -> bool:
        """Whether another one may take it up here without beginning something anew."""
        return self.batch.status is Status.IN_PROGRESS and not self.cancelled and not self._over

    async def __call__(self) -> Batch:
        """Carry it out to its end. May be cancelled at any instant."""
        batch = self.batch
        if batch.status is Status.VALIDATING and not await self._validated():
            return self.batch
        if not batch.outcome:
            self._done = await self._again(lambda: self._tools.store.kept(self.batch))
            status, problem = Status.COMPLETED, None
            try:
                await self._work()
            except Stopped as stopped:
                status, problem = stopped.status, stopped.problem
                await self._give_up()
            await self._finishing(status, problem)
        return await self._finish()

    # ---- validation ----------

    async def _validated(self) -> bool:
        """Look at the whole file. Whether the batch goes on: else it has ended."""
        batch, settings = self.batch, self._tools.current.settings
        if self.cancelled:
            await self._end(Status.CANCELLED)
            return False
        findings = await self._findings(settings.batches.max_lines)
        if findings is None:
            await self._end(Status.CANCELLED if self.cancelled else Status.EXPIRED)
            return False
        if findings.problems:
            await self._end(Status.FAILED, errors=problems_json(findings.problems))
            return False
        begun = {"total": findings.total, "model": findings.model}
        self.batch = await self._again(lambda: self._tools.store.begin(batch, now_ms(), **begun))
        self.cancelled = self.batch.status is Status.CANCELLING
        self._moves()
        log.info("batch begun", **self._facts(), endpoint=batch.endpoint, lines=findings.total)
        return True

    async def _findings(self, most_lines: int) -> Findings | None:
        """What there is in the file. None: it cannot be read, and the batch is to end before that."""
        while True:
            try:
                async with self._tools.looking.of(self._opener):  # given back while it cannot be read
                    return await self._look_at(most_lines)
            except NotNow as not_now:
                self._still(not_now.code)
            try:
                self._check()
            except Stopped:
                return None
            await asyncio.sleep(AGAIN_S)

    async def _look_at(self, most_lines: int) -> Findings:
        lines = self._lines_from(self.batch)
        try:
            return await look_at(lines, self.batch.endpoint, most_lines, self._tools.bodies, self._opener)
        except ApiError as error:
            if error.status >= 500:
                raise NotNow(error.code) from error
            findings = Findings(most_lines)
            findings.wrong(Problem("file_not_found", error.message, None, "input_file_id"))
            return findings
        except DatabaseUnavailable as error:
            raise NotNow("DATABASE_UNAVAILABLE") from error

    # ---- feeding and collecting ----------

    async def _work(self) -> None:
        """Run all lines. Raises Stopped."""
        pause = LEAST_PAUSE_S
        while True:
            async with self._tools.working.of(self._opener):
                began = time.monotonic()
                await self._feed()
                collected = await self._collect()
                kept = await self._keep()
                if not (self._in_work or self._held) and await self._at_end():
                    return
                if collected or self._in_work:
                    self._moves()
                else:
                    self._still()
                took = time.monotonic() - began
            pause = LEAST_PAUSE_S if collected or kept else min(pause * 1.5, MOST_PAUSE_S)
            # at most half of the time is a batch's
            await asyncio.sleep(max(pause, min(took, MOST_PAUSE_S)))

    def _check(self) -> None:
        """Raise Stopped where the batch is to end."""
        if self.cancelled:
            raise Stopped(Status.CANCELLED)
        if now_ms() >= self.batch.expires:
            raise Stopped(Status.EXPIRED)

    async def _at_end(self) -> bool:
        """Whether all lines of the file have been read: the last ones may be blank."""
        try:
            line = await self._next_in_file()
        except NotNow as not_now:
            self._rest("", AGAIN_S, not_now.code)
            return False
        if line is None:
            return True
        self._held.insert(0, ("", line))
        return False

    async def _feed(self) -> None:
        """Submit lines while there is room in the window; where many are refused, until there is much to be written of them."""
        while not self._much_came:
            self._check()
            caller = self._caller()
            room = self._tools.current.settings.batches.window - len(self._in_work)
            if sum(line.needs for line in self._in_work.values()) > NEEDED_BYTES:
                room = 0
            lines = await self._ready(min(room, AT_ONCE)) if room > 0 and self._may_act() else []
            if not lines:
                return
            await all_of(self._submit(line, caller) for line in lines)
            await self._pace.step()

    async def _ready(self, most: int) -> list[Line]:
        """Lines that may be submitted now, at most so many."""
        now, found, waiting = time.monotonic(), list[Line](), list[tuple[str, Line]]()
        if self._holds.get("", 0.0) > now:
            return []
        for model, line in self._held:
            if len(found) < most and self._holds.get(model, 0.0) <= now and _bytes(found) <= HELD_BYTES:
                found.append(line)
            else:
                waiting.append((model, line))
        self._held = waiting
        window = self._tools.current.settings.batches.window
        while len(found) < most and len(self._held) < window:
            if _bytes(found) + _bytes(line for _, line in self._held) > HELD_BYTES:
                break
            try:
                following = await self._next_in_file()
            except NotNow as not_now:
                self._rest("", AGAIN_S, not_now.code)
                break
            except Stopped:
                self._held += [("", one) for one in found]
                raise
            if following is None:
                break
            found.append(following)
        return found

    async def _next_in_file(self) -> Line | None:
        """Raises NotNow: what runs is collected meanwhile, and other batches have their turns."""
        while True:
            try:
                line = await self._lines.next()
            except ApiError as error:
                if error.status >= 500:
                    raise NotNow(error.code) from error
                problem = Problem("file_not_found", error.message, None, "input_file_id")
                raise Stopped(Status.FAILED, problem) from None
            except LineTooLong as long:  # lines may be shorter now than when the file was looked at
                sentence = f"The line is longer than {long.most} bytes; nothing behind it was carried out"
                raise Stopped(Status.FAILED, Problem("line_too_long", sentence, long.number)) from None
            except DatabaseUnavailable as error:
                raise NotNow("DATABASE_UNAVAILABLE") from error
            if line is None or line.number not in self._done:
                return line
            await self._pace.step()

    async def _submit(self, line: Line, caller: Caller) -> None:
        """Submit a line: it is in work then, or held, or has come to something."""
        task_id, custom_id, model = self._task_id(line.number), "", ""
        try:
            asked = await asked_in(line, self.batch.endpoint, self._tools.bodies, self._opener)
            custom_id = asked.custom_id
            request = await self._read(asked)
            model = model_in(request.fields)
            await self._tools.submit(self._task(line, task_id, request, caller))
        except StoreError:
            self._hold("", line, AGAIN_S, "STORE_UNAVAILABLE")
        except Unfit as unfit:  # it was looked at before: what it was read as has changed
            error = ApiError(400, unfit.code, unfit.message)
            self._came_to(refused(line.number, custom_id, task_id, error), task_id)
        except ApiError as error:
            if not _comes_again(error):
                self._came_to(refused(line.number, custom_id, task_id, error), task_id)
                return
            held = model if error.code in OF_A_MODEL else ""
            self._hold(held, line, (error.retry_after_ms or 1000) / 1000, error.code, model)
        else:
            self._in_work[line.number] = _in_work(line, custom_id, task_id, request)

    def _read(self, asked: Asked) -> Awaitable[Request]:
        reading = Reading(self._tools.bodies, self._tools.current.settings.max_body_bytes, self._opener)
        return READERS[self.batch.endpoint](asked.body, reading)

    def _task(self, line: Line, task_id: str, request: Request, caller: Caller) -> TaskSpec:
        batch, tools, now = self.batch, self._tools, now_ms()
        caller = caller.named(request.fields)
        metadata = b'{"batch":"%b","line":%d}' % (batch.id.encode(), line.number)
        options = Options(wait=False, mode="batch", metadata=metadata, on_v1=True)
        task = make(
            *(tools.current, caller, request.task_type, request.payload, request.fields, options),
            task_id=task_id,
        )
        left_ms = max(batch.expires - now, 1000)
        for one in (task, task.otherwise):
            if one is not None:
                one.wait_ms = left_ms
        task.keep_ms = left_ms + KEPT_BEHIND_MS
        task.after_read_ms = max(AFTER_COLLECTED_MS, 2 * tools.current.settings.lease_ms)
        task.archive_ms, task.archive_request = 0, False
        task.again = True
        task.request_id = batch.id
        return task

    def _caller(self) -> Caller:
        """Whose tasks they are, as the key stands now. Raises Stopped."""
        batch = self.batch
        caller = self._tools.current.callers.again(batch.key_id, batch.user, batch.tier)
        if caller is None:
            sentence = "The key, or the tier, with which the batch was made is not valid any more"
            raise Stopped(Status.FAILED, Problem("key_not_valid", sentence))
        return caller

    def _hold(self, held: str, line: Line, seconds: float, code: str, model: str = "") -> None:
        self._rest(held, seconds, code)
        self._held.append((model, line))

    def _rest(self, held: str, seconds: float, code: str) -> None:
        """Submit nothing of a model ('': of any) for a while."""
        now = time.monotonic()
        if len(self._holds) > MOST_HOLDS:
            self._holds = {name: until for name, until in self._holds.items() if until > now}
            self._whys = {name: why for name, why in self._whys.items() if name in self._holds}
        self._holds[held] = now + min(max(seconds, AGAIN_S), MOST_REST_S)  # a limit may be raised meanwhile
        self._whys[held] = code

    def _moves(self) -> None:
        """Lines run, or have come to something."""
        self._whys.clear()
        if self._standing.moves(time.monotonic()):
            log.info("batch goes on", **self._facts())

    def _still(self, *codes: str) -> None:
        """Nothing runs and nothing can be submitted: operators are told why, where that lasts."""
        since_s = self._standing.still(time.monotonic())
        if since_s is not None:
            why, models = sorted({*codes, *self._whys.values()}), sorted(filter(None, self._whys))
            facts = {"why": why, "models": models[:MODELS_TOLD], "since_s": int(since_s)}
            log.warning("batch stands still", **self._facts(), **facts)

    def _task_id(self, line: int) -> str:
        return line_task(self.batch.id, self.batch.created, line)

    def _came_to(self, outcome: Outcome, task_id: str) -> None:
        self._outcomes.append((outcome, task_id))
        self._outcome_bytes += len(outcome.record)

    @property
    def _much_came(self) -> bool:
        """Whether what came of lines is to be written before there is more of it."""
        return len(self._outcomes) >= KEPT_AT_ONCE or self._outcome_bytes > KEPT_BYTES

    async def _collect(self) -> int:
        """Take what came of the lines whose tasks have ended; of how many."""
        number = 0
        for at in range(0, len(lines := [*self._in_work.values()]), LOOKED_FOR_AT_ONCE):
            part = lines[at : at + LOOKED_FOR_AT_ONCE]
            try:
                tops = await self._tools.scheduler.tops([line.task_id for line in part])
            except StoreError:
                return number
            for line, top in zip(part, tops, strict=True):
                if top is None or top.state in TERMINAL:
                    if not await self._take(line):
                        return number
                    number += 1
                    await self._pace.step()
                if self._much_came:
                    await self._keep()
        return number

    async def _take(self, line: InWork) -> bool:
        """Take what came of a line whose task has ended, or is not known any more. False: the store does not answer."""
        try:
            record = await self._tools.scheduler.position(line.task_id)
            if record is None:  # the store was emptied, or lost its last second
                await self._submit_again(line)
                return True
            if record.state not in TERMINAL:
                return True
            outcome = await self._outcome(line, record)
        except StoreError:
            return False
        del self._in_work[line.line]
        if outcome is None:
            self._unrun[line.line] = line.offset
        else:
            self._came_to(outcome, line.task_id)
        return True

    async def _outcome(self, line: InWork, record: Record) -> Outcome | None:
        """What came of a line whose task has ended; None: it was not carried out, as the batch ends. Raises StoreError."""
        info, task_id = record_info(line.task_id, record), line.task_id
        over = self._over or self.cancelled or now_ms() >= self.batch.expires
        try:
            if record.state is State.COMPLETED:
                made = await self._tools.results.shown(info, line.view, _show)
                if len(made.json) <= MOST_OF_A_RECORD:
                    return answered(line.line, line.custom_id, task_id, made.json)
                sentence = f"The answer is larger than {MOST_OF_A_RECORD} bytes"
                error = gateway_failed("OUTPUT_TOO_LARGE", sentence, task_id)
                return refused(line.line, line.custom_id, task_id, error)
            if over and (record.state is State.CANCELLED or record.fields.get("co") == "QUEUE_TIMEOUT"):
                return None
            failure = (await self._tools.results.end(info)).error
        except MisfitError as misfit:
            error = gateway_failed("JSON_PARSE_FAILED", str(misfit), task_id)
        except Lost:
            error = gateway_failed("STORE_LOST", "The store lost this answer", task_id)
        else:
            took_ms = max(record.number("ed") - record.number("en"), 0)
            error = task_failed(failure, task_id, took_ms=took_ms)
        return refused(line.line, line.custom_id, task_id, error)

    async def _submit_again(self, line: InWork) -> None:
        """Nothing is known of a line's task: submit it again, from the file. Where the file has it no more, it has failed."""
        del self._in_work[line.line]
        lines, found = self._lines_from(self.batch._replace(line=line.line, offset=line.offset)), None
        try:
            found = await lines.next()
        except DatabaseUnavailable:
            pass
        except (LineTooLong, ApiError) as gone:
            error = gone if isinstance(gone, ApiError) else bad_request(str(gone))
            if error.status < 500:
                self._came_to(refused(line.line, line.custom_id, line.task_id, error), line.task_id)
                return
        if found is None:  # tried again with the next look
            self._in_work[line.line] = line
            return
        self._held.append(("", found))

    async def _keep(self) -> int:
        """Write what came of lines, and let Redis forget it; of how many."""
        taken, self._outcomes, self._outcome_bytes = self._outcomes, [], 0
        if not taken:
            return 0
        outcomes = [outcome for outcome, _ in taken]
        line, offset = self._open_from()
        self.batch = await self._again(lambda: self._tools.store.keep(self.batch, outcomes, line, offset))
        self.cancelled = self.cancelled or self.batch.status is Status.CANCELLING
        ids = [task_id for _, task_id in taken]
        for at in range(0, len(ids), AT_ONCE):
            reads = (self._tools.scheduler.read_end(task_id) for task_id in ids[at : at + AT_ONCE])
            await asyncio.gather(*reads, return_exceptions=True)  # else they go at their time
        return len(taken)

    def _open_from(self) -> tuple[int, int]:
        """The first line that has come to nothing yet, and where it begins."""
        places = [(line.line, line.offset) for line in self._in_work.values()]
        places += [(line.number, line.offset) for _, line in self._held]
        places += self._unrun.items()
        return min([*places, self._lines.place])

    # ---- the end ----------

    async def _give_up(self) -> None:
        """End the tasks of lines that wait or run, and take what has come of those that ended before."""
        self._over = True
        self._unrun |= {line.number: line.offset for _, line in self._held}
        self._held = []
        if self._resumed:
            await self._find_in_work()
        while self._in_work:
            ids = [line.task_id for line in self._in_work.values()]
            for at in range(0, len(ids), AT_ONCE):
                ends = (self._tools.cancel.end(task_id, "client") for task_id in ids[at : at + AT_ONCE])
                await asyncio.gather(*ends, return_exceptions=True)
                await self._pace.step()
            before = len(self._in_work)
            await self._collect()
            await self._keep()
            if self._in_work and len(self._in_work) == before:
                await asyncio.sleep(AGAIN_S)

    async def _find_in_work(self) -> None:
        """Find the tasks that a leader before has submitted: they are among the next lines of the file."""
        lines = self._lines_from(self.batch)
        while True:
            part, known = list[Line](), False
            while len(part) < max(LOOKED_FOR_AT_ONCE, 2 * self._tools.current.settings.batches.window):
                line = await self._line_or_none(lines)
                if line is None:
                    break
                if line.number not in self._done and line.number not in self._in_work:
                    part.append(line)
                await self._pace.step()
            ids = [self._task_id(line.number) for line in part]
            tops = await self._until_answered(lambda ids=ids: self._tools.scheduler.tops(ids))  # type: ignore[misc]
            for line, top in zip(part, tops, strict=True):
                if top is not None:
                    known = True
                    await self._know(line)
            if not known:
                return

    async def _line_or_none(self, lines: FileLines) -> Line | None:
        while True:
            try:
                return await lines.next()
            except LineTooLong:
                return None
            except ApiError as error:
                if error.status < 500:
                    return None
            except DatabaseUnavailable:
                pass
            await asyncio.sleep(AGAIN_S)

    async def _know(self, line: Line) -> None:
        """A line is in work, as was found."""
        try:
            asked = await asked_in(line, self.batch.endpoint, self._tools.bodies, self._opener)
            request = await self._read(asked)
        except (Unfit, ApiError):
            return
        task_id = self._task_id(line.number)
        self._in_work[line.number] = _in_work(line, asked.custom_id, task_id, request)

    async def _finishing(self, status: Status, problem: Problem | None) -> None:
        """There is nothing more to run."""
        values: dict[str, Any] = {"outcome": status.value, "finalizing": now_ms()}
        if not self.cancelled:
            values["status"] = Status.FINALIZING
        if problem is not None:
            values["errors"] = problems_json([problem])
        self.batch = await self._again(lambda: self._tools.store.mark(self.batch, **values))
        self._resumed = False

    async def _finish(self) -> Batch:
        """Write the files, and end."""
        batch, status = self.batch, Status(self.batch.outcome)
        if self._resumed:
            await self._delete_files()
        output = error = ""
        if batch.completed:
            output = await self._write("output", lambda: self._tools.store.records(batch.id, failed=False))
        if batch.failed or batch.completed < batch.total:
            error = await self._write("error", lambda: self._errors(status))
        await self._end(status, output_file=output, error_file=error)
        while await self._again(lambda: self._tools.store.forget_results(batch.id)):
            await asyncio.sleep(LEAST_PAUSE_S)
        return self.batch

    async def _write(self, kind: str, chunks: Callable[[], AsyncIterator[bytes]]) -> str:
        """A file of these bytes; its id. Tried until the storage takes it: there is nothing else to be done with the answers."""
        batch, owner = self.batch, self.batch.owner
        name, expires_s = f"{batch.id}_{kind}.jsonl", batch.output_ttl_s or None
        for number in itertools.count():
            file_id = file_of(batch.id, batch.created, kind, batch.epoch, number)
            try:
                await self._tools.files.create(
                    owner, name, PURPOSE, chunks(), expires_s=expires_s, most=MOST_BYTES, file_id=file_id
                )
            except (ApiError, DatabaseUnavailable) as error:
                log.warning("a file of a batch is not stored yet", **self._facts(), file=kind, why=str(error))
                await asyncio.sleep(min(AGAIN_S * 2 ** min(number, 10), MOST_REST_S))
                if not await self._is_there(file_id):
                    continue
            return file_id
        raise AssertionError("counts without end")

    async def _is_there(self, file_id: str) -> bool:
        while True:
            try:
                await self._tools.files.row(self.batch.owner, file_id)
            except ApiError as error:
                if error.status == 404:
                    return False
            except DatabaseUnavailable:
                pass
            else:
                return True
            await asyncio.sleep(AGAIN_S)

    async def _delete_files(self) -> None:
        """Delete what leaders before have written, who died before it was told."""
        batch = self.batch
        for epoch in range(max(batch.epoch - DELETED_EPOCHS, 1), batch.epoch):
            for kind, number in itertools.product(("output", "error"), range(DELETED_TRIES)):
                file_id = file_of(batch.id, batch.created, kind, epoch, number)
                if await self._is_there(file_id):
                    with contextlib.suppress(ApiError, DatabaseUnavailable):
                        await self._tools.files.delete(self.batch.owner, file_id)

    async def _errors(self, status: Status) -> AsyncIterator[bytes]:
        """The lines of the error file: what failed, and what was not carried out."""
        batch = self.batch
        async for records in self._tools.store.records(batch.id, failed=True):
            yield records
        if status is Status.COMPLETED:
            return
        done = await self._again(lambda: self._tools.store.kept(batch))
        lines, pace, parts = self._lines_from(batch), Pace(), list[bytes]()
        while (line := await self._line_or_none(lines)) is not None:
            if line.number not in done:
                try:
                    asked = await asked_in(line, batch.endpoint, self._tools.bodies, self._opener)
                except Unfit:
                    continue
                parts.append(not_run(asked.custom_id, self._task_id(line.number), _WHY_NOT[status]))
            await pace.step()
            if len(parts) >= LOOKED_FOR_AT_ONCE:
                yield b"".join(parts)
                parts = []
        if parts:
            yield b"".join(parts)

    async def _end(self, status: Status, **values: Any) -> None:
        self.batch = await self._again(lambda: self._tools.store.end(self.batch, status, now_ms(), **values))
        batch = self.batch
        counts = {"lines": batch.total, "completed": batch.completed, "failed": batch.failed}
        took_s = (batch.ended - batch.created) // 1000
        problems = [problem.message for problem in batch.problems[:1]]
        why = {"why": problems[0]} if problems else {}
        log.info("batch ended", **self._facts(), status=status.value, took_s=took_s, **counts, **why)

    def _facts(self) -> dict[str, Any]:
        return {"batch": self.batch.id, "key_id": self.batch.key_id, "user": self.batch.user}

    # ---- what does not always answer ----------

    def _lines_from(self, batch: Batch) -> FileLines:
        most = longest_line(self._tools.current.settings.max_body_bytes)
        return FileLines(
            lambda start: self._tools.files.open(self.batch.owner, batch.input_file, start),
            most,
            batch.line,
            batch.offset,
        )

    async def _again(self, call: Callable[[], Awaitable[T]]) -> T:
        """What a call of the database comes to that may be repeated."""
        while True:
            try:
                return await call()
            except DatabaseUnavailable:
                await asyncio.sleep(AGAIN_S)

    async def _until_answered(self, call: Callable[[], Awaitable[T]]) -> T:
        """The same of the store."""
        while True:
            try:
                return await call()
            except StoreError:
                await asyncio.sleep(AGAIN_S)


def _in_work(line: Line, custom_id: str, task_id: str, request: Request) -> InWork:
    return InWork(line.number, line.offset, custom_id, task_id, request.view, request.needs)


def _bytes(lines: Iterable[Line]) -> int:
    return sum(len(line.text) for line in lines)


def _show(view: View) -> bytes:
    return view.body()


def _comes_again(error: ApiError) -> bool:
    """Whether a refusal only says that it is to be tried later."""
    if isinstance(error, InsufficientQuota) or (isinstance(error, NoWorker) and error.unknown):
        return False
    return error.status in (429, 503)
