"""Whoever waits holds up nobody: what is shown to readers beside the log wakes no call into a loop that never lets go."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.support.pulse import live_loop
from tests.support.rawworkers import RawWorker, fitting, key
from tests.support.talk import Talk

from fairlane.queues.tasks import Place
from fairlane.streaming.events import progress_event, queued_event

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
TIMEOUT = {"x-fairlane-timeout": "5000"}

TYPES = ["openaiLike", "openaiCompletion", "openaiEmbedding"]
SURFACES: list[tuple[str, dict[str, Any]]] = [
    ("/api/openai", {"timeout": 5000}),
    ("/api/tasks", {"type": "openaiLike", "payload": {}, "timeout": 5000}),
    ("/v1/chat/completions", {"messages": []}),
    ("/v1/completions", {"prompt": "p"}),
    ("/v1/embeddings", {"input": "i"}),
    ("/api/openai", {"stream": True, "timeout": 5000}),
    ("/v1/chat/completions", {"messages": [], "stream": True}),
    ("/v1/completions", {"prompt": "p", "stream": True}),
]
surfaces = pytest.mark.parametrize(("path", "body"), SURFACES)


async def live(talk: Talk) -> None:
    assert (await talk.http.get("/livez")).status_code == 200


async def progress(worker: RawWorker, task: dict[str, Any], **fields: Any) -> None:
    await worker.send("taskProgress", **key(task), **fields)


def show(talk: Talk, task_id: str, count: int) -> None:
    """Show so many notices to the readers of a task at once."""
    for number in range(count):
        talk.served.gateway.hub.show(task_id, queued_event(task_id, 1, Place(number, 1, 1, 1)))
        talk.served.gateway.hub.show(task_id, progress_event(task_id, 1, number % 100, "on its way"))


def calling(talk: Talk, path: str, body: dict[str, Any]) -> "asyncio.Task[Any]":
    """A call under way, with everything that it answers."""
    return talk.later(talk.http.post(path, json={"model": "m", **body}, headers=TIMEOUT))


@surfaces
async def test_progress_of_a_worker_holds_up_nobody(
    shared_gateway: Start, path: str, body: dict[str, Any]
) -> None:
    async with shared_gateway() as talk, talk.worker2(["m"], taskTypes=TYPES) as worker, live_loop():
        call = calling(talk, path, body)
        task = await worker.take()
        for pct in range(20):
            await progress(worker, task, pct=pct)
        await live(talk)
        for _ in range(20):
            show(talk, task["taskId"], 20)
            await live(talk)
        await worker.answer(task, fitting(task))
        assert (await call).status_code == 200


@surfaces
async def test_a_reader_who_looks_at_a_waiting_call_holds_up_nobody(
    shared_gateway: Start, path: str, body: dict[str, Any]
) -> None:
    async with shared_gateway() as talk, talk.worker2(["m"], taskTypes=TYPES) as worker, live_loop():
        await talk.submit(model="m")
        first = await worker.take()
        call = calling(talk, path, body)
        await talk.waiting(1)
        (row,) = (row for row in (await talk.state())["tasks"] if row["status"] == "queued")
        task_id = row["taskId"]
        async with (
            talk.events(f"/api/task/{task_id}/events") as one,
            talk.events(f"/api/sse-stream?taskId={task_id}") as other,
            talk.http.stream("GET", "/api/admin/events") as feed,
        ):
            assert (await one.next()).event == (await other.next()).event == "queued"
            show(talk, task_id, 20)
            await live(talk)
            assert (await one.until("progress"))[-1].data["pct"] == 19
            assert feed.status_code == 200
            await worker.answer(first, {})
            task = await worker.take()
            show(talk, task_id, 20)
            await live(talk)
            await worker.answer(task, fitting(task))
            assert (await call).status_code == 200
            assert (await one.rest())[-1].event == (await other.rest())[-1].event == "done"


@surfaces
async def test_a_gateway_that_stops_holds_up_nobody(gateway: Start, path: str, body: dict[str, Any]) -> None:
    async with gateway() as talk, talk.worker2(["m"], taskTypes=TYPES) as worker, live_loop():
        call = calling(talk, path, body)
        task = await worker.take()
        await progress(worker, task, pct=1)
        draining = talk.later(talk.served.gateway.drain())
        for _ in range(50):
            show(talk, task["taskId"], 5)
            await live(talk)
            await asyncio.sleep(0.01)
        answer = await call
        await draining
        assert "WORKER_LOST" in answer.text, "no worker is left who could go on with it"
        if "text/event-stream" not in answer.headers["content-type"]:
            assert answer.status_code == (502 if path.startswith("/v1/") else 500)


@surfaces
async def test_a_gateway_that_stops_lets_readers_catch_up(
    gateway: Start, path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a task that goes back to nobody is read in the log, which takes a while on a busy machine."""
    async with gateway() as talk, talk.worker2(["m"], taskTypes=TYPES) as worker:
        call = calling(talk, path, body)
        await worker.take()
        hub = talk.served.gateway.hub
        page = hub.page

        async def slow(*place: Any, **how: Any) -> Any:
            await asyncio.sleep(0.3)
            return await page(*place, **how)

        monkeypatch.setattr(hub, "page", slow)
        await talk.served.gateway.drain()
        assert "WORKER_LOST" in (await call).text


@surfaces
async def test_a_caller_who_leaves_under_a_rain_of_notices_holds_up_nobody(
    shared_gateway: Start, path: str, body: dict[str, Any]
) -> None:
    async with shared_gateway() as talk, talk.worker2(["m"], taskTypes=TYPES) as worker, live_loop():
        call = calling(talk, path, body)
        task = await worker.take()
        show(talk, task["taskId"], 20)
        call.cancel()
        for _ in range(20):
            show(talk, task["taskId"], 5)
            await live(talk)
