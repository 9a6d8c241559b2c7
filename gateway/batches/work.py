"""The lines of a batch that wait or run as tasks, and what has come of others and is not written yet."""

import asyncio
from asyncio import to_thread
from collections.abc import Callable
from typing import NamedTuple

from fairlane.gateway.batches.batch import Status
from fairlane.gateway.batches.held import HELD_BYTES, Held
from fairlane.gateway.batches.led import AT_ONCE, Led
from fairlane.gateway.batches.outcomes import Outcome, answered, refused
from fairlane.gateway.batches.reading import FileLines
from fairlane.gateway.batches.splitting import Line, LineTooLong
from fairlane.gateway.batches.surfaces import Request, View
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.database.tables import MOST_OF_A_VALUE
from fairlane.gateway.errors import ApiError, bad_request, gateway_failed, task_failed
from fairlane.gateway.tasks.poll import record_info
from fairlane.queues.errors import StoreError
from fairlane.queues.tasks import TERMINAL, Record, State
from fairlane.streaming.hub import Lost
from fairlane.streaming.views.result import MisfitError
from fairlane.streaming.views.task import TaskInfo

KEPT_BYTES, KEPT_AT_ONCE = 4 << 20, 500
"""Of what came of lines, and of how many: so much is written together, about, before anything else is done."""
LOOKED_FOR_AT_ONCE = 500
LARGE = 1 << 20
"""From so many bytes on an answer is looked at in a thread: others run meanwhile."""


class InWork(NamedTuple):
    """A line that has been submitted."""

    line: int
    offset: int
    custom_id: str
    task_id: str
    view: Callable[[TaskInfo], View]
    needs: int
    """Bytes of the request that `view` holds."""


def in_work(line: Line, custom_id: str, task_id: str, request: Request) -> InWork:
    """A line whose request was submitted."""
    return InWork(line.number, line.offset, custom_id, task_id, request.view, request.needs)


