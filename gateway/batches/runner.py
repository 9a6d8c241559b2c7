"""Runs one batch, from its file to the files of its answers.

    validate -> submit and collect, a window of lines at a time -> write the files -> end

A line is submitted as a task whose id follows from batch and line (`models.line_task`), so the store accepts it once, however
often it is submitted. Redis keeps the end of such a task until SQL has its result (`BatchStore.keep`). So SQL's rows are the only
state: after a crash the next leader skips lines with results, and submits all others again.
"""

import asyncio
import contextlib
import time
from asyncio import to_thread
from collections.abc import Callable
from typing import Any

import structlog

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.batches import finalize
from fairlane.gateway.batches.backlog import EVERYTHING, MAX_LINES
from fairlane.gateway.batches.context import RETRY_S, BatchContext, Submitted, Tools, code_of
from fairlane.gateway.batches.lines import (
    MAX_REQUESTS,
    InvalidLine,
    Line,
    ParsedLine,
    Unreadable,
    model_in,
    validate_lines,
)
from fairlane.gateway.batches.models import Batch, Outcome, Problem, Status, answered, failed
from fairlane.gateway.batches.requests import READERS, Request
from fairlane.gateway.batches.store import NOTHING_SUBMITTED, problems_json
from fairlane.gateway.core.poll import record_info
from fairlane.gateway.core.spec import Options, build_openai_task
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.database.tables import MAX_OF_A_VALUE
from fairlane.gateway.errors import ApiError, InsufficientQuota, NoWorker, gateway_failed, task_failed
from fairlane.queues.clock import now_ms
from fairlane.queues.errors import StoreError
from fairlane.queues.ids import in_pool
from fairlane.queues.loops import gather_all
from fairlane.queues.tasks import TERMINAL, Record, State, TaskSpec
from fairlane.streaming.hub import Lost
from fairlane.streaming.views.result import ResultShapeError

log = structlog.get_logger("fairlane.gateway")

MAX_CONCURRENT = 8
"""Calls of the store under way for one batch."""
QUOTA_RETRY_S = 10.0
MIN_PAUSE_S, MAX_PAUSE_S = 0.05, 1.0
"""Between two looks at the tasks of a batch."""
KEPT_BYTES, MAX_KEPT = 4 << 20, 500
"""Results that are written together."""
MAX_LOOKED_UP = 500
NEEDED_BYTES = 16 << 20
"""Bytes of requests that their answers need: with more, no further line is submitted."""
LARGE = 1 << 20
"""A larger answer is encoded in a thread."""
AFTER_COLLECTED_MS = 30_000
"""Redis keeps a collected task for this time, so that a late submission by a former leader finds it."""
KEPT_BEHIND_MS = 24 * 3_600_000
"""Redis keeps results for this time behind the batch's window, in case no gateway runs."""
OF_A_MODEL = frozenset({"QUEUE_FULL", "USER_QUEUE_FULL", "WAIT_TOO_LONG", "MODEL_UNAVAILABLE", "NO_WORKER"})
"""Rejections that concern one model."""


class Stopped(Exception):
    """No more lines are run, and the batch ends in this status."""

    def __init__(self, status: Status, problem: Problem | None = None) -> None:
        super().__init__(status)
        self.status = status
        self.problem = problem


