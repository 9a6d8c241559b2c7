"""Each error that the PRD names, and its promises around them, over real HTTP with raw version 1 workers."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from tests.support.talk import Talk

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]


async def test_prd_task_timeout_while_executing(shared_gateway: Start) -> None:
    async with shared_gateway(task_timeout_ms=300) as talk, talk.worker() as worker:
        call = talk.sync()
        await worker.take()
        answer = await call
        assert (answer.status_code, answer.json()["error"]) == (500, "Task timeout")


async def test_prd_task_timeout_while_queued(shared_gateway: Start) -> None:
    async with shared_gateway(task_timeout_ms=300) as talk, talk.worker() as worker:
        await talk.submit()
        await worker.take()
        answer = await talk.sync()
        assert (answer.status_code, answer.json()["error"]) == (500, "Task timeout")


async def test_prd_a_timed_out_task_is_not_tried_again(shared_gateway: Start) -> None:
    async with shared_gateway(task_timeout_ms=300) as talk, talk.worker() as first, talk.worker() as second:
        call = talk.sync()
        task = await first.take()
        await call
        await first.answer(task, {})
        assert await first.idle()
        assert await second.idle()


async def test_prd_queue_wait_timeout(gateway: Start) -> None:
    async with gateway(max_queue_wait_ms=200) as talk, talk.worker() as worker:
        running = await talk.submit()
        task = await worker.take()
        answer = await talk.sync()
        assert answer.status_code == 500
        body = answer.json()
        assert (body["error"], body["code"]) == ("Task timeout", "QUEUE_TIMEOUT")
        await worker.answer(task, {})
        assert (await talk.reaches(running, "completed"))["result"] == {}


async def test_prd_queue_is_full(gateway: Start) -> None:
    async with gateway(max_queue_length=1) as talk, talk.worker() as worker:
        talk.sync()
        await worker.take()
        talk.sync()
        await talk.waiting(1)
        answer = await talk.sync()
        assert (answer.status_code, answer.json()["error"]) == (503, "Queue is full")


async def test_prd_no_worker_available(shared_gateway: Start) -> None:
    async with shared_gateway() as talk:
        answer = await talk.sync()
        assert (answer.status_code, answer.json()["error"]) == (503, "No worker available")


async def test_prd_the_workers_own_error(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        call = talk.sync()
        await worker.answer(await worker.take(), error="rate limited upstream")
        answer = await call
        assert (answer.status_code, answer.json()["error"]) == (500, "rate limited upstream")


async def test_prd_a_null_or_missing_or_empty_error_is_success(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        for more in ({"error": None}, {}, {"error": ""}):
            call = talk.sync()
            await worker.answer(await worker.take(), {"ok": 1}, **more)
            answer = await call
            assert (answer.status_code, answer.json()) == (200, {"ok": 1})


async def test_prd_a_body_that_is_no_json_is_refused(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        answer = await talk.http.post(
            "/api/openai", content=b"{oops", headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("The body is not valid JSON")
        assert await worker.idle()


async def test_prd_the_body_reaches_the_worker_as_it_came(shared_gateway: Start) -> None:
    body = {"model": "test-model", "messages": [], "stream": False, "x": {"y": [1.5, "é", None]}, "z": 10**18}
    async with shared_gateway() as talk, talk.worker() as worker:
        call = talk.http.post("/api/openai", json=body)
        waiting = talk.later(call)
        task = await worker.take()
        assert task["payload"] == body
        await worker.answer(task, body)
        assert (await waiting).json() == body


async def test_prd_a_worker_runs_one_task_at_a_time(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        for _ in range(3):
            await talk.submit()
        first = await worker.take()
        assert await worker.idle()
        await worker.answer(first, {})
        await worker.take()
        assert await worker.idle()


async def test_prd_an_async_task_of_a_lost_sole_worker_waits_for_another(shared_gateway: Start) -> None:
    async with shared_gateway() as talk:
        async with talk.worker() as worker:
            task_id = await talk.submit()
            await worker.take()
            await worker.leave()
        assert (await talk.reaches(task_id, "queued"))["position"] == 1
        async with talk.worker() as another:
            task = await another.take()
            assert task["taskId"] == task_id
            await another.answer(task, {"again": True})
            assert (await talk.reaches(task_id, "completed"))["result"] == {"again": True}
