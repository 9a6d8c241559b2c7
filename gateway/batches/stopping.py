"""Ends early what a batch has under way: its tasks are cancelled, and what came of those that ended before is taken."""

import asyncio
from functools import partial

from fairlane.gateway.batches.led import AGAIN_S, AT_ONCE, Led
from fairlane.gateway.batches.lines import Unfit
from fairlane.gateway.batches.reading import FileLines
from fairlane.gateway.batches.splitting import Line, LineTooLong
from fairlane.gateway.batches.work import LOOKED_FOR_AT_ONCE, Work, in_work
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.errors import ApiError


async def give_up(led: Led, work: Work) -> None:
    """End the tasks of lines that wait or run, and take what has come of those that ended before."""
    work.end()
    if led.resumed:
        await _find_in_work(led, work)
    while before := len(work):
        ids = work.task_ids
        for at in range(0, len(ids), AT_ONCE):
            ends = (led.tools.cancel.end(task_id, "client") for task_id in ids[at : at + AT_ONCE])
            await asyncio.gather(*ends, return_exceptions=True)
            await led.pace.step()
        await work.collect()
        await work.keep()
        if len(work) == before:
            await asyncio.sleep(AGAIN_S)


async def line_or_none(lines: FileLines) -> Line | None:
    """The next line, waited for; None behind the last one that can be read."""
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


async def _find_in_work(led: Led, work: Work) -> None:
    """Find the tasks that a leader before has submitted: they are among the next lines of the file."""
    lines = led.lines_from(led.batch.line, led.batch.offset)
    while True:
        part, known = list[Line](), False
        while len(part) < max(LOOKED_FOR_AT_ONCE, 2 * led.window):
            line = await line_or_none(lines)
            if line is None:
                break
            if line.number not in work.done and line.number not in work:
                part.append(line)
            await led.pace.step()
        ids = [led.task_id(line.number) for line in part]
        tops = await led.until_answered(lambda ids=ids: led.tools.scheduler.tops(ids))  # type: ignore[misc]
        for line, top in zip(part, tops, strict=True):
            if top is not None:
                known = True
                await _know(led, work, line)
        if not known:
            return


async def _know(led: Led, work: Work, line: Line) -> None:
    """A line is in work, as was found."""
    try:
        asked = await led.asked_in(line)
        read = partial(led.read, asked, led.task_id(line.number))
        request = await led.until_answered(read)
    except (Unfit, ApiError):
        return
    work.began(in_work(line, asked.custom_id, led.task_id(line.number), request))
