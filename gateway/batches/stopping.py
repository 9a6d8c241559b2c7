"""Ends early what a batch has under way: its tasks are cancelled, and what came of those that ended before is taken."""

import asyncio
import contextlib
from functools import partial

from fairlane.gateway.batches.held import MOST_HELD
from fairlane.gateway.batches.led import AGAIN_S, AT_ONCE, Led
from fairlane.gateway.batches.lines import Unfit
from fairlane.gateway.batches.reading import FileLines
from fairlane.gateway.batches.splitting import Line, LineTooLong
from fairlane.gateway.batches.work import LOOKED_FOR_AT_ONCE, Work, in_work
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.errors import ApiError
from fairlane.queues.errors import StoreError
from fairlane.queues.tasks import TERMINAL, Top

LOOKED_FOR_BYTES = 4 << 20
"""Of lines that are held in memory while it is found out which of them are in work, about."""


async def give_up(led: Led, work: Work) -> None:
    """End the tasks of lines that wait or run, and take what has come of those that ended before."""
    work.end()
    if led.resumed:
        await _end_unseen(led, work)
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


async def line_or_none(led: Led, lines: FileLines) -> Line | None:
    """The next line, waited for; None behind the last one that can be read."""
    while True:
        try:
            line = await lines.next()
        except LineTooLong:
            return None
        except ApiError as error:
            if error.status < 500:
                return None
            code = error.code
        except DatabaseUnavailable:
            code = "DATABASE_UNAVAILABLE"
        else:
            await led.goes_on()
            return line
        led.still({code: ()})
        await led.tell()
        await asyncio.sleep(AGAIN_S)


async def _end_unseen(led: Led, work: Work) -> None:
    """End the tasks that a leader before has submitted, by their numbers: the file, which may be away, is not asked."""
    number, unknown = led.batch.line, 0
    while unknown < _farthest(led):
        part = [line for line in range(number, number + LOOKED_FOR_AT_ONCE) if line not in work.done]
        number += LOOKED_FOR_AT_ONCE
        ids = [led.task_id(line) for line in part]
        for task_id, top in zip(ids, await _tops(led, ids), strict=True):
            unknown = 0 if top is not None else unknown + 1
            if top is not None and top.state not in TERMINAL:
                with contextlib.suppress(StoreError):  # tried again when its line has been read
                    await led.tools.cancel.end(task_id, "client")


async def _find_in_work(led: Led, work: Work) -> None:
    """Find the lines that a leader before has submitted: they are among the next ones of the file."""
    lines, unknown = led.lines_from(led.batch.line, led.batch.offset), 0
    while unknown < _farthest(led):
        part, size = list[Line](), 0
        while len(part) < LOOKED_FOR_AT_ONCE and size < LOOKED_FOR_BYTES:
            line = await line_or_none(led, lines)
            if line is None:
                break
            if line.number not in work.done and line.number not in work:
                part.append(line)
                size += len(line.text)
            await led.pace.step()
        if not part:
            return
        tops = await _tops(led, [led.task_id(line.number) for line in part])
        for line, top in zip(part, tops, strict=True):
            unknown = 0 if top is not None else unknown + 1
            if top is not None:
                await _know(led, work, line)


def _farthest(led: Led) -> int:
    """Between two lines in work are no more than those that were held, and those that were about to be submitted."""
    return MOST_HELD + 2 * led.window


async def _tops(led: Led, ids: list[str]) -> list[Top | None]:
    return await led.until_answered(lambda: led.tools.scheduler.tops(ids))


async def _know(led: Led, work: Work, line: Line) -> None:
    """A line is in work, as was found."""
    try:
        asked = await led.asked_in(line)
        read = partial(led.read, asked)
        request = await led.until_answered(read)
    except (Unfit, ApiError):
        return
    work.began(in_work(line, asked.custom_id, led.task_id(line.number), request))
