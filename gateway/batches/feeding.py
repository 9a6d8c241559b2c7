"""Submits the lines of a batch, a window of them at a time."""

import time

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.batches.batch import Status
from fairlane.gateway.batches.held import ANYTHING, HELD_BYTES, MONEY, MOST_HELD, For, Held
from fairlane.gateway.batches.led import AGAIN_S, AT_ONCE, Led, NotNow, Stopped
from fairlane.gateway.batches.lines import Problem, Unfit, model_in
from fairlane.gateway.batches.outcomes import refused
from fairlane.gateway.batches.reading import FileLines
from fairlane.gateway.batches.splitting import Line, LineTooLong
from fairlane.gateway.batches.surfaces import Request
from fairlane.gateway.batches.work import Work, in_work
from fairlane.gateway.calls.intake import Options
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.errors import ApiError, InsufficientQuota, NoWorker
from fairlane.gateway.tasks.making import make
from fairlane.queues.clock import now_ms
from fairlane.queues.errors import StoreError
from fairlane.queues.loops import all_of
from fairlane.queues.tasks import TaskSpec

NEEDED_BYTES = 16 << 20
"""Of what answers need of the requests that wait or run: then no further ones are submitted."""
AFTER_COLLECTED_MS = 30_000
"""So long Redis still knows the task of a line of which SQL has the answer, and for two leases. Longer than anybody believes that
he leads who does not, so a line that he submits late is known."""
KEPT_BEHIND_MS = 24 * 3600 * 1000
"""So long behind the end of the batch's window Redis keeps what nobody has collected, as no gateway runs."""
MONEY_S = 10.0
"""After which is tried again what could not be paid: more may be granted at any time."""
UNPAID_IN_A_ROW = 8
"""Lines that nobody can pay, and none between them that somebody can: then nothing more is tried for a while. Behind it as many
further ones are tried, as those behind a row of dear ones may cost less."""
OF_A_MODEL = frozenset({"QUEUE_FULL", "USER_QUEUE_FULL", "WAIT_TOO_LONG", "MODEL_UNAVAILABLE", "NO_WORKER"})
"""Refusals that say nothing of other models' lines."""


