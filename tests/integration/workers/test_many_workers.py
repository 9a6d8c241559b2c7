"""Many workers on one gateway: what each costs in memory, what is told of them, and how they are filled."""

import asyncio
import base64
import contextlib
import os
import resource
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.processes import gateway_process
from tests.support.rawworkers import Callers, until_workers, worker_v1, worker_v2
from tests.support.serving import Served, until

pytestmark = pytest.mark.anyio

MANY = 1600
BYTES_EACH = 30_000


@contextlib.asynccontextmanager
async def sockets(port: int, count: int) -> AsyncIterator[None]:
    """So many version 1 workers, all at once, that are nothing but a socket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2 * MANY + 500:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * MANY + 500), hard))
    writers: list[asyncio.StreamWriter] = []

    async def connect() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4096)
        writers.append(writer)
        writer.write(
            b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n\r\n"
            % (port, base64.b64encode(os.urandom(16)))
        )
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")

    try:
        async with asyncio.timeout(60):
            await asyncio.gather(*(connect() for _ in range(count)))
        yield
    finally:
        for writer in writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


@pytest.mark.slow
async def test_1600_version_1_workers_take_30_kb_each_at_most(tmp_path: Path) -> None:
    async with gateway_process(tmp_path) as gateway:
        store = gateway.store()
        process = psutil.Process(gateway.pid)
        with contextlib.closing(store):
            async with sockets(gateway.port, 20):
                pass  # what is loaded and allocated once
            written, before = store.info()["total_net_input_bytes"], process.memory_info().rss
            async with sockets(gateway.port, MANY):

                def known() -> bool:
                    (presence,) = store.keys("*}:presence:*")
                    return bool(store.hlen(presence) >= MANY)

                await until(known, "all of them to be known to the store", 60)
                assert process.memory_info().rss - before < MANY * BYTES_EACH
                assert store.info()["total_net_input_bytes"] - written < MANY * 1000
            assert process.memory_info().rss - before < MANY * BYTES_EACH


async def test_what_is_told_of_workers_reaches_the_other_gateways(served: Served, second: Served) -> None:
    async def rows() -> list[dict[str, Any]]:
        return [
            row
            for row in await second.gateway.inspector.workers()
            if row["replica"] == served.gateway.replica
        ]

    async with worker_v2(served.ws, "m", "n", slots=3, taskTypes=["chat"], tags={"site": "a"}) as worker:
        await until_workers(served, 1)
        (row,) = await rows()
        assert row.pop("heartbeatAgeMs") < 15_000
        assert row == (
            {
                "workerId": worker.registered["workerId"],
                "name": "raw",
                "replica": served.gateway.replica,
                "version": 2,
                "models": ["m", "n"],
                "taskTypes": ["chat"],
                "slots": 3,
                "maxMessageBytes": 1 << 20,
                "draining": False,
                "upstream": None,
                "unhealthy": None,
                "modelInfo": {},
                "tags": {"site": "a"},
                "running": 0,
                "taskSilentMs": None,
            }
        )
        await worker.send("register", protocols=[2], instanceId="instance", name="raw", models=["o"], slots=5)

        async def changed() -> bool:
            return [(row["models"], row["slots"]) for row in await rows()] == [(["o"], 5)]

        await until(changed, "the change to be known")
        await worker.send("draining", graceMs=1000)
        await until_drains(rows)
    await until_gone(rows)


async def until_drains(rows: Any) -> None:
    async def drains() -> bool:
        return [row["draining"] for row in await rows()] == [True]

    await until(drains, "the worker to be known as draining")


async def until_gone(rows: Any) -> None:
    async def gone() -> bool:
        return not await rows()

    await until(gone, "the worker to be known as gone")


async def test_running_tasks_are_told_with_the_next_renewal(
    served: Served, second: Served, callers: Callers
) -> None:
    async with worker_v2(served.ws, slots=2) as worker:
        await until_workers(served, 1)
        callers.ask()
        await worker.expect("task")
        served.gateway.dispatcher.offers.offer_soon()

        async def told() -> bool:
            return [row["running"] for row in await second.gateway.inspector.workers()] == [1]

        await until(told, "the running task to be known")


async def test_what_the_store_loses_of_them_is_told_again(served: Served, second: Served) -> None:
    gateway = served.gateway
    presence = gateway.keys("presence", replica=gateway.replica)
    async with worker_v1(served.ws), worker_v2(served.ws):
        await until_workers(served, 2)

        async def known() -> bool:
            return len(await second.gateway.inspector.workers()) == 2

        await until(known, "both to be known")
        await gateway.link.command("DEL", presence)
        gateway.dispatcher.offers.offer_soon()
        await until(known, "both to be known again")


async def test_a_model_is_offered_as_soon_as_its_worker_is_there(
    served: Served, second: Served, callers: Callers
) -> None:
    """Also while others come, who are told together a moment later."""
    async with contextlib.AsyncExitStack() as stack:
        for number in range(20):
            model = f"m{number}"
            worker = await stack.enter_async_context(worker_v2(served.ws, model, instance=model))
            answer = callers.ask(model)
            task = await worker.expect("task")
            await worker.answer(task, number, lastSeq=0)
            assert await answer.ok() == number
