"""What tests of endpoints share: a target that is a real HTTP server, and a worker that makes the calls."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from tests.support.rawworkers import RawWorker
from tests.support.serving import until
from tests.support.talk import Talk

ENDPOINTS = "/api/admin/endpoints"
URL = "https://images.example.com/v1/make"
IMAGE: dict[str, Any] = {"endpoints": {"image": {"url": "https://images.example.com/v1/*"}}}


@contextlib.asynccontextmanager
async def caller(talk: Talk, slots: int = 4, **more: Any) -> AsyncIterator[RawWorker]:
    """A worker of all endpoints that does nothing by itself."""
    async with talk.worker2(["http:*"], slots, taskTypes=["http"], **more) as worker:
        yield worker


async def offers(talk: Talk, *models: str) -> None:
    """Return when the workers of this gateway offer just these."""
    pool = talk.served.gateway.dispatcher.pool
    await until(lambda: pool.models() == set(models), f"{models} to be offered")


async def submit(talk: Talk, **body: Any) -> dict[str, Any]:
    """`submitTask`: its answer."""
    answer = await talk.http.post("/api/submitTask", json={"target_url": URL, **body})
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def query(talk: Talk, task_id: str) -> dict[str, Any]:
    """`queryTask`: its answer."""
    answer = await talk.http.get("/api/queryTask", params={"task_id": task_id})
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def reaches(talk: Talk, task_id: str, status: str) -> dict[str, Any]:
    """What `queryTask` says once a task has a status."""
    told: dict[str, Any] = {}

    async def reached() -> bool:
        told.clear()
        told.update(await query(talk, task_id))
        return bool(told["task_status"] == status)

    await until(reached, f"{task_id} to be {status}")
    return told


def response(body: str | bytes, status: int = 200, **headers: str) -> dict[str, Any]:
    """An endpoint's answer, as a worker tells it."""
    told: dict[str, Any] = {"status": status, "headers": [[name, value] for name, value in headers.items()]}
    if isinstance(body, bytes):
        return {**told, "bodyBase64": base64.b64encode(body).decode()}
    return {**told, "body": body}


async def add(talk: Talk, status: int = 201, **fields: Any) -> dict[str, Any]:
    """Add an endpoint; the answer."""
    answer = await talk.http.post(ENDPOINTS, json=fields)
    assert answer.status_code == status, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def serve(worker: RawWorker, text: str = "fine") -> None:
    """Answer all tasks that come."""
    while True:
        task = await worker.take()
        await worker.answer(task, response(text))
        await asyncio.sleep(0)
