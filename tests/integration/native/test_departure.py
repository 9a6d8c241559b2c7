"""Callers who leave: what becomes of their tasks, and that the worker hears of it."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.support.rawworkers import RawWorker
from tests.support.talk import Talk

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
LINGER = 3000


async def leave(call: asyncio.Task[Any]) -> None:
    """Close a caller's connection."""
    call.cancel()
    await asyncio.wait([call])


async def cancelled(worker: RawWorker, task: dict[str, Any]) -> None:
    """A version 2 worker is told to stop, and says that it has."""
    frame = await worker.recv()
    assert (frame["type"], frame["taskId"], frame["attempt"]) == ("cancel", task["taskId"], task["attempt"])
    assert frame["reason"] == "client"
    await worker.answer(task, None, error="cancelled")
    assert (await worker.recv())["type"] == "resultAck"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/openai", {}),
        ("/api/tasks", {"type": "t", "payload": {}}),
        ("/v1/chat/completions", {"messages": []}),
        ("/v1/chat/completions", {"messages": [], "stream": True}),
    ],
)
async def test_a_sync_caller_who_leaves_cancels_the_task_and_its_worker_is_told(
    gateway: Start, path: str, body: dict[str, Any]
) -> None:
    async with gateway() as talk, talk.worker2(["m"]) as worker:
        call = talk.later(talk.http.post(path, json={"model": "m", **body}))
        task = await worker.take()
        await leave(call)
        await cancelled(worker, task)
        assert isinstance((await talk.reaches(task["taskId"], "cancelled"))["cancelledAt"], int)
        talk.sync(model="m", name="next")
        assert (await worker.take())["payload"]["name"] == "next"


async def test_the_slot_of_a_version_1_worker_is_free_when_it_answers(gateway: Start) -> None:
    async with gateway() as talk, talk.worker() as worker:
        call = talk.sync()
        task = await worker.take()
        await leave(call)
        await talk.reaches(task["taskId"], "cancelled")
        await talk.submit(name="next")
        assert await worker.idle()
        await worker.answer(task, {"too": "late"})
        assert (await worker.take())["payload"]["name"] == "next"
        assert (await talk.poll(task["taskId"]))["status"] == "cancelled"


async def test_a_caller_who_leaves_while_waiting_in_the_queue_leaves_it(gateway: Start) -> None:
    async with gateway() as talk, talk.worker() as worker:
        await talk.submit()
        running = await worker.take()
        call = talk.sync(name="impatient")
        await talk.waiting(1)
        await leave(call)
        await talk.waiting(0)
        await worker.answer(running, {})
        assert await worker.idle()


async def test_on_disconnect_continue_lets_a_sync_task_run_on(gateway: Start) -> None:
    async with gateway() as talk, talk.worker2(["m"]) as worker:
        call = talk.sync(model="m", onDisconnect="continue")
        task = await worker.take()
        await leave(call)
        assert await worker.idle()
        await worker.answer(task, {"kept": True})
        assert (await talk.reaches(task["taskId"], "completed"))["result"] == {"kept": True}


async def test_a_cut_stream_of_v1_that_wanted_to_continue_is_read_on_as_events(gateway: Start) -> None:
    body = {"model": "m", "messages": [], "stream": True}
    keep = {"X-Fairlane-On-Disconnect": "continue"}
    async with gateway() as talk, talk.worker2(["m"]) as worker:
        async with talk.http.stream("POST", "/v1/chat/completions", json=body, headers=keep) as cut:
            task = await worker.take()
            await worker.chunk(task, "half ")
            async for line in cut.aiter_lines():
                if "half " in line:
                    break
        assert await worker.idle()
        async with talk.events(f"/api/task/{cut.headers['x-task-id']}/events") as reader:
            await worker.chunk(task, "and half", seq=2)
            await worker.answer(task)
            await reader.until("done")
        assert reader.text == "half and half"


async def test_a_stream_whose_caller_left_is_cancelled_after_the_linger(gateway: Start) -> None:
    async with gateway(linger_ms=LINGER) as talk, talk.worker2(["m"]) as worker:
        call = talk.later(talk.http.post("/api/openai", json={"model": "m", "stream": True}))
        task = await worker.take()
        await leave(call)
        assert (await talk.poll(task["taskId"]))["status"] == "executing"
        await cancelled(worker, task)
        assert (await talk.poll(task["taskId"]))["status"] == "cancelled"


