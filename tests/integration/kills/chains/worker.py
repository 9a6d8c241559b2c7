"""A worker of the chain's stages, as a process of its own that can be killed.

`python -m tests.integration.kills.chains.worker URL TOKEN`.
"""

import asyncio
import random
import sys
from collections.abc import AsyncIterator

from tests.integration.kills.chains.play import BROKEN, seen, summed_up

from fairlane.workers.sdk import Context, Task, TaskError, Worker

SLOTS = 8
LONGEST_S = 0.08
PIECES = 6


def asked(task: Task) -> str:
    """What the stage's only message says."""
    text: str = task.payload["messages"][0]["content"]
    return text


def make_worker(gateway: str, token: str) -> Worker:
    """At this gateway."""
    worker = Worker("plays", gateway=gateway, token=token, slots=SLOTS)
    dice = random.Random()

    async def take_a_while() -> None:
        await asyncio.sleep(dice.uniform(0, LONGEST_S))

    @worker.handler(models=["eyes"])
    async def see(task: Task, _: Context) -> dict[str, str]:
        await take_a_while()
        if asked(task) == BROKEN:
            raise TaskError("BAD_REQUEST", "Nobody can read this page")
        return {"content": seen(asked(task))}

    @worker.handler(models=["sums"])
    async def sum_up(task: Task, _: Context) -> dict[str, str]:
        await take_a_while()
        return {"content": summed_up(asked(task))}

    @worker.handler(models=["chat"])
    async def write(task: Task, _: Context) -> AsyncIterator[str]:
        text = asked(task)
        cuts = sorted(dice.randrange(len(text)) for _ in range(PIECES))
        for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            await take_a_while()
            if begin < end:
                yield text[begin:end]

    return worker


if __name__ == "__main__":
    make_worker(sys.argv[1], sys.argv[2]).run()
