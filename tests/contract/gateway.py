"""A gateway as the contract tests see it: one process with one URL, callers of HTTP, and raw WebSocket workers.

The gateway runs open on 127.0.0.1, as `fairlane serve` does without keys. Nothing here or in the tests names a module of it.
"""

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import websockets
from tests.support.processes import GatewayProcess
from tests.support.serving import http_client, until
from websockets.asyncio.client import ClientConnection, connect

DEADLINE_S = 15.0
SETTINGS = {
    "task_timeout_ms": 10_000,
    "min_task_timeout_ms": 200,
    "max_queue_length": 20,
    "task_result_ttl_ms": 600_000,
    "max_result_ttl_ms": 600_000,
    "http_worker_slots": 0,
    "endpoints": {"image": {"url": "https://images.example.com/v1/*"}},
}
_NUMBERS = itertools.count(1)


class Worker:
    """A WebSocket on which nothing is done by itself. Frames that arrived are kept in `seen`."""

    def __init__(self, ws: ClientConnection) -> None:
        self.ws = ws
        self.seen: list[dict[str, Any]] = []

    async def send(self, **frame: Any) -> None:
        await self.text(json.dumps(frame))

    async def text(self, text: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self.ws.send(text)

    async def receive(self, kind: str = "") -> dict[str, Any]:
        """The next frame, or the next one of this type."""
        while True:
            async with asyncio.timeout(DEADLINE_S):
                frame: dict[str, Any] = json.loads(await self.ws.recv())
            self.seen.append(frame)
            if kind in ("", frame["type"]):
                return frame

    async def closed(self) -> int:
        """The code with which the gateway closes."""
        while True:
            try:
                await self.receive()
            except websockets.ConnectionClosed as closed:
                return closed.rcvd.code if closed.rcvd else 1006

    async def register(self, *models: str, **fields: Any) -> dict[str, Any]:
        about = {"instanceId": f"i{next(_NUMBERS)}", "name": "raw", "models": list(models) or ["m"], **fields}
        await self.send(type="register", protocols=[2], **about)
        return await self.receive("registered")

    async def take(self) -> dict[str, Any]:
        """The next task. A version 2 worker acknowledges it."""
        task = await self.receive("task")
        if "attempt" in task:
            await self.send(type="taskAck", **named(task))
        return task

    async def finish(self, task: dict[str, Any], result: Any = None, **fields: Any) -> None:
        await self.send(type="taskResult", **named(task), **{"result": result, "error": None, **fields})

    async def silent(self, *running: dict[str, Any]) -> None:
        """Prove that the gateway has sent nothing: the reply to a heartbeat is the next frame. For version 2."""
        fence = {"taskId": "00000000-0000-8000-8000-000000000000", "attempt": 1}
        await self.send(type="heartbeat", running=[*(named(task) for task in running), fence])
        frame = await self.receive()
        assert (frame["type"], frame["taskId"]) == ("cancel", fence["taskId"]), frame


def named(task: dict[str, Any]) -> dict[str, Any]:
    """The fields by which a message names its task."""
    return {name: task[name] for name in ("taskId", "attempt") if name in task}


async def poll(client: httpx2.AsyncClient, task_id: str) -> dict[str, Any]:
    """The status of a task."""
    answer = await client.get(f"/api/task/{task_id}")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def polled(client: httpx2.AsyncClient, task_id: str, status: str) -> dict[str, Any]:
    """The status of a task, once it is this one."""
    body: dict[str, Any] = {}

    async def reached() -> bool:
        body.update(await poll(client, task_id))
        return bool(body["status"] == status)

    await until(reached, f"{task_id} to be {status}")
    return await poll(client, task_id)


class Gateway:
    def __init__(self, process: GatewayProcess) -> None:
        self.process, self.url, self.ws = process, process.url, process.ws

    def client(self, **options: Any) -> httpx2.AsyncClient:
        return http_client(self.url, **options)

    def calm(self) -> None:
        """Cancel all tasks, and return when no worker and no task is left."""
        with httpx2.Client(base_url=self.url, trust_env=False, timeout=DEADLINE_S) as client:
            deadline = time.monotonic() + DEADLINE_S
            while True:
                client.post("/api/admin/tasks/cancel", params={"user": "anonymous"}).raise_for_status()
                state = client.get("/api/admin/overview").json()
                if not (state["workers"] or state["counts"]["queued"] or state["counts"]["executing"]):
                    return
                assert time.monotonic() < deadline, state["workers"]
                time.sleep(0.02)

    @contextlib.asynccontextmanager
    async def worker_v1(self, **options: Any) -> AsyncIterator[Worker]:
        """A version 1 worker: connected is enough."""
        async with connect(self.ws, proxy=None, close_timeout=1, max_size=None, **options) as ws:
            yield Worker(ws)

    @contextlib.asynccontextmanager
    async def worker_v2(self, *models: str, register: bool = True, **fields: Any) -> AsyncIterator[Worker]:
        """A version 2 worker, registered for these models. The gateway knows that it has left at the end."""
        protocol = websockets.Subprotocol("fairlane.worker.v2")
        async with self.worker_v1(subprotocols=[protocol]) as worker:
            if register:
                await worker.register(*models, **fields)
            yield worker


@contextlib.contextmanager
def running_gateway(folder: Path, redis_url: str, **settings: Any) -> Iterator[Gateway]:
    """A gateway process that is ready."""
    process = GatewayProcess(folder, redis_url, **{**SETTINGS, **settings})
    asyncio.run(process.start())
    try:
        yield Gateway(process)
    finally:
        asyncio.run(process.stop())
