"""The last part of a batch: its files are written, and it ends."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import structlog

from fairlane.gateway.batches.batch import Status
from fairlane.gateway.batches.led import AGAIN_S, Led
from fairlane.gateway.batches.lines import Problem, Unfit
from fairlane.gateway.batches.names import file_of
from fairlane.gateway.batches.outcomes import NotRun, not_run
from fairlane.gateway.batches.reading import Pace
from fairlane.gateway.batches.stopping import line_or_none
from fairlane.gateway.batches.store import NOTHING_UNDER_WAY, problems_json
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.errors import ApiError
from fairlane.queues.clock import now_ms

log = structlog.get_logger("fairlane.gateway")

PURPOSE = "batch_output"
MOST_BYTES = 1 << 50
"""Of a file of answers: they are there, and have been paid for."""
MOST_REST_S = 60.0
DELETED_EPOCHS, DELETED_TRIES = 20, 2
"""Of how many leaders before files are looked for that nobody was told of."""
WRITTEN_AT_ONCE = 500
"""Lines that were not carried out, at a time."""
FORGET_S = 0.05

_WHY_NOT = {Status.EXPIRED: NotRun.EXPIRED, Status.CANCELLED: NotRun.CANCELLED, Status.FAILED: NotRun.FAILED}


async def settle(led: Led, status: Status, problem: Problem | None) -> None:
    """There is nothing more to run: write down how the batch will end."""
    values: dict[str, Any] = {"outcome": status.value, "finalizing": now_ms(), **NOTHING_UNDER_WAY}
    if not led.cancelled:
        values["status"] = Status.FINALIZING
    if problem is not None:
        values["errors"] = problems_json([problem])
    led.batch = await led.again(lambda: led.tools.store.mark(led.batch, **values))
    led.resumed = False


async def conclude(led: Led) -> None:
    """Write the files of a batch that is settled, and end it."""
    batch, store = led.batch, led.tools.store
    files = _Files(led)
    if led.resumed:
        await files.delete_earlier()
    output = error = ""
    if batch.completed:
        output = await files.write("output", lambda: store.records(batch.id, failed=False))
    if batch.failed or batch.completed < batch.total:
        error = await files.write("error", lambda: _errors(led))
    await end(led, Status(batch.outcome), output_file=output, error_file=error)
    while await led.again(lambda: store.forget_results(batch.id)):
        await asyncio.sleep(FORGET_S)


async def end(led: Led, status: Status, **values: Any) -> None:
    """Nothing is to be done for it any more."""
    led.batch = await led.again(lambda: led.tools.store.end(led.batch, status, now_ms(), **values))
    batch = led.batch
    not_run = batch.total - batch.completed - batch.failed
    led.tools.metrics.batch_ended(status.value, batch.completed, batch.failed, not_run)
    counts = {"lines": batch.total, "completed": batch.completed, "failed": batch.failed}
    took_s = (batch.ended - batch.created) // 1000
    problems = [problem.message for problem in batch.problems[:1]]
    why = {"why": problems[0]} if problems else {}
    log.info("batch ended", **led.facts, status=status.value, took_s=took_s, **counts, **why)


async def _errors(led: Led) -> AsyncIterator[bytes]:
    """The lines of the error file: what failed, and what was not carried out."""
    batch, status = led.batch, Status(led.batch.outcome)
    async for records in led.tools.store.records(batch.id, failed=True):
        yield records
    if status is Status.COMPLETED:
        return
    done = await led.again(lambda: led.tools.store.kept(batch))
    lines, pace, parts = led.lines_from(batch.line, batch.offset), Pace(), list[bytes]()
    while (line := await line_or_none(led, lines)) is not None:
        if line.number not in done:
            try:
                asked = await led.asked_in(line)
            except Unfit:
                continue
            parts.append(not_run(asked.custom_id, led.task_id(line.number), _WHY_NOT[status]))
        await pace.step()
        if len(parts) >= WRITTEN_AT_ONCE:
            yield b"".join(parts)
            parts = []
    if parts:
        yield b"".join(parts)


class _Files:
    """What a batch writes. The names of its files follow from its leader, so nothing is left of one who died."""

    def __init__(self, led: Led) -> None:
        self._led = led

    async def write(self, kind: str, chunks: Callable[[], AsyncIterator[bytes]]) -> str:
        """A file of these bytes; its id. Tried until the storage takes it: there is nothing else to be done with the answers. '':
        their user was forgotten."""
        batch = self._led.batch
        name, expires_s = f"{batch.id}_{kind}.jsonl", batch.output_ttl_s or None
        for number in itertools.count():
            file_id = file_of(batch.id, batch.created, kind, batch.epoch, number)
            if await self._led.again(lambda: self._led.tools.store.was_forgotten(batch)):
                return ""
            try:
                await self._led.tools.files.create(
                    *(batch.owner, name, PURPOSE, chunks()),
                    expires_s=expires_s,
                    most=MOST_BYTES,
                    file_id=file_id,
                )
            except (ApiError, DatabaseUnavailable) as error:
                facts = {**self._led.facts, "file": kind, "why": str(error)}
                log.warning("a file of a batch is not stored yet", **facts)
                code = error.code if isinstance(error, ApiError) else "DATABASE_UNAVAILABLE"
                self._led.still({code: ()})
                await self._led.tell()
                await asyncio.sleep(min(AGAIN_S * 2 ** min(number, 10), MOST_REST_S))
                if not await self._is_there(file_id):
                    continue
            await self._led.goes_on()
            return file_id
        raise AssertionError("counts without end")

    async def delete_earlier(self) -> None:
        """Delete what leaders before have written, who died before it was told."""
        batch, files = self._led.batch, self._led.tools.files
        for epoch in range(max(batch.epoch - DELETED_EPOCHS, 1), batch.epoch):
            for kind, number in itertools.product(("output", "error"), range(DELETED_TRIES)):
                file_id = file_of(batch.id, batch.created, kind, epoch, number)
                if await self._is_there(file_id):
                    with contextlib.suppress(ApiError, DatabaseUnavailable):
                        await files.delete(batch.owner, file_id)

    async def _is_there(self, file_id: str) -> bool:
        while True:
            try:
                await self._led.tools.files.row(self._led.batch.owner, file_id)
            except ApiError as error:
                if error.status == 404:
                    return False
            except DatabaseUnavailable:
                pass
            else:
                return True
            await asyncio.sleep(AGAIN_S)
