"""A worker's connection that is gone is freed at once: nothing of it waits for the garbage collector."""

import contextlib
import gc
from collections import Counter
from collections.abc import AsyncIterator

import pytest
import websockets
from tests.support.rawworkers import Callers, key, until_workers, worker_v1, worker_v2
from tests.support.serving import Served, until
from websockets.server import ServerProtocol

from fairlane.gateway.connections.workers import WorkerProtocol
from fairlane.workers.server.pool import Held, Worker
from fairlane.workers.server.sessions.session import Session

pytestmark = pytest.mark.anyio

PARTS = (Session, Worker, Held, WorkerProtocol, ServerProtocol)
"""What a connection is made of."""


def alive() -> "Counter[str]":
    """The parts of connections that are not freed. (What the collector found would leave out the circles of generators.)"""
    return Counter(kind.__name__ for thing in gc.get_objects() if (kind := type(thing)) in PARTS)


@contextlib.asynccontextmanager
async def without_collector(served: Served) -> AsyncIterator[None]:
    """At the end, when all workers that came inside are gone, so is every part of their connections."""
    gc.collect()
    before = alive()  # of earlier tests' gateways, which somebody holds for a report
    gc.disable()
    try:
        yield
        await until_workers(served, 0)
        with contextlib.suppress(AssertionError):
            await until(lambda: not alive() - before, "all parts to be freed", 5)
        assert not alive() - before
    finally:
        gc.enable()


@pytest.mark.parametrize("version", [1, 2])
async def test_a_worker_that_came_and_went_is_freed(served: Served, version: int) -> None:
    make = worker_v1 if version == 1 else worker_v2
    async with without_collector(served), make(served.ws):
        await until_workers(served, 1)


async def test_a_worker_that_is_reset_or_closed_is_freed(served: Served) -> None:
    async with without_collector(served):
        async with worker_v2(served.ws) as worker:
            worker.ws.transport.abort()
        async with worker_v2(served.ws, register=False) as worker:
            await worker.text("garbage")
            await worker.closed()


async def test_a_worker_that_is_refused_is_freed(served: Served) -> None:
    async with without_collector(served):
        with pytest.raises(websockets.InvalidStatus):
            async with worker_v1(served.ws, origin="https://page.example"):
                pass


@pytest.mark.parametrize("version", [1, 2])
async def test_a_worker_that_ran_tasks_is_freed(served: Served, callers: Callers, version: int) -> None:
    make = worker_v1 if version == 1 else worker_v2
    async with without_collector(served), make(served.ws) as worker:
        await until_workers(served, 1)
        answer = callers.ask()
        task = await worker.expect("task")
        if version == 2:
            await worker.ack(task)
            await worker.chunk(task, "x")
        await worker.answer(task, "x", **({} if version == 1 else {"lastSeq": 1}))
        await answer.ok()
        if version == 2:
            await worker.expect("resultAck")
            refused = callers.ask()
            await worker.send("taskReject", **key(await worker.expect("task")), reason="badPayload")
            await refused.error("BAD_REQUEST", 500)
