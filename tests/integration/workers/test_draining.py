"""A gateway that goes: no new workers, those of version 1 are let go, and what cannot survive says so before streams close."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import websockets
from tests.support.rawworkers import SUBPROTOCOL, Callers, callers_of, until_workers, worker_v1, worker_v2
from tests.support.serving import Served, serving, until
from websockets.asyncio.client import connect

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("subprotocols", [None, [websockets.Subprotocol(SUBPROTOCOL)]], ids=["v1", "v2"])
async def test_a_draining_gateway_refuses_new_workers(served: Served, subprotocols: Any) -> None:
    served.gateway.dispatcher.drain()
    with pytest.raises(websockets.InvalidStatus) as refused:
        async with connect(served.ws, proxy=None, subprotocols=subprotocols):
            pass
    response = refused.value.response
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert "another" in json.loads(response.body)["error"]
    assert len(served.gateway.dispatcher.pool) == 0


async def test_who_has_connected_and_registers_while_the_gateway_drains_is_sent_away(served: Served) -> None:
    async with worker_v2(served.ws, register=False) as worker:
        served.gateway.dispatcher.drain()
        await worker.send("register", protocols=[2], instanceId="i", name="n", models=["m"])
        assert await worker.closed() == 1012
        assert len(served.gateway.dispatcher.pool) == 0


async def test_a_version_1_worker_is_let_go_when_it_has_nothing_to_do(redis_url: str, tmp_path: Path) -> None:
    async with (
        serving(redis_url, tmp_path, drain_ms=20_000) as served,
        callers_of(served) as callers,
        worker_v1(served.ws) as busy,
    ):
        answer = callers.ask()
        task = await busy.recv()
        async with worker_v1(served.ws) as idle:
            await until_workers(served, 2)
            draining = asyncio.create_task(served.gateway.drain())
            assert await idle.closed() == 1012
        assert not draining.done()
        await busy.answer(task, "done")
        assert await answer.ok() == "done"
        assert await busy.closed() == 1012
        await draining


async def test_a_stream_that_cannot_survive_ends_with_an_error_and_not_with_a_farewell(
    redis_url: str, tmp_path: Path
) -> None:
    async with (
        serving(redis_url, tmp_path, drain_ms=50) as served,
        callers_of(served) as callers,
        worker_v2(served.ws) as worker,
    ):
        watch = await callers.watch()
        task = await worker.expect("task")
        await worker.chunk(task, "half of ")
        await watch.until_text("half of ")
        await served.gateway.drain()
        error = await watch.until_event("error")
        assert (error["code"], error["error"]) == (
            "WORKER_LOST",
            "The gateway stopped before the task was done",
        )
        assert not watch.named("bye")


async def test_a_task_without_output_survives_and_its_stream_is_told_to_come_back(
    second: Served, elsewhere: Callers, redis_url: str, tmp_path: Path
) -> None:
    async with (
        serving(redis_url, tmp_path, drain_ms=50) as served,
        callers_of(served) as callers,
        worker_v2(served.ws, instance="a") as worker,
    ):
        watch = await callers.watch()
        task = await worker.expect("task")
        await worker.ack(task)
        async with worker_v2(second.ws, instance="b") as other:
            await until_workers(second, 1)
            await served.gateway.drain()
            await watch.until_event("bye")
            assert not watch.named("error")
            again = await other.expect("task", taskId=task["taskId"])
            rest = await elsewhere.follow(task["taskId"])
            await other.chunk(again, "whole")
            await other.answer(again, None, lastSeq=1)
            await rest.until_event("done")
            assert rest.text == "whole"


async def test_a_drain_that_is_over_leaves_nothing_running(redis_url: str, tmp_path: Path) -> None:
    async with (
        serving(redis_url, tmp_path, drain_ms=50) as served,
        callers_of(served) as callers,
        worker_v2(served.ws, slots=8) as worker,
    ):
        ids = [await callers.later(n=n) for n in range(8)]
        tasks = [await worker.expect("task") for _ in ids]
        for task in tasks[:4]:
            await worker.chunk(task, "x")
        running = served.gateway.dispatcher.attempts
        await until(lambda: sum(a.writer.has_output for a in running.values()) == 4, "their output")
        await served.gateway.drain()
        assert not running
        states = sorted([(await callers.status(task_id))["status"] for task_id in ids])
        assert states == ["failed"] * 4 + ["queued"] * 4
