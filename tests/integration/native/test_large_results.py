"""Large results are read from Redis once for all who ask at the same time, and shared by all who are slow to take them."""

import asyncio
import contextlib
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from tests.support.serving import until
from tests.support.streams import RawStream
from tests.support.talk import Talk

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
SIZE = 3_000_000


async def ended_with(talk: Talk, size: int) -> str:
    """A task that has ended with a result of so many bytes."""
    async with talk.worker() as worker:
        task_id = await talk.submit()
        await worker.answer(await worker.take(), {"x": "y" * size})
        await talk.reaches(task_id, "completed")
    return task_id


async def readings(talk: Talk) -> int:
    """How many log readings Redis has done."""
    stats = (await talk.served.gateway.link.command("INFO", "commandstats")).decode()
    return sum(
        int(line.partition("calls=")[2].partition(",")[0])
        for line in stats.splitlines()
        if line.startswith(("cmdstat_xrange:", "cmdstat_xrevrange:"))
    )


async def test_polls_at_the_same_time_are_one_reading(gateway: Start) -> None:
    async with gateway() as talk:
        task_id = await ended_with(talk, SIZE)
        before = await readings(talk)
        answers = await asyncio.gather(*(talk.http.get(f"/api/task/{task_id}") for _ in range(30)))
        assert all(len(answer.json()["result"]["x"]) == SIZE for answer in answers)
        assert all(int(answer.headers["content-length"]) == len(answer.content) for answer in answers)
        assert await readings(talk) - before < 10


async def test_readers_who_do_not_read_share_a_large_result(gateway: Start) -> None:
    async with gateway() as talk, contextlib.AsyncExitStack() as stack:
        task_id = await ended_with(talk, SIZE)
        path = f"/api/task/{task_id}/events"
        whole = (await talk.http.get(path)).content
        made = talk.served.gateway.tasks.results._results._made
        assert not made, "kept while somebody reads it"
        streams = [
            await stack.enter_async_context(await RawStream.open(talk.served.url, path, receive_buffer=4096))
            for _ in range(8)
        ]
        await until(
            lambda: len(made) == 1 and sys.getrefcount(made[task_id]) > len(streams), "all to share it"
        )
        for stream in streams:
            assert whole.endswith((await stream.drain())[1])
        await until(lambda: not made, "it to be given back")
