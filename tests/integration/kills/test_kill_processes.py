"""kill -9 of a gateway, of its Redis, or of both, with a hundred tasks waiting and ten running."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from tests.support.ledger import ended_once, nothing_left
from tests.support.processes import GatewayProcess, gateway_process, runs, tireless
from tests.support.serving import http_client, until

pytestmark = pytest.mark.anyio

RUNNING = 10
WAITING = 100
PATIENCE_S = 60.0
LEASES: dict[str, Any] = {"lease_ms": 1500, "grant_ack_ms": 1500, "no_worker_grace_ms": 10_000}
OPEN_S = 20.0


async def submit(http: httpx2.AsyncClient, number: int) -> str:
    answer = await http.post("/api/openai", json={"messages": [], "n": number, "async": True})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["taskId"])


async def status(http: httpx2.AsyncClient, task_id: str) -> dict[str, Any]:
    """What a poll tells, as soon as somebody answers."""
    while True:
        try:
            answer = await http.get(f"/api/task/{task_id}")
        except httpx2.TransportError:
            await asyncio.sleep(0.1)
            continue
        if answer.status_code == 200:
            body: dict[str, Any] = answer.json()
            return body
        assert answer.status_code == 503, f"an accepted task is gone: {answer.text}"
        await asyncio.sleep(0.1)


async def results(http: httpx2.AsyncClient, task_ids: list[str]) -> list[dict[str, Any]]:
    """How all tasks ended, waiting for it."""
    ended = []
    async with asyncio.timeout(PATIENCE_S):
        for task_id in task_ids:
            while (body := await status(http, task_id))["status"] in ("queued", "executing"):
                await asyncio.sleep(0.1)
            ended.append(body)
    return ended


async def kill_gateway(gateway: GatewayProcess) -> None:
    server = gateway.redis_pid
    await gateway.kill()
    await until(lambda: not runs(server), "the Redis of a killed gateway to end")
    await gateway.start()


async def kill_redis(gateway: GatewayProcess) -> None:
    server = gateway.redis_pid
    os.kill(server, signal.SIGKILL)
    await until(lambda: gateway.redis_pid != server, "Redis to be started again")


async def kill_both(gateway: GatewayProcess) -> None:
    server = gateway.redis_pid
    os.kill(server, signal.SIGKILL)
    await gateway.kill()
    await until(lambda: not runs(server), "Redis to be gone")
    await gateway.start()


@pytest.mark.parametrize("kill", [kill_gateway, kill_redis, kill_both])
async def test_nothing_accepted_is_lost_and_each_task_ends_once(
    tmp_path: Path, kill: Callable[[GatewayProcess], Any]
) -> None:
    gate = asyncio.Event()

    async def work(send: Callable[..., Any], task: dict[str, Any]) -> None:
        await gate.wait()
        number = task["payload"]["n"]
        if number % 3 == 0:
            await send(type="taskChunk", taskId=task["taskId"], delta=f"{number}")
            await send(type="taskResult", taskId=task["taskId"], result=None, error=None)
        else:
            await send(type="taskResult", taskId=task["taskId"], result={"content": f"{number}"}, error=None)

    async with (
        gateway_process(tmp_path, **LEASES) as gateway,
        http_client(gateway.url, timeout=OPEN_S) as http,
        tireless(RUNNING, lambda: gateway.ws, work) as workers,
    ):
        task_ids = list(await asyncio.gather(*[submit(http, n) for n in range(RUNNING + WAITING)]))
        await until(lambda: all(worker.busy for worker in workers), "ten running tasks")
        counts = (await http.get("/api/admin/overview")).json()["counts"]
        assert counts["queued"] == WAITING

        await kill(gateway)
        gate.set()
        ended = await results(http, task_ids)
        assert [body["status"] for body in ended] == ["completed"] * len(task_ids)
        assert [body["result"]["content"] for body in ended] == [f"{n}" for n in range(len(task_ids))]
        with gateway.store() as store:
            assert {ended_once(store, task_id) for task_id in task_ids} == {b"done"}
            await nothing_left(store)

        again = await submit(http, 1)  # the slots work
        assert (await results(http, [again]))[0]["status"] == "completed"


async def test_tasks_that_were_streaming_when_their_gateway_was_killed_end_as_lost(tmp_path: Path) -> None:
    """After output there is no retry: one clear end with what the reader has seen before it."""
    gate = asyncio.Event()

    async def work(send: Callable[..., Any], task: dict[str, Any]) -> None:
        await send(type="taskChunk", taskId=task["taskId"], delta="before")
        await gate.wait()
        await send(type="taskResult", taskId=task["taskId"], result="late", error=None)

    async with (
        gateway_process(tmp_path, **LEASES) as gateway,
        http_client(gateway.url, timeout=OPEN_S) as http,
        tireless(3, lambda: gateway.ws, work) as workers,
    ):
        task_ids = [await submit(http, n) for n in range(3)]
        with gateway.store() as store:
            await until(lambda: all(len(log_of(store, task_id)) == 2 for task_id in task_ids), "first output")
        await kill_gateway(gateway)
        ended = await results(http, task_ids)
        assert [(body["status"], body["code"]) for body in ended] == [("failed", "WORKER_LOST")] * 3
        gate.set()
        with gateway.store() as store:
            for task_id in task_ids:
                assert ended_once(store, task_id) == b"error"
                assert log_of(store, task_id) == [b"start", b"chunk", b"error"]
            await nothing_left(store)
        assert sorted(worker.received[0] for worker in workers) == sorted(task_ids)


def log_of(store: Any, task_id: str) -> list[bytes]:
    from tests.support.ledger import events

    return [kind for _, kind in events(store, task_id)]


def family(gateway: GatewayProcess) -> list[int]:
    """The process ids of everything that a gateway has started."""
    return [child.pid for child in psutil.Process(gateway.pid).children(recursive=True)]


async def test_with_several_processes_none_outlives_the_one_that_started_them(tmp_path: Path) -> None:
    async def work(send: Callable[..., Any], task: dict[str, Any]) -> None:
        await send(type="taskResult", taskId=task["taskId"], result=task["payload"]["n"], error=None)

    async with (
        gateway_process(tmp_path, processes=2, drain_ms=500, **LEASES) as gateway,
        http_client(gateway.url, timeout=OPEN_S) as http,
        tireless(4, lambda: gateway.ws, work),
    ):
        first = [await submit(http, n) for n in range(10)]
        assert {body["status"] for body in await results(http, first)} == {"completed"}
        pids = family(gateway)
        assert len(pids) >= 3
        await gateway.kill()
        await until(lambda: not any(runs(pid) for pid in pids), "every process to end")
        await gateway.start()
        again = [await submit_somehow(http, n) for n in range(10)]
        assert [body["result"] for body in await results(http, again)] == list(range(10))


async def test_of_several_processes_one_that_is_killed_is_replaced(tmp_path: Path) -> None:
    async def work(send: Callable[..., Any], task: dict[str, Any]) -> None:
        await send(type="taskResult", taskId=task["taskId"], result=task["payload"]["n"], error=None)

    async with (
        gateway_process(tmp_path, processes=2, drain_ms=500, **LEASES) as gateway,
        http_client(gateway.url, timeout=OPEN_S) as http,
        tireless(4, lambda: gateway.ws, work),
    ):
        ids = [await submit(http, n) for n in range(20)]
        replicas = [
            p for p in psutil.Process(gateway.pid).children() if "spawn_main" in " ".join(p.cmdline())
        ]
        assert len(replicas) == 2
        replicas[0].kill()
        ids += [await submit_somehow(http, n) for n in range(20, 40)]
        assert [body["result"] for body in await results(http, ids)] == list(range(40))
        with gateway.store() as store:
            assert {ended_once(store, task_id) for task_id in ids} == {b"done"}
            await nothing_left(store)


async def submit_somehow(http: httpx2.AsyncClient, number: int) -> str:
    """Submit as a caller does whose connection may break or who may be told to come back."""
    for _ in range(100):
        with contextlib.suppress(httpx2.TransportError):
            answer = await http.post("/api/openai", json={"messages": [], "n": number, "async": True})
            if answer.status_code == 202:
                return str(answer.json()["taskId"])
            assert answer.status_code == 503, answer.text
        await asyncio.sleep(0.1)
    raise AssertionError("nobody took the task")