class Work:
    """Of one batch. Of each line that has begun there is one outcome, or none if the batch ends before it was carried out."""

    def __init__(self, led: Led, lines: FileLines, held: Held, done: set[int]) -> None:
        """`lines`: those that are not read yet. `done`: those behind the batch's first open line that have come to something, as
        far as it was not seen here."""
        self._led = led
        self._lines = lines
        self._held = held
        self.done = done
        self.ends = False
        """Nothing more is submitted, and what waits or runs is ended."""
        self._lines_in_work: dict[int, InWork] = {}
        self._outcomes: list[tuple[Outcome, str]] = []
        """What came of lines and is not written yet, each with its task."""
        self._outcome_bytes = 0
        self.running = 0
        """Lines whose tasks ran at the last look; others wait."""
        self._unrun: dict[int, int] = {}
        """Lines that will not be run, and where they begin."""

    def __len__(self) -> int:
        return len(self._lines_in_work)

    def __contains__(self, line: int) -> bool:
        return line in self._lines_in_work

    @property
    def waiting(self) -> int:
        """Lines whose tasks wait, likewise. (Where the store did not answer a look, some that ran then have ended.)"""
        return max(len(self) - self.running, 0)

    @property
    def needs(self) -> int:
        """Bytes that answers need of requests."""
        return sum(line.needs for line in self._lines_in_work.values())

    @property
    def task_ids(self) -> list[str]:
        """Tasks of lines that wait or run."""
        return [line.task_id for line in self._lines_in_work.values()]

    @property
    def much_came(self) -> bool:
        """Whether what came of lines is to be written before there is more of it."""
        return len(self._outcomes) >= KEPT_AT_ONCE or self._outcome_bytes > KEPT_BYTES

    def began(self, line: InWork) -> None:
        """A line has been submitted."""
        self._lines_in_work[line.line] = line

    def came_to(self, outcome: Outcome, task_id: str) -> None:
        """A line has come to something."""
        self._outcomes.append((outcome, task_id))
        self._outcome_bytes += len(outcome.record)

    def end(self) -> None:
        """Begin no line any more."""
        self.ends = True
        self._unrun |= self._held.clear()

    async def collect(self) -> int:
        """Take what came of the lines whose tasks have ended; of how many."""
        number = running = 0
        for at in range(0, len(lines := [*self._lines_in_work.values()]), LOOKED_FOR_AT_ONCE):
            part = lines[at : at + LOOKED_FOR_AT_ONCE]
            try:
                tops = await self._led.tools.scheduler.tops([line.task_id for line in part])
            except StoreError:
                return number
            for line, top in zip(part, tops, strict=True):
                if top is None or top.state in TERMINAL:
                    if not await self._take(line):
                        return number
                    number += 1
                    await self._led.pace.step()
                elif top.state == State.EXECUTING:
                    running += 1
                if self.much_came:
                    await self.keep()
        self.running = running
        return number

    async def keep(self) -> int:
        """Write what came of lines, and let Redis forget it; of how many."""
        led = self._led
        taken, self._outcomes, self._outcome_bytes = self._outcomes, [], 0
        if not taken:
            return 0
        outcomes = [outcome for outcome, _ in taken]
        place = self._open_from()
        led.batch = await led.again(lambda: led.tools.store.keep(led.batch, outcomes, *place, **led.stands))
        led.cancelled = led.cancelled or led.batch.status is Status.CANCELLING
        ids = [task_id for _, task_id in taken]
        for at in range(0, len(ids), AT_ONCE):
            reads = (led.tools.scheduler.read_end(task_id) for task_id in ids[at : at + AT_ONCE])
            await asyncio.gather(*reads, return_exceptions=True)  # else they go at their time
        return len(taken)

    def _open_from(self) -> tuple[int, int]:
        """The first line that has come to nothing yet, and where it begins."""
        places = [(line.line, line.offset) for line in self._lines_in_work.values()]
        return min([*places, *self._held.places, *self._unrun.items(), self._lines.place])

    async def _take(self, line: InWork) -> bool:
        """Take what came of a line whose task has ended, or is not known any more. False: the store does not answer."""
        try:
            record = await self._led.tools.scheduler.position(line.task_id)
            if record is None:  # the store was emptied, or lost its last second
                await self._read_again(line)
                return True
            if record.state not in TERMINAL:
                return True
            outcome = await self._outcome(line, record)
            if outcome is None:
                await self._led.tools.scheduler.read_end(line.task_id)
        except StoreError:
            return False
        del self._lines_in_work[line.line]
        if outcome is None:
            self._unrun[line.line] = line.offset
        else:
            self.came_to(outcome, line.task_id)
        return True

    async def _outcome(self, line: InWork, record: Record) -> Outcome | None:
        """What came of a line whose task has ended; None: it was not carried out, as the batch ends. Raises StoreError."""
        info, task_id = record_info(line.task_id, record), line.task_id
        over, results = self.ends or self._led.over, self._led.tools.results
        try:
            if record.state is State.COMPLETED:
                made = await results.shown(info, line.view, _show)
                if len(made.json) <= MOST_OF_A_VALUE:
                    said = line.line, line.custom_id, task_id, made.json
                    return answered(*said) if len(made.json) < LARGE else await to_thread(answered, *said)
                sentence = f"The answer is larger than {MOST_OF_A_VALUE} bytes"
                error = gateway_failed("OUTPUT_TOO_LARGE", sentence, task_id)
                return refused(line.line, line.custom_id, task_id, error)
            if over and (record.state is State.CANCELLED or record.fields.get("co") == "QUEUE_TIMEOUT"):
                return None
            failure = (await results.end(info)).error
        except MisfitError as misfit:
            error = gateway_failed("JSON_PARSE_FAILED", str(misfit), task_id)
        except Lost:
            error = gateway_failed("STORE_LOST", "The store lost this answer", task_id)
        else:
            took_ms = max(record.number("ed") - record.number("en"), 0)
            error = task_failed(failure, task_id, took_ms=took_ms)
        return refused(line.line, line.custom_id, task_id, error)

    async def _read_again(self, line: InWork) -> None:
        """Nothing is known of a line's task: read it again from the file, to be submitted. Where the file has it no more, it has
        failed. A store that was emptied has lost all of them: no more are read at a time than may be held."""
        if self._held.bytes > HELD_BYTES and not self.ends:
            return
        del self._lines_in_work[line.line]
        if self.ends:
            self._unrun[line.line] = line.offset
            return
        lines, found = self._led.lines_from(line.line, line.offset), None
        try:
            found = await lines.next()
        except DatabaseUnavailable:
            pass
        except (LineTooLong, ApiError) as gone:
            error = gone if isinstance(gone, ApiError) else bad_request(str(gone))
            if error.status < 500:
                self.came_to(refused(line.line, line.custom_id, line.task_id, error), line.task_id)
                return
        if found is None:  # tried again with the next look
            self._lines_in_work[line.line] = line
            return
        self._held.add(found)


def _show(view: View) -> bytes:
    return view.body()