@pytest.mark.slow
async def test_a_stream_lives_as_long_as_somebody_reads_it(gateway: Start) -> None:
    async with gateway(linger_ms=LINGER) as talk, talk.worker2(["m"]) as worker:
        call = talk.later(talk.http.post("/api/openai", json={"model": "m", "stream": True}))
        task = await worker.take()
        async with talk.events(f"/api/task/{task['taskId']}/events") as reader:
            await leave(call)
            assert await worker.idle(2 * LINGER / 1000)
            await worker.chunk(task, "still here")
            assert (await reader.until("chunk"))[-1].data["delta"] == "still here"
        await cancelled(worker, task)


@pytest.mark.slow
async def test_an_open_stream_and_a_sync_call_outlive_the_linger(gateway: Start) -> None:
    async with gateway(linger_ms=LINGER) as talk, talk.worker2(["m"], slots=3) as worker:
        await talk.submit(model="m", onDisconnect="cancel", stream=True)
        unread = await worker.take()
        stream = talk.later(talk.http.post("/api/openai", json={"model": "m", "stream": True}))
        first = await worker.take()
        call = talk.sync(model="m")
        second = await worker.take()
        await cancelled(worker, unread)  # nobody reads this one: by its end a linger has passed
        assert await worker.idle(LINGER / 1000)
        await worker.answer(first, {"streamed": 1})
        await worker.answer(second, {"waited": 1})
        assert (await call).json() == {"waited": 1}
        assert '"streamed": 1' in (await stream).text


async def test_a_stream_can_be_left_and_read_on_within_the_linger(gateway: Start) -> None:
    async with gateway() as talk, talk.worker() as worker:
        async with talk.events("/api/openai", json={"stream": True}) as reader:
            task = await worker.take()
            await worker.chunk(task, "one ")
            seen = await reader.until("chunk")
        await worker.chunk(task, "two")
        url = f"/api/task/{task['taskId']}/events"
        async with talk.events(url, headers={"Last-Event-ID": str(seen[-1].id)}) as reader:
            assert (await reader.next()).data["delta"] == "two"
            await worker.answer(task, None)
            [done] = await reader.rest()
            assert done.data["result"]["content"] == "one two"


async def test_with_a_linger_of_0_a_stream_is_cancelled_when_its_caller_leaves(gateway: Start) -> None:
    async with gateway(linger_ms=0) as talk, talk.worker2(["m"]) as worker:
        call = talk.later(talk.http.post("/api/openai", json={"model": "m", "stream": True}))
        task = await worker.take()
        await leave(call)
        await cancelled(worker, task)


async def test_on_disconnect_continue_lets_a_stream_run_on(gateway: Start) -> None:
    async with gateway(linger_ms=0) as talk, talk.worker2(["m"]) as worker:
        body = {"model": "m", "stream": True, "onDisconnect": "continue"}
        call = talk.later(talk.http.post("/api/openai", json=body))
        task = await worker.take()
        await leave(call)
        assert await worker.idle()
        await worker.answer(task, {"kept": True})
        assert (await talk.reaches(task["taskId"], "completed"))["result"] == {"kept": True}


async def test_leaving_the_events_of_an_async_task_never_cancels_it(gateway: Start) -> None:
    async with gateway(linger_ms=0) as talk, talk.worker2(["m"]) as worker:
        task_id = await talk.submit(model="m")
        task = await worker.take()
        for _ in range(2):
            async with talk.events(f"/api/task/{task_id}/events") as reader:
                await reader.until("start")
        assert await worker.idle(1.0)
        await worker.answer(task, {"ran": "on"})
        assert (await talk.reaches(task_id, "completed"))["result"] == {"ran": "on"}


async def test_leaving_the_events_never_cancels_while_the_submitting_stream_is_open(gateway: Start) -> None:
    async with (
        gateway(linger_ms=0) as talk,
        talk.worker2(["m"]) as worker,
        talk.events("/api/openai", json={"model": "m", "stream": True}) as submitting,
    ):
        task = await worker.take()
        async with talk.events(f"/api/task/{task['taskId']}/events") as reader:
            await reader.until("start")
        assert await worker.idle(1.0)
        await worker.answer(task, {"a": 1})
        assert (await submitting.until("done"))[-1].data["result"] == {"a": 1}
