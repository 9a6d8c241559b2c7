"""The last part of a batch: its files are written, and it ends."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import structlog

from fairlane.gateway.batches.context import BatchContext
from fairlane.gateway.batches.lines import InvalidLine
from fairlane.gateway.batches.models import NotRun, Status, not_run, output_file
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.errors import ApiError
from fairlane.queues.clock import now_ms
from fairlane.queues.metrics import BATCH_LINES, BATCHES_ENDED

log = structlog.get_logger("fairlane.gateway")

PURPOSE = "batch_output"
MAX_FILE_BYTES = 1 << 50
"""Answers are never rejected: they exist, and have been paid for."""
MAX_EARLIER_EPOCHS = 20
PAGE = 500
DELETE_PAUSE_S = 0.05

_REASONS = {Status.EXPIRED: NotRun.EXPIRED, Status.CANCELLED: NotRun.CANCELLED, Status.FAILED: NotRun.FAILED}


async def finalize(context: BatchContext) -> None:
    """Write the files of a batch whose lines all have ended, and end it."""
    batch, store = context.batch, context.tools.store
    await _delete_earlier(context)
    output = error = ""
    if batch.completed:
        output = await _write(context, "output", lambda: store.records(batch.id, failed=False))
    if batch.failed or batch.completed < batch.total:
        error = await _write(context, "error", lambda: _errors(context))
    await end(context, Status(batch.outcome), output_file=output, error_file=error)
    while await context.retry(lambda: store.delete_results(batch.id)):
        await asyncio.sleep(DELETE_PAUSE_S)


async def end(context: BatchContext, status: Status, **values: Any) -> None:
    """End the batch: nothing is left to do."""
    context.batch = await context.retry(
        lambda: context.tools.store.end(context.batch, status, now_ms(), **values)
    )
    batch = context.batch
    unrun = batch.total - batch.completed - batch.failed
    metrics = context.tools.metrics
    metrics.count(BATCHES_ENDED, status.value)
    for outcome, number in (("completed", batch.completed), ("failed", batch.failed), ("not_run", unrun)):
        metrics.count(BATCH_LINES, outcome, number=number)
    log.info(
        "batch ended",
        **context.facts,
        status=status.value,
        took_s=(batch.ended - batch.created) // 1000,
        lines=batch.total,
        completed=batch.completed,
        failed=batch.failed,
        **({"reason": batch.problems[0].message} if batch.problems else {}),
    )


async def _errors(context: BatchContext) -> AsyncIterator[bytes]:
    """Yield the lines of the error file: failed ones, then those that were not run."""
    batch, status = context.batch, Status(context.batch.outcome)
    async for records in context.tools.store.records(batch.id, failed=True):
        yield records
    if status is Status.COMPLETED:
        return
    done = await context.retry(lambda: context.tools.store.kept(batch))
    lines, parts = context.lines(), list[bytes]()
    while (line := await context.next_line(lines)) is not None:
        if line.number not in done:
            with contextlib.suppress(InvalidLine):
                parsed = await context.parse(line)
                parts.append(not_run(parsed.custom_id, context.task_id(line.number), _REASONS[status]))
        await asyncio.sleep(0)
        if len(parts) >= PAGE:
            yield b"".join(parts)
            parts = []
    yield b"".join(parts)


async def _write(context: BatchContext, kind: str, chunks: Callable[[], AsyncIterator[bytes]]) -> str:
    """Write a file and return its id; '' if its user was erased. Retried until the storage accepts it."""
    batch, tools = context.batch, context.tools
    file_id = output_file(batch.id, batch.created, kind, batch.epoch)
    while not await context.retry(lambda: tools.store.was_erased(batch)):
        with contextlib.suppress(ApiError, DatabaseUnavailable):
            return (await tools.files.row(batch.owner, file_id)).id  # a former try succeeded after all
        try:
            row = await tools.files.create(
                *(batch.owner, f"{batch.id}_{kind}.jsonl", PURPOSE, chunks()),
                expires_s=batch.output_ttl_s or None,
                most=MAX_FILE_BYTES,
                file_id=file_id,
            )
        except (ApiError, DatabaseUnavailable) as error:
            log.warning("a file of a batch is not stored yet", **context.facts, file=kind, reason=str(error))
            await context.report_blocked(error)
        else:
            return row.id
    return ""


async def _delete_earlier(context: BatchContext) -> None:
    """Delete files of former leaders that died before they ended the batch."""
    batch, files = context.batch, context.tools.files
    for epoch in range(max(batch.epoch - MAX_EARLIER_EPOCHS, 1), batch.epoch):
        for kind in ("output", "error"):
            file_id = output_file(batch.id, batch.created, kind, epoch)
            with contextlib.suppress(ApiError, DatabaseUnavailable):
                await files.delete(batch.owner, file_id)
