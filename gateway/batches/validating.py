"""The first part of a batch: its whole file is looked at before anything of it is run."""

import asyncio

import structlog

from fairlane.gateway.batches.batch import Status
from fairlane.gateway.batches.concluding import end
from fairlane.gateway.batches.led import AGAIN_S, Led, NotNow, Stopped
from fairlane.gateway.batches.lines import Findings, Problem
from fairlane.gateway.batches.reading import look_at
from fairlane.gateway.batches.store import problems_json
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.errors import ApiError
from fairlane.queues.clock import now_ms

log = structlog.get_logger("fairlane.gateway")


async def validate(led: Led) -> bool:
    """Look at the whole file. Whether the batch goes on: else it has ended."""
    try:
        findings = await _findings(led)
    except Stopped as stopped:
        await end(led, stopped.status)
        return False
    if findings.problems:
        await end(led, Status.FAILED, errors=problems_json(findings.problems))
        return False
    begun = {"total": findings.total, "model": findings.model}
    led.batch = await led.again(lambda: led.tools.store.begin(led.batch, now_ms(), **begun))
    led.cancelled = led.batch.status is Status.CANCELLING
    led.moves()
    log.info("batch begun", **led.facts, endpoint=led.batch.endpoint, lines=findings.total)
    return True


async def _findings(led: Led) -> Findings:
    """What there is in the file. Raises Stopped: the batch is to end before that is known."""
    while True:
        if led.cancelled:
            raise Stopped(Status.CANCELLED)
        try:
            async with led.tools.looking.of(led.opener):  # given back while it cannot be read
                led.looking = True
                return await _look_at(led)
        except NotNow as not_now:
            led.still({not_now.code: ()})
        finally:
            led.looking = False
        await led.tell()
        led.check()
        await asyncio.sleep(AGAIN_S)


async def _look_at(led: Led) -> Findings:
    """The same, at once. Raises NotNow."""
    most_lines = led.tools.current.settings.batches.max_lines
    lines = led.lines_from(led.batch.line, led.batch.offset)
    try:
        return await look_at(lines, led.batch.endpoint, most_lines, led.tools.bodies, led.opener)
    except ApiError as error:
        if error.status >= 500:
            raise NotNow(error.code) from error
        findings = Findings(most_lines)
        findings.wrong(Problem("file_not_found", error.message, None, "input_file_id"))
        return findings
    except DatabaseUnavailable as error:
        raise NotNow("DATABASE_UNAVAILABLE") from error
