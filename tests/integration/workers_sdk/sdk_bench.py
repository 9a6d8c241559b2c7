"""A worker of the SDK, in this process or in one of its own."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from tests.support.prepared import MODULE
from tests.support.processes import process

from fairlane.workers.sdk import Worker

DEADLINE_S = 10.0
REPOSITORY = Path(__file__).parents[3]
COMMAND = ("-m", MODULE, "worker")


class Serving:
    """A running worker; `stop` drains it and waits for its end."""

    def __init__(self, worker: Worker) -> None:
        self.stopping = asyncio.Event()
        self.aborting = asyncio.Event()
        self.task = asyncio.create_task(worker.serve(self.stopping, self.aborting))

    async def stop(self) -> None:
        self.stopping.set()
        await self.ended()

    async def ended(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self.task


@contextlib.asynccontextmanager
async def serving(worker: Worker) -> AsyncIterator[Serving]:
    """Run `worker` for the block; afterwards it is stopped at once if it still runs."""
    running = Serving(worker)
    try:
        yield running
    finally:
        running.task.cancel()
        await asyncio.gather(running.task, return_exceptions=True)


async def run_command(
    *arguments: str, cwd: Path | None = None, stdin: str = "", **environment: str
) -> tuple[int | None, str, str]:
    """`fairlane worker …` to its end: exit code, output, error output."""
    async with process(*COMMAND, *arguments, cwd=cwd, **environment) as child:
        async with asyncio.timeout(DEADLINE_S):
            out, err = await child.communicate(stdin.encode())
        return child.returncode, out.decode(), err.decode()
