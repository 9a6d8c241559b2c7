"""A worker's connection that is gone leaves nothing for the garbage collector."""

import asyncio
import contextlib
import gc
from collections import Counter
from collections.abc import Iterator
from types import CoroutineType
from typing import Any

import pytest
from tests.support.rawworkers import Callers, key, until_workers, worker_v1, worker_v2
from tests.support.serving import Served

pytestmark = pytest.mark.anyio

OURS = ("Session", "Worker", "Held", "Kind", "WorkerProtocol", "ServerProtocol", "_Inbox")
"""The connection's parts."""


@contextlib.contextmanager
def garbage() -> Iterator["Counter[str]"]:
    """What only the collector can free of what is made inside, by type: of OURS, and coroutines."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found.update(name for thing in gc.garbage if (name := name_of(thing)))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def name_of(thing: Any) -> str | None:
    kind = type(thing)
    if kind.__qualname__ in OURS:
        return str(kind.__qualname__)
    code = thing.cr_code if kind is CoroutineType else None
    return str(code.co_qualname) if code is not None and "/workers/server/" in code.co_filename else None


async def settle(served: Served) -> None:
    await until_workers(served, 0)
    for _ in range(10):
        await asyncio.sleep(0)


async def test_workers_that_came_and_went_leave_no_garbage(served: Served, callers: Callers) -> None:
    async def all_ways() -> None:
        async with worker_v1(served.ws) as worker:
            await until_workers(served, 1)
        await settle(served)
        async with worker_v2(served.ws) as worker:
            await worker.nothing_more()
        await settle(served)
        async with worker_v2(served.ws) as worker:
            worker.ws.transport.abort()
        await settle(served)
        async with worker_v2(served.ws, register=False) as worker:
            await worker.text("garbage")
            await worker.closed()
        await settle(served)

    await all_ways()  # what is made once
    with garbage() as found:
        await all_ways()
    assert not found


async def test_workers_that_ran_tasks_leave_no_garbage_of_their_connections(
    served: Served, callers: Callers
) -> None:
    async def work() -> None:
        async with worker_v1(served.ws) as worker:
            await until_workers(served, 1)
            answer = callers.ask()
            await worker.result(await worker.recv(), 1)
            assert await answer.ok() == 1
        await settle(served)
        async with worker_v2(served.ws) as worker:
            answer = callers.ask()
            task = await worker.expect("task")
            await worker.ack(task)
            await worker.chunk(task, 1, "x")
            await worker.result(task, None, lastSeq=1)
            await answer.ok()
            await worker.expect("resultAck")
            refused = callers.ask()
            await worker.send("taskReject", **key(await worker.expect("task")), reason="badPayload")
            await refused.error("BAD_REQUEST", 500)
        await settle(served)

    await work()
    with garbage() as found:
        await work()
    assert not found


async def test_a_refused_handshake_leaves_no_garbage(served: Served) -> None:
    async def refused() -> None:
        with pytest.raises(Exception, match="HTTP 403"):
            async with worker_v1(served.ws, origin="https://page.example"):
                pass
        for _ in range(10):
            await asyncio.sleep(0)

    await refused()
    with garbage() as found:
        await refused()
    assert not found
