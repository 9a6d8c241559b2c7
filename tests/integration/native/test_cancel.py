"""Cancelling a task by its id: queued, executing, ended; as often as one likes."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from tests.support.serving import until
from tests.support.streams import frames_of
from tests.support.talk import Talk

from fairlane.queues.ids import new_task_id
from fairlane.queues.metrics import TASKS_ENDED

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]


async def test_a_queued_task_is_cancelled_and_never_runs(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        await talk.submit()
        running = await worker.take()
        task_id = await talk.submit()
        for _ in range(3):
            answer = await talk.http.post(f"/api/task/{task_id}/cancel")
            assert (answer.status_code, answer.json()) == (200, {"taskId": task_id, "status": "cancelled"})
        body = await talk.poll(task_id)
        assert set(body) == {"taskId", "status", "cancelledAt"}
        await worker.answer(running, {})
        assert await worker.idle()
        assert (await talk.state())["counts"]["queued"] == 0


async def test_an_executing_task_is_cancelled_and_its_worker_told(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker2(["m"]) as worker:
        task_id = await talk.submit(model="m")
        task = await worker.take()
        for _ in range(2):
            answer = await talk.http.post(f"/api/task/{task_id}/cancel", json={})
            assert answer.json() == {"taskId": task_id, "status": "cancelled"}
        frame = await worker.recv()
        assert (frame["type"], frame["taskId"], frame["reason"]) == ("cancel", task_id, "client")
        await worker.answer(task, {"too": "late"})
        assert (await worker.recv())["type"] == "resultAck"
        assert (await talk.poll(task_id))["status"] == "cancelled"
        await talk.submit(model="m", name="next")
        assert (await worker.take())["payload"]["name"] == "next"


async def test_cancelling_an_ended_task_says_how_it_ended(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        for end, status in (({"result": {}}, "completed"), ({"error": "no"}, "failed")):
            task_id = await talk.submit()
            await worker.answer(await worker.take(), **end)
            before = await talk.reaches(task_id, status)
            answer = await talk.http.post(f"/api/task/{task_id}/cancel")
            assert (answer.status_code, answer.json()) == (200, {"taskId": task_id, "status": status})
            assert await talk.poll(task_id) == before


async def test_a_sync_caller_whose_task_is_cancelled_is_told(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        call = talk.sync()
        task = await worker.take()
        await talk.http.post(f"/api/task/{task['taskId']}/cancel")
        answer = await call
        assert answer.status_code == 499
        told = {"error": "Task cancelled", "code": "CANCELLED", "category": "cancelled"}
        assert answer.json() == {**told, "taskId": task["taskId"], "docsUrl": "/docs#CANCELLED"}


async def test_streams_of_a_cancelled_task_end_with_cancelled(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        async with talk.events("/api/openai", json={"stream": True}) as reader:
            task = await worker.take()
            await worker.chunk(task, "half")
            await reader.until("chunk")
            await talk.http.post(f"/api/task/{task['taskId']}/cancel")
            [last] = await reader.rest()
        assert (last.event, last.data["by"]) == ("cancelled", "client")
        await worker.chunk(task, "never seen")
        await worker.answer(task, None)
        replayed = frames_of((await talk.http.get(f"/api/task/{task['taskId']}/events")).content)
        assert replayed[-1] == last


async def test_a_task_that_is_not_there_cannot_be_cancelled(shared_gateway: Start) -> None:
    async with shared_gateway() as talk:
        for task_id, sentence in (
            ("nonsense", "Task not found"),
            (new_task_id(1_780_000_000_000), "Task not found or expired"),
        ):
            answer = await talk.http.post(f"/api/task/{task_id}/cancel")
            assert (answer.status_code, answer.json()["error"]) == (404, sentence)


@pytest.mark.parametrize("version", [1, 2])
async def test_whoever_cancels_the_code_is_the_same_in_lists_and_metrics(
    gateway: Start, version: int
) -> None:
    """Its caller, an admin, a departure and the sweep, of tasks that wait and one that runs."""
    async with (
        gateway(linger_ms=0) as talk,
        talk.worker() if version == 1 else talk.worker2(["default"]) as worker,
    ):
        running = await talk.submit()
        task = await worker.take()
        waiting = [await talk.submit(), await talk.submit()]
        leaver = talk.sync()
        async with talk.events("/api/openai", json={"stream": True, "onDisconnect": "cancel"}):
            await talk.waiting(4)
        leaver.cancel()
        await talk.waiting(2)
        await talk.http.post(f"/api/task/{waiting[0]}/cancel")
        await talk.http.post(f"/api/task/{waiting[1]}/cancel")
        await talk.http.post(f"/api/task/{running}/cancel")
        await worker.answer(task, None, error="cancelled")
        metrics = talk.served.gateway.metrics.values[TASKS_ENDED.name]
        await until(lambda: sum(metrics.values()) == 5, "all ends to be counted")
        assert {labels[-3:] for labels in metrics} == {("cancelled", "CANCELLED", "cancelled")}
        rows = (await talk.http.get("/api/admin/tasks", params={"code": "CANCELLED"})).json()["tasks"]
        assert [(row["status"], row["code"]) for row in rows] == [("cancelled", "CANCELLED")] * 5