class Runner(BatchContext):
    """One batch that is led here. Call it once; it raises Overtaken when another replica leads the batch."""

    def __init__(self, tools: Tools, batch: Batch, may_act: Callable[[], bool]) -> None:
        """`may_act`: whether the lease still holds."""
        super().__init__(tools, batch)
        self._may_act = may_act
        self._outcomes: list[Outcome] = []
        self._outcome_bytes = 0
        self._taken: set[int] = set()
        """Lines that have results, are submitted, or are in the backlog."""
        self._ends = False
        self._lines = self.lines()
        self._at_end = False

    async def __call__(self) -> None:
        """Run the batch to its end. May be cancelled at any instant."""
        if not self.batch.began and not await self._validate():
            return
        if not self.batch.outcome:
            await self._run_lines()
        await finalize.finalize(self)

    @property
    def _over(self) -> bool:
        return self.cancelled or now_ms() >= self.batch.expires

    @property
    def _early_status(self) -> Status:
        return Status.CANCELLED if self.cancelled else Status.EXPIRED

    async def _read(self, parsed: ParsedLine) -> Request:
        """Return the request of a line. Raises the errors of its call."""
        read = READERS[self.batch.endpoint]
        return await read(parsed.body, self.tools.bodies, self.tools.current.settings)

    # ---- validation ----------

    async def _validate(self) -> bool:
        """Check the whole file; return whether the batch continues."""
        findings = None
        while findings is None and not self.cancelled:
            try:
                async with self.tools.working.hold(self.batch.key_id):
                    findings = await validate_lines(
                        self.lines(), self.batch.endpoint, MAX_REQUESTS, self.tools.bodies
                    )
            except (ApiError, DatabaseUnavailable) as error:
                await self.report_blocked(error)
                if self._over:
                    break
        if findings is None:
            await finalize.end(self, self._early_status)
            return False
        if findings.problems:
            await finalize.end(self, Status.FAILED, errors=problems_json(findings.problems))
            return False
        begun = {"total": findings.total, "model": findings.model}
        self.batch = await self.retry(lambda: self.tools.store.begin(self.batch, now_ms(), **begun))
        self.cancelled = self.batch.status == Status.CANCELLING
        self.backlog.clear()
        log.info("batch started", **self.facts, endpoint=self.batch.endpoint, lines=findings.total)
        return True

    # ---- lines ----------

    async def _run_lines(self) -> None:
        self._taken = await self.retry(lambda: self.tools.store.kept(self.batch))
        status, problem, pause = Status.COMPLETED, None, MIN_PAUSE_S
        try:
            while not await self._step():
                pause = MIN_PAUSE_S if self._progressed else min(pause * 1.5, MAX_PAUSE_S)
                await asyncio.sleep(pause)
        except Stopped as stopped:
            status, problem = stopped.status, stopped.problem
            await self._give_up()
        values: dict[str, Any] = {"outcome": status.value, "finalizing": now_ms(), **NOTHING_SUBMITTED}
        if not self.cancelled:
            values["status"] = Status.FINALIZING
        if problem is not None:
            values["errors"] = problems_json([problem])
        self.batch = await self.retry(lambda: self.tools.store.mark(self.batch, **values))

    async def _step(self) -> bool:
        """Submit and collect lines; return whether all lines have results. Raises Stopped."""
        async with self.tools.working.hold(self.batch.key_id):
            await self._submit_lines()
            collected = await self._collect()
            kept = await self._keep()
            self._progressed = collected + kept > 0
            if self._at_end and not (self.submitted or self.backlog):
                return True
            await self.report()
            return False

    async def _submit_lines(self) -> None:
        """Submit lines while there is room in the window. Raises Stopped."""
        while not self._many_outcomes:
            if self._over:
                raise Stopped(self._early_status)
            caller = self._caller()
            room = self.tools.current.settings.batches.window - len(self.submitted)
            needed = sum(one.needs for one in self.submitted.values())
            if room <= 0 or needed > NEEDED_BYTES or not self._may_act():
                return
            lines = await self._next_lines(min(room, MAX_CONCURRENT))
            if not lines:
                return
            await gather_all(self._submit(line, caller) for line in lines)

    def _caller(self) -> Caller:
        """Return the caller as the key is now. Raises Stopped."""
        batch = self.batch
        caller = self.tools.current.callers.reauthenticate(batch.key_id, batch.user_name, batch.tier)
        if caller is None:
            sentence = "The key, or the tier, with which the batch was made is not valid any more"
            raise Stopped(Status.FAILED, Problem("key_not_valid", sentence))
        return caller

    async def _next_lines(self, most: int) -> list[Line]:
        """Return lines that can be submitted now. Raises Stopped."""
        now = time.monotonic()
        if self.backlog.is_blocked(EVERYTHING, now):
            return []
        found = self.backlog.take(most, now)
        try:
            while len(found) < most and not self.backlog.full:
                line = await self._lines.next()
                self.backlog.unblock(EVERYTHING)
                if line is None:
                    self._at_end = True
                    break
                if line.number not in self._taken:
                    self._taken.add(line.number)
                    found.append(line)
                await asyncio.sleep(0)
        except (ApiError, DatabaseUnavailable, Unreadable) as error:
            for line in found:
                self.backlog.add(line)
            if isinstance(error, Unreadable):
                raise Stopped(Status.FAILED, error.problem) from None
            self.backlog.block(EVERYTHING, RETRY_S, code_of(error), now)
            return []
        return found

    async def _submit(self, line: Line, caller: Caller) -> None:
        """Submit a line: then it is submitted, in the backlog, or has an outcome."""
        task_id, custom_id, model = self.task_id(line.number), "", EVERYTHING
        try:
            parsed = await self.parse(line)
            custom_id = parsed.custom_id
            request = await self._read(parsed)
            model = model_in(request.fields)
            if self.backlog.is_blocked(model, time.monotonic()):
                self.backlog.add(line, model)
                return
            task = self._task(line, task_id, caller, request)
            await self.tools.submit(task)
        except StoreError:
            self._block(line, EVERYTHING, RETRY_S, "STORE_UNAVAILABLE")
        except DatabaseUnavailable:
            self._block(line, EVERYTHING, RETRY_S, "DATABASE_UNAVAILABLE")
        except InvalidLine as invalid:  # settings have changed since the file was checked
            self._add_failure(line.number, custom_id, task_id, ApiError(400, invalid.code, invalid.message))
        except ApiError as error:
            if error.status not in (429, 503) or (isinstance(error, NoWorker) and error.unknown):
                self._add_failure(line.number, custom_id, task_id, error)
            elif isinstance(error, InsufficientQuota):
                self._block(line, EVERYTHING, QUOTA_RETRY_S, error.code)
            else:
                retry_s = (error.retry_after_ms or 1000) / 1000
                self._block(line, model if error.code in OF_A_MODEL else EVERYTHING, retry_s, error.code)
        else:
            self._add_submitted(line, custom_id, request, task.id)
            self.backlog.unblock(model)
            self.backlog.unblock(EVERYTHING)

    def _block(self, line: Line, model: str, seconds: float, code: str) -> None:
        self.backlog.block(model, seconds, code, time.monotonic())
        self.backlog.add(line, model)

    def _add_submitted(self, line: Line, custom_id: str, request: Request, task_id: str) -> None:
        self.submitted[line.number] = Submitted(line.number, custom_id, task_id, request.view, request.needs)

    def _task(self, line: Line, task_id: str, caller: Caller, request: Request) -> TaskSpec:
        batch, current = self.batch, self.tools.current
        task_type, payload, fields = request.task_type, request.payload, request.fields
        metadata = b'{"batch":"%b","line":%d}' % (batch.id.encode(), line.number)
        options = Options(wait=False, mode="batch", metadata=metadata, on_v1=True)
        task = build_openai_task(
            current, caller.named(fields), task_type, payload, fields, options, task_id=task_id
        )
        left_ms = max(batch.expires - now_ms(), 1000)
        for one in (task, task.downgrade):
            if one is not None:
                one.wait_ms, one.whole_wait = left_ms, True
        task.keep_ms = left_ms + KEPT_BEHIND_MS
        task.extras["keep_after_read"] = max(AFTER_COLLECTED_MS, 2 * current.settings.lease_ms)
        task.extras.pop("archive", None)
        task.extras.pop("keep_request", None)
        task.again = True
        task.request_id = batch.id
        return task

    # ---- results ----------

    @property
    def _many_outcomes(self) -> bool:
        return len(self._outcomes) >= MAX_KEPT or self._outcome_bytes > KEPT_BYTES

    def _add_failure(self, line: int, custom_id: str, task_id: str, error: ApiError) -> None:
        self._add(failed(line, custom_id, task_id, error))

    def _add(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        self._outcome_bytes += len(outcome.record)

    async def _collect(self) -> int:
        """Take the results of tasks that have ended; return their number."""
        number = running = 0
        lines = [*self.submitted.values()]
        for at in range(0, len(lines), MAX_LOOKED_UP):
            part = lines[at : at + MAX_LOOKED_UP]
            try:
                tops = await self.tools.scheduler.log_tops([line.task_id for line in part])
                for line, top in zip(part, tops, strict=True):
                    if top is None or top.state in TERMINAL:
                        await self._take(line)
                        number += 1
                        await asyncio.sleep(0)
                    elif top.state == State.EXECUTING:
                        running += 1
                    if self._many_outcomes:
                        await self._keep()
            except StoreError:
                return number
        self.running = running
        return number

    async def _keep(self) -> int:
        """Write results, and let Redis forget their tasks; return their number."""
        outcomes, self._outcomes, self._outcome_bytes = self._outcomes, [], 0
        if not outcomes:
            return 0
        store = self.tools.store
        self.batch = await self.retry(lambda: store.keep(self.batch, outcomes, **self.status()))
        self.reported_at = time.monotonic()
        self.cancelled = self.cancelled or self.batch.status == Status.CANCELLING
        reads = (self.tools.scheduler.mark_read(outcome.task_id) for outcome in outcomes)
        await asyncio.gather(*reads, return_exceptions=True)  # otherwise they expire
        return len(outcomes)

    async def _take(self, line: Submitted) -> None:
        """Take the result of a task that has ended, or that the store does not know. Raises StoreError."""
        record = await self.tools.scheduler.position(line.task_id)
        if record is None:
            # the store was emptied, or lost its last second: the line is read and submitted again
            self._taken.discard(line.line)
            self._lines, self._at_end = self.lines(), False
        elif record.state not in TERMINAL:
            return
        elif (outcome := await self._outcome(line, record)) is None:
            await self.tools.scheduler.mark_read(line.task_id)
        else:
            self._add(outcome)
        del self.submitted[line.line]

    async def _outcome(self, line: Submitted, record: Record) -> Outcome | None:
        """Return the outcome of a task that has ended; None if it was not run, because the batch ends. Raises StoreError."""
        info, task_id = record_info(line.task_id, record), line.task_id
        over, results = self._ends or self._over, self.tools.results
        try:
            if record.state is State.COMPLETED:
                made = await results.shown(info, line.view, lambda view: view.body())
                if len(made) <= MAX_OF_A_VALUE:
                    found = line.line, line.custom_id, task_id, made
                    return answered(*found) if len(made) < LARGE else await to_thread(answered, *found)
                sentence = f"The answer is larger than {MAX_OF_A_VALUE} bytes"
                error = gateway_failed("OUTPUT_TOO_LARGE", sentence, task_id)
                return failed(line.line, line.custom_id, task_id, error)
            if over and (record.state is State.CANCELLED or record.fields.get("code") == "QUEUE_TIMEOUT"):
                return None
            failure = (await results.end(info)).error
        except ResultShapeError as misfit:
            error = gateway_failed("JSON_PARSE_FAILED", str(misfit), task_id)
        except Lost:
            error = gateway_failed("STORE_LOST", "The store lost this answer", task_id)
        else:
            took_ms = max(record.number("ended_at") - record.number("enqueued_at"), 0)
            error = task_failed(failure, task_id, took_ms=took_ms)
        return failed(line.line, line.custom_id, task_id, error)

    # ---- the end of its lines ----------

    async def _give_up(self) -> None:
        """Cancel tasks that wait or run, and take the results of those that ended before."""
        self._ends = True
        self.backlog.clear()
        if self.batch.epoch > 1:
            await self._find_submitted()
        while before := len(self.submitted):
            ends = [self.tools.cancel.end(line.task_id, "client") for line in self.submitted.values()]
            await asyncio.gather(*ends, return_exceptions=True)
            await self._collect()
            await self._keep()
            if len(self.submitted) == before:
                await asyncio.sleep(RETRY_S)
        await self._keep()

    async def _find_submitted(self) -> None:
        """Find the lines that a former leader has submitted: they are among the next lines of the file."""
        done = await self.retry(lambda: self.tools.store.kept(self.batch))
        lines, unknown = self.lines(), 0
        most = MAX_LINES + 2 * self.tools.current.settings.batches.window
        while unknown < most and (line := await self.next_line(lines)) is not None:
            if line.number in done or line.number in self.submitted:
                continue
            tops = self.tools.scheduler.log_tops
            pools = range(len(self.tools.current.plans.placement))
            ids = [in_pool(self.task_id(line.number), pool) for pool in pools]
            found = await self.retry(lambda: tops(ids))  # noqa: B023 - it is called here
            task_id = next((one for one, top in zip(ids, found, strict=True) if top is not None), None)
            unknown = 0 if task_id is not None else unknown + 1
            if task_id is not None:
                with contextlib.suppress(InvalidLine, ApiError):
                    parsed = await self.parse(line)
                    self._add_submitted(line, parsed.custom_id, await self._read(parsed), task_id)
            await asyncio.sleep(0)
