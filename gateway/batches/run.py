"""One batch, from its file to the files of its answers, as its leader carries it out.

    validate -> feed and collect, a window of lines at a time -> write the files -> end

A line is submitted as a task with an id that follows from batch and line (`names.line_task`), so that the store takes it once,
whoever submits it again. Redis keeps the end of such a task until SQL has what came of it (`BatchStore.keep`), and then lets it
go. So there is nothing to remember but SQL's rows: a leader who dies at any instant leaves lines with results, which are not
looked at again; lines whose tasks wait, run or have ended, which the next one finds by submitting them again; and lines of which
there is nothing.
"""

import asyncio
import time
from collections.abc import Callable

from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.batches.batch import Batch, Status
from fairlane.gateway.batches.concluding import conclude, settle
from fairlane.gateway.batches.feeding import Feed
from fairlane.gateway.batches.held import Held
from fairlane.gateway.batches.led import Led, Stopped, Tools
from fairlane.gateway.batches.standing import Standing
from fairlane.gateway.batches.stopping import give_up
from fairlane.gateway.batches.validating import validate
from fairlane.gateway.batches.work import Work

LEAST_PAUSE_S, MOST_PAUSE_S = 0.05, 1.0
"""Between two looks at the tasks of a batch: short while they end, long while nothing happens."""


class Run:
    """A batch that is led here. Call it once; it raises Overtaken when somebody else leads it."""

    def __init__(
        self, tools: Tools, batch: Batch, may_act: Callable[[], bool], standing: Standing | None = None
    ) -> None:
        """As `Led` has them."""
        self._led = Led(tools, batch, may_act, standing)
        self._work: Work | None = None

    @property
    def batch(self) -> Batch:
        """Its row, as far as it is known here."""
        return self._led.batch

    @property
    def owner(self) -> Owner:
        """Whose batch it is."""
        return self.batch.owner

    @property
    def standing(self) -> Standing:
        """How it stands still."""
        return self._led.standing

    @property
    def may_leave(self) -> bool:
        """Whether another one may take it up here without beginning something anew."""
        if self._led.cancelled:
            return False
        if self.batch.status is Status.VALIDATING:
            return not self._led.looking
        ends = self._work is not None and self._work.ends
        return self.batch.status is Status.IN_PROGRESS and not ends

    @property
    def lacks_files(self) -> bool:
        """Whether it stands still for files that another one may have, whose storage is not the one here, or reaches it."""
        return self._led.lacks_files

    def cancel(self) -> None:
        """Somebody wants it to end."""
        self._led.cancelled = True

    async def __call__(self) -> None:
        """Carry it out to its end. May be cancelled at any instant."""
        led = self._led
        if not led.batch.began and not await validate(led):
            return
        if not led.batch.outcome:
            await self._all_lines()
        await conclude(led)

    async def _all_lines(self) -> None:
        led = self._led
        lines, held = led.lines_from(led.batch.line, led.batch.offset), Held()
        done = await led.again(lambda: led.tools.store.kept(led.batch))
        work = self._work = Work(led, lines, held, done)
        try:
            await _work_off(led, held, work, Feed(led, lines, held, work))
        except Stopped as stopped:
            await give_up(led, work)
            await settle(led, stopped.status, stopped.problem)
        else:
            await settle(led, Status.COMPLETED, None)


async def _work_off(led: Led, held: Held, work: Work, feed: Feed) -> None:
    """Run all lines. Raises Stopped."""
    pause = LEAST_PAUSE_S
    while True:
        async with led.tools.working.of(led.opener):
            began = time.monotonic()
            await feed()
            collected = await work.collect()
            kept = await work.keep()
            if not (work or held) and await feed.at_end():
                return
            if collected or work:
                led.moves(work.waiting, work.running, held.whys)
            else:
                led.still(held.whys)
            await led.tell()
            took = time.monotonic() - began
        pause = LEAST_PAUSE_S if collected or kept else min(pause * 1.5, MOST_PAUSE_S)
        # at most half of the time is a batch's
        await asyncio.sleep(max(pause, min(took, MOST_PAUSE_S)))
