"""Redis is away for some seconds while two gateways run fresh tasks: nothing ends, nothing is run twice."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.ledger import nothing_left, record_of
from tests.support.proxy import ChaosProxy
from tests.support.rawworkers import RawWorker
from tests.support.servers import Server
from tests.support.talk import talking

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

AWAY_S = 4.0
"""More than a grant holds, less than a third of a lease."""
EACH = 4
Away = Callable[[], AbstractAsyncContextManager[None]]


@pytest.fixture
async def proxy(own_redis: Server) -> AsyncIterator[ChaosProxy]:
    async with ChaosProxy(own_redis.socket_path) as proxy:
        yield proxy


@pytest.fixture(params=["stopped", "cut off"])
def away(request: pytest.FixtureRequest, own_redis: Server, proxy: ChaosProxy) -> Away:
    """For as long as it is open, Redis answers nobody: its process is stopped, or every connection is refused."""

    @asynccontextmanager
    async def away() -> AsyncIterator[None]:
        if request.param == "stopped":
            own_redis.freeze()
        else:
            proxy.faults.refuse = True
            proxy.reset()
        try:
            yield
        finally:
            own_redis.thaw()
            proxy.faults.refuse = False

    return away


async def test_two_gateways_keep_their_fresh_tasks(
    own_redis: Server, proxy: ChaosProxy, tmp_path: Path, away: Away
) -> None:
    async with (
        talking(proxy.url, tmp_path / "a") as a,
        talking(proxy.url, tmp_path / "b") as b,
        a.worker2(["at a"], slots=EACH) as at_a,
        b.worker2(["at b"], slots=EACH) as at_b,
    ):
        with own_redis.client() as store:
            ids = [
                await talk.submit(model=model)
                for talk, model in ((a, "at a"), (b, "at b"))
                for _ in range(EACH)
            ]
            given = [(worker, await worker.take()) for worker in (at_a, at_b) for _ in range(EACH)]
            for worker, task in given[::2]:
                await worker.chunk(task, "before ")
            async with away():
                await asyncio.sleep(AWAY_S)
            await asyncio.sleep(AWAY_S)  # every lease that was not renewed would be over
            await finish(given)
            for task_id in ids:
                assert (await b.reaches(task_id, "completed", "failed", "cancelled"))["status"] == "completed"
                assert record_of(store, task_id)["attempt"] == 1
            assert await at_a.idle()
            assert await at_b.idle()
            await nothing_left(store)


async def finish(given: list[tuple[RawWorker, dict[str, Any]]]) -> None:
    """Every worker goes on with what it was given, and is thanked for it."""
    for number, (worker, task) in enumerate(given):
        seq = 2 if number % 2 == 0 else 1
        await worker.chunk(task, "after", seq)
        await worker.answer(task, None, lastSeq=seq)
    for worker, _ in given:
        frame = await worker.recv()
        assert (frame["type"], frame["status"]) == ("resultAck", "accepted"), frame


async def test_a_stream_with_the_shortest_linger_outlives_it(
    own_redis: Server, proxy: ChaosProxy, tmp_path: Path, away: Away
) -> None:
    """Two gateways: one has the reader, the other one may sweep first."""
    async with (
        talking(proxy.url, tmp_path / "a", linger_ms=0) as a,
        talking(proxy.url, tmp_path / "b", linger_ms=0) as b,
        b.worker2(["m"]) as worker,
        a.events("/api/openai", json={"model": "m", "stream": True}) as reader,
    ):
        task = await worker.take()
        await worker.chunk(task, "before ")
        await reader.until("chunk")
        async with away():
            await asyncio.sleep(AWAY_S)
        await asyncio.sleep(AWAY_S)
        await worker.chunk(task, "after", 2)
        await worker.answer(task, None, lastSeq=2)
        *_, done = await reader.rest()
        assert (done.event, done.data["result"]["content"]) == ("done", "before after")