class Feed:
    """Of one batch. What it submits is in `work` then; what cannot be submitted now is in `held`."""

    def __init__(self, led: Led, lines: FileLines, held: Held, work: Work) -> None:
        self._led = led
        self._lines = lines
        self._held = held
        self._work = work
        self._unpaid = 0
        """Lines that could not be paid since one was submitted, or nothing was tried for a while."""

    async def __call__(self) -> None:
        """Submit lines while there is room in the window; where many are refused, until there is much to be written of them.
        Raises Stopped."""
        led, work = self._led, self._work
        while not work.much_came:
            led.check()
            caller = led.caller()
            room = led.window - len(work)
            if work.needs > NEEDED_BYTES:
                room = 0
            lines = await self._ready(min(room, AT_ONCE)) if room > 0 and led.may_act() else []
            if not lines:
                return
            await all_of(self._submit(of, line, caller) for of, line in lines)
            await led.pace.step()

    async def at_end(self) -> bool:
        """Whether all lines of the file have been read: the last ones may be blank. Raises Stopped."""
        try:
            line = await self._next()
        except NotNow as not_now:
            self._rest(ANYTHING, AGAIN_S, not_now.code)
            return False
        if line is None:
            return True
        self._held.add(line, first=True)
        return False

    async def _ready(self, most: int) -> list[tuple[For, Line]]:
        """Lines that may be submitted now, at most so many, with what they waited for."""
        held, now = self._held, time.monotonic()
        if held.rests(ANYTHING, now):
            return []
        most = 1 if held.doubtful else most
        found = held.take(most, HELD_BYTES, now)
        size = sum(len(line.text) for _, line in found)
        while len(found) < most and len(held) < MOST_HELD and size + held.bytes <= HELD_BYTES:
            try:
                following = await self._next()
            except NotNow as not_now:
                self._rest(ANYTHING, AGAIN_S, not_now.code)
                break
            except Stopped:
                for of, line in found:
                    held.add(line, of)
                raise
            if following is None:
                break
            found.append((ANYTHING, following))
            size += len(following.text)
        return found

    async def _next(self) -> Line | None:
        """The next line of the file that has come to nothing yet. Raises Stopped; and NotNow: what runs is collected meanwhile,
        and other batches have their turns."""
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
            if line is None or line.number not in self._work.done:
                self._held.goes_on(ANYTHING, time.monotonic())
                return line
            await self._led.pace.step()

    async def _submit(self, of: For, line: Line, caller: Caller) -> None:
        """Submit a line that waited for something: it is in work then, or held, or has come to something."""
        led = self._led
        task_id, custom_id, model = led.task_id(line.number), "", ""
        try:
            asked = await led.asked_in(line)
            custom_id = asked.custom_id
            request = await led.read(asked)
            model = model_in(request.fields)
            if self._held.rests(For(model), time.monotonic()):
                self._held.add(line, For(model))
                return
            task = self._task(line, task_id, caller, request)
            await led.tools.submit(task)
        except StoreError:
            self._hold(line, ANYTHING, AGAIN_S, "STORE_UNAVAILABLE")
        except DatabaseUnavailable:
            self._hold(line, ANYTHING, AGAIN_S, "DATABASE_UNAVAILABLE")
        except Unfit as unfit:  # it was looked at before: what it was read as has changed
            error = ApiError(400, unfit.code, unfit.message)
            self._work.came_to(refused(line.number, custom_id, task_id, error), task_id)
        except ApiError as error:
            if not _comes_again(error):
                self._work.came_to(refused(line.number, custom_id, task_id, error), task_id)
                return
            if isinstance(error, InsufficientQuota):
                self._hold_unpaid(line, error.code)
                return
            of = For(model) if error.code in OF_A_MODEL else ANYTHING
            self._hold(line, of, (error.retry_after_ms or 1000) / 1000, error.code)
        else:
            self._work.began(in_work(line, custom_id, task_id, request))
            self._unpaid = 0
            for one in (ANYTHING, For(model), of):
                self._held.goes_on(one, time.monotonic())

    def _task(self, line: Line, task_id: str, caller: Caller, request: Request) -> TaskSpec:
        batch, current, now = self._led.batch, self._led.tools.current, now_ms()
        task_type, payload, fields = request.task_type, request.payload, request.fields
        caller = caller.named(fields)
        metadata = b'{"batch":"%b","line":%d}' % (batch.id.encode(), line.number)
        options = Options(wait=False, mode="batch", metadata=metadata, on_v1=True)
        task = make(*(current, caller, task_type, payload, fields, options), task_id=task_id)
        left_ms = max(batch.expires - now, 1000)
        for one in (task, task.otherwise):
            if one is not None:
                one.wait_ms, one.whole_wait = left_ms, True
        task.keep_ms = left_ms + KEPT_BEHIND_MS
        task.after_read_ms = max(AFTER_COLLECTED_MS, 2 * current.settings.lease_ms)
        task.archive_ms, task.archive_request = 0, False
        task.again = True
        task.request_id = batch.id
        return task

    def _hold_unpaid(self, line: Line, code: str) -> None:
        self._hold(line, MONEY, MONEY_S, code)
        self._unpaid += 1
        if self._unpaid >= UNPAID_IN_A_ROW:
            self._unpaid = 0
            self._rest(ANYTHING, MONEY_S, code)

    def _hold(self, line: Line, of: For, seconds: float, code: str) -> None:
        self._rest(of, seconds, code)
        self._held.add(line, of)

    def _rest(self, of: For, seconds: float, code: str) -> None:
        self._held.rest(of, seconds, code, time.monotonic())


def _comes_again(error: ApiError) -> bool:
    """Whether a refusal only says that it is to be tried later."""
    return error.status in (429, 503) and not (isinstance(error, NoWorker) and error.unknown)
