"""The acceptance criteria of the requirements document, one test each, by its number.

Over real HTTP, with raw version 1 workers.
"""

import asyncio
import json
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from tests.support.processes import GatewayProcess
from tests.support.serving import http_client, until
from tests.support.talk import Talk
from websockets.asyncio.client import connect

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
MANY = [f"task {number}" for number in range(6)]


# ---- 1 a sync call ----------


async def test_r1_1_the_connection_is_held_and_the_result_returned(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "temperature": 0.5}
        call = talk.sync(**body)
        task = await worker.take()
        assert task == {"type": "task", "taskType": "openaiLike", "taskId": task["taskId"], "payload": body}
        assert UUID.fullmatch(task["taskId"])
        assert not call.done()
        await worker.answer(task, {"content": "Hi", "usage": {"tokens": 3}}, error=None)
        answer = await call
        assert answer.status_code == 200
        assert answer.json() == {"content": "Hi", "usage": {"tokens": 3}}
        assert answer.headers["content-type"] == "application/json"


async def test_r1_2_a_task_result_resolves_the_waiting_call(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        for result in ({"a": 1}, [1, 2], "text", 7, False):
            call = talk.sync()
            await worker.answer(await worker.take(), result)
            answer = await call
            assert (answer.status_code, answer.json()) == (200, result)


async def test_r1_3_a_workers_error_is_a_500_with_its_details(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        call = talk.sync()
        task = await worker.take()
        await worker.answer(task, error="the model exploded: 42")
        answer = await call
        assert answer.status_code == 500
        assert answer.json() == {
            "error": "the model exploded: 42",
            "code": "WORKER_ERROR",
            "category": "worker",
            "taskId": task["taskId"],
            "docsUrl": "/docs#WORKER_ERROR",
        }


async def test_r1_4_a_result_goes_to_the_call_with_its_task_id(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as first, talk.worker() as second:
        calls = {name: talk.sync(name=name) for name in ("x", "y")}
        tasks = [(first, await first.take()), (second, await second.take())]
        for worker, task in reversed(tasks):
            await worker.answer(task, {"for": task["payload"]["name"]})
        for name, call in calls.items():
            assert (await call).json() == {"for": name}


async def test_r1_4_a_result_with_an_unknown_or_foreign_task_id_reaches_nobody(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as first, talk.worker() as second:
        call = talk.sync()
        other = talk.sync()
        task, foreign = await first.take(), await second.take()
        await first.answer({"taskId": "no-such-task"}, {"wrong": 1})
        await first.answer(foreign, {"wrong": 2})
        await first.answer(task, {"right": 1})
        assert (await call).json() == {"right": 1} or (await other).json() == {"right": 1}
        await second.answer(foreign, {"right": 2})
        assert {str((await call).json()), str((await other).json())} == {"{'right': 1}", "{'right': 2}"}


# ---- 2 time-outs ----------


async def test_r2_1_a_task_beyond_task_timeout_ms_ends_with_task_timeout(shared_gateway: Start) -> None:
    async with shared_gateway(task_timeout_ms=300) as talk, talk.worker() as worker:
        call = talk.sync()
        task = await worker.take()
        assert (await call).json()["error"] == "Task timeout"
        assert (await talk.poll(task["taskId"]))["error"] == "Task timeout"


async def test_r2_1_the_timeout_covers_the_wait_in_the_queue(shared_gateway: Start) -> None:
    async with shared_gateway(task_timeout_ms=300) as talk, talk.worker() as worker:
        await talk.submit()
        await worker.take()
        answer = await talk.sync()
        assert (answer.status_code, answer.json()["error"]) == (500, "Task timeout")


async def test_r2_2_the_caller_of_a_late_task_gets_500_and_task_timeout(shared_gateway: Start) -> None:
    async with shared_gateway(task_timeout_ms=300) as talk, talk.worker() as worker:
        call = talk.sync()
        task = await worker.take()
        answer = await call
        assert answer.status_code == 500
        assert answer.json() == {
            "error": "Task timeout",
            "code": "TOTAL_TIMEOUT",
            "category": "timeout_or_capacity",
            "waitedFor": "model",
            "taskId": task["taskId"],
        }


async def test_r2_3_a_timed_out_task_leaves_nothing_pending(gateway: Start) -> None:
    async with gateway(task_timeout_ms=300, task_result_ttl_ms=1000) as talk, talk.worker() as worker:
        call = talk.sync()
        task = await worker.take()
        await call
        counts = (await talk.state())["counts"]
        assert (counts["queued"], counts["queuedBytes"], counts["failed"]) == (0, 0, 1)
        await worker.answer(task, {"late": True})

        async def idle() -> bool:
            return not any(worker["running"] for worker in (await talk.state())["workers"])

        await until(idle)


async def test_r2_4_a_result_after_the_timeout_is_ignored_and_the_worker_goes_on(
    shared_gateway: Start,
) -> None:
    async with shared_gateway(min_task_timeout_ms=100) as talk, talk.worker() as worker:
        call = talk.sync(timeout=100)
        late = await worker.take()
        assert (await call).json()["error"] == "Task timeout"
        await worker.answer(late, {"late": True})
        following = talk.sync()
        await worker.answer(await worker.take(), {"fine": True})
        assert (await following).json() == {"fine": True}
        body = await talk.poll(late["taskId"])
        assert (body["status"], body["error"]) == ("failed", "Task timeout")


# ---- 3 the queue's length ----------


async def test_r3_1_tasks_beyond_max_queue_length_are_refused_at_once(gateway: Start) -> None:
    async with gateway(max_queue_length=2) as talk, talk.worker() as worker:
        await talk.submit()
        await worker.take()
        await talk.submit()
        await talk.submit()
        answer = await talk.http.post("/api/openai", json={"async": True})
        assert answer.status_code == 503
        assert (await talk.state())["counts"]["queued"] == 2


async def test_r3_2_a_full_queue_is_a_503_and_queue_is_full(shared_gateway: Start) -> None:
    async with shared_gateway(max_queue_length=1) as talk, talk.worker() as worker:
        running = talk.sync()
        await worker.take()
        waiting = talk.sync()
        await talk.waiting(1)
        answer = await talk.sync()
        assert answer.status_code == 503
        body = answer.json()
        assert body.pop("retryAfterMs") >= 1000
        assert body == {"error": "Queue is full", "code": "QUEUE_FULL"}
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert not running.done()
        assert not waiting.done()


async def test_r3_3_a_dequeued_task_makes_room_for_a_new_one(shared_gateway: Start) -> None:
    async with shared_gateway(max_queue_length=1) as talk, talk.worker() as worker:
        await talk.submit(name="first")
        first = await worker.take()
        await talk.submit(name="second")
        assert (await talk.http.post("/api/openai", json={"async": True})).status_code == 503
        await worker.answer(first, {})
        assert (await worker.take())["payload"]["name"] == "second"
        await talk.submit(name="third")
        assert (await talk.http.post("/api/openai", json={"async": True})).status_code == 503


# ---- 4 no worker ----------


async def test_r4_1_without_workers_new_tasks_are_refused_at_once(gateway: Start) -> None:
    async with gateway() as talk:
        for way in ({}, {"async": True}, {"stream": True}):
            answer = await talk.http.post("/api/openai", json=way)
            assert answer.status_code == 503
        state = await talk.state()
        assert state["counts"]["queued"] == 0
        assert state["tasks"] == []


async def test_r4_2_without_workers_the_answer_is_503_and_no_worker_available(shared_gateway: Start) -> None:
    async with shared_gateway() as talk:
        answer = await talk.sync()
        assert answer.status_code == 503
        body = answer.json()
        assert body.pop("retryAfterMs") >= 1000
        assert body == {"error": "No worker available", "code": "NO_WORKER", "model": "default"}
        assert 1 <= int(answer.headers["retry-after"]) <= 60


# ---- 5 dispatching ----------


async def test_r5_1_a_new_task_goes_at_once_to_an_idle_worker(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        answer = await talk.http.post("/api/openai", json={"async": True, "name": "now"})
        assert (await worker.take())["taskId"] == answer.json()["taskId"]
        assert (await talk.poll(answer.json()["taskId"]))["status"] == "executing"


async def test_r5_2_a_worker_that_becomes_idle_gets_the_next_task_in_order(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        for name in MANY:
            await talk.submit(name=name)
        for name in MANY:
            task = await worker.take()
            assert task["payload"]["name"] == name
            await worker.answer(task, {})


async def test_r5_2_a_worker_that_failed_a_task_gets_the_next_one(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        await talk.submit(name="first")
        await talk.submit(name="second")
        await worker.answer(await worker.take(), error="no")
        assert (await worker.take())["payload"]["name"] == "second"


async def test_r5_3_of_several_idle_workers_exactly_one_gets_the_task(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as first, talk.worker() as second:
        await talk.submit()
        await asyncio.wait(
            takes := [talk.later(first.take()), talk.later(second.take())],
            return_when=asyncio.FIRST_COMPLETED,
        )
        assert [take.done() for take in takes].count(True) == 1
        await talk.submit()
        tasks = await asyncio.gather(*takes)
        assert tasks[0]["taskId"] != tasks[1]["taskId"]


async def test_r5_4_a_dispatched_task_makes_its_worker_busy_and_is_recorded(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        task_id = await talk.submit()
        waiting = await talk.submit()
        assert (await worker.take())["taskId"] == task_id
        assert await worker.idle()
        [shown] = (await talk.state())["workers"]
        assert (shown["running"], shown["slots"]) == (1, 1)
        assert (await talk.poll(task_id))["workerId"] == shown["workerId"]
        assert (await talk.poll(waiting))["status"] == "queued"


# ---- 6 lost workers ----------


async def test_r6_1_the_task_of_a_lost_worker_is_ended(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        call = talk.sync()
        task = await worker.take()
        await worker.leave()
        await call
        body = await talk.poll(task["taskId"])
        assert (body["status"], body["error"]) == ("failed", "Worker disconnected")


async def test_r6_2_a_lost_worker_leaves_the_pool(shared_gateway: Start) -> None:
    async with shared_gateway() as talk:
        async with talk.worker() as worker:
            await talk.workers(1)
            await worker.leave()
            await talk.workers(0)
        answer = await talk.sync()
        assert (answer.status_code, answer.json()["error"]) == (503, "No worker available")


async def test_r6_3_the_caller_waiting_for_a_lost_worker_gets_an_error(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        call = talk.sync()
        task = await worker.take()
        await worker.leave()
        answer = await call
        assert answer.status_code == 500
        assert answer.json() == {
            "error": "Worker disconnected",
            "code": "WORKER_LOST",
            "category": "worker",
            "taskId": task["taskId"],
            "docsUrl": "/docs#WORKER_LOST",
        }


async def test_r6_3_a_lost_workers_task_is_tried_on_another_one_before_any_output(
    shared_gateway: Start,
) -> None:
    async with shared_gateway() as talk, talk.worker() as first:
        call = talk.sync()
        task = await first.take()
        async with talk.worker() as second:
            await talk.workers(2)
            await first.leave()
            again = await second.take()
            assert again == task
            await second.answer(again, {"second": True})
            assert (await call).json() == {"second": True}


# ---- 7 configuration ----------


# ---- 8 the caller's own time-out ----------


async def test_r8_1_a_timeout_in_the_body_replaces_the_default(shared_gateway: Start) -> None:
    async with shared_gateway(min_task_timeout_ms=100) as talk, talk.worker() as worker:
        call = talk.sync(timeout=250)
        task = await worker.take()
        assert "timeout" not in task["payload"]
        answer = await call
        assert (answer.status_code, answer.json()["error"]) == (500, "Task timeout")


async def test_r8_2_a_timeout_above_max_task_timeout_ms_is_lowered_to_it(gateway: Start) -> None:
    limits = {"min_task_timeout_ms": 100, "task_timeout_ms": 200, "max_task_timeout_ms": 300}
    async with gateway(**limits) as talk, talk.worker() as worker:
        call = talk.sync(timeout=86_400_000)
        await worker.take()
        answer = await call
        assert (answer.status_code, answer.json()["error"]) == (500, "Task timeout")


async def test_r8_2_the_default_maximum_is_600000(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker2(["m"]) as worker:
        await talk.warm(worker, "m")
        talk.sync(model="m", timeout=600_001)
        assert 590_000 < (await worker.take())["timeoutMs"] <= 600_000


async def test_r8_3_a_timeout_below_min_task_timeout_ms_is_raised_to_it(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker2(["m"], slots=3) as worker:
        await talk.warm(worker, "m")
        for timeout in (1, -5, 4999.5):
            talk.sync(model="m", timeout=timeout)
            assert 1000 < (await worker.take())["timeoutMs"] <= 5000


async def test_r8_4_without_a_timeout_the_default_holds(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker2(["m"]) as worker:
        await talk.warm(worker, "m")
        talk.sync(model="m")
        assert 50_000 < (await worker.take())["timeoutMs"] <= 60_000


# ---- 9 async ----------


async def test_r9_1_an_async_call_is_answered_at_once_with_the_task_id(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker():
        answer = await talk.http.post("/api/openai", json={"async": True})
        assert answer.status_code == 202
        body = answer.json()
        assert body["status"] == "queued"
        assert UUID.fullmatch(body["taskId"])


async def test_r9_2_an_async_task_is_processed_normally(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        task_id = await talk.submit(name="later")
        task = await worker.take()
        assert task["taskId"] == task_id
        assert task["payload"] == {"messages": [], "name": "later"}
        await worker.answer(task, {"done": True})
        assert (await talk.reaches(task_id, "completed"))["result"] == {"done": True}


@pytest.mark.parametrize("body", [{}, {"async": False}, {"async": None}])
async def test_r9_3_without_async_the_call_waits(shared_gateway: Start, body: dict[str, object]) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        call = talk.sync(**body)
        task = await worker.take()
        assert not call.done()
        await worker.answer(task, {"waited": True})
        answer = await call
        assert (answer.status_code, answer.json()) == (200, {"waited": True})


# ---- 10 polling ----------


async def test_r10_1_a_poll_tells_the_status_at_every_stage(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        await talk.submit()
        running = await worker.take()
        task_id = await talk.submit()
        seen = [(await talk.poll(task_id))["status"]]
        await worker.answer(running, {})
        task = await worker.take()
        seen.append((await talk.poll(task_id))["status"])
        await worker.answer(task, {})
        seen.append((await talk.reaches(task_id, "completed"))["status"])
        assert seen == ["queued", "executing", "completed"]


async def test_r10_2_a_queued_task_shows_when_it_came_and_its_position(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        await talk.submit()
        await worker.take()
        waiting = [await talk.submit() for _ in range(3)]
        for place, task_id in enumerate(waiting, 1):
            body = await talk.poll(task_id)
            assert (body["taskId"], body["status"], body["position"]) == (task_id, "queued", place)
            assert isinstance(body["enqueuedAt"], int)


async def test_r10_3_an_executing_task_shows_its_worker_and_start(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        task_id = await talk.submit()
        await worker.take()
        body = await talk.poll(task_id)
        assert (body["taskId"], body["status"]) == (task_id, "executing")
        assert body["workerId"] == (await talk.state())["workers"][0]["workerId"]
        assert isinstance(body["startedAt"], int)


async def test_r10_4_a_completed_task_shows_its_result_and_end(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        task_id = await talk.submit()
        await worker.answer(await worker.take(), {"deep": {"er": [1, None]}})
        body = await talk.reaches(task_id, "completed")
        assert isinstance(body.pop("completedAt"), int)
        assert body == {"taskId": task_id, "status": "completed", "result": {"deep": {"er": [1, None]}}}


async def test_r10_5_a_failed_task_shows_its_error_and_end(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        task_id = await talk.submit()
        await worker.answer(await worker.take(), error="out of paper")
        body = await talk.reaches(task_id, "failed")
        assert (body["taskId"], body["status"], body["error"]) == (task_id, "failed", "out of paper")
        assert isinstance(body["failedAt"], int)


@pytest.mark.parametrize("task_id", ["xxx", "0", "00000000-0000-4000-8000-000000000000", "%F0%9F%98%80"])
async def test_r10_6_an_id_that_no_gateway_issued_is_a_404_and_task_not_found(
    shared_gateway: Start, task_id: str
) -> None:
    async with shared_gateway() as talk:
        answer = await talk.http.get(f"/api/task/{task_id}")
        assert answer.status_code == 404
        assert answer.json() == {"error": "Task not found", "code": "TASK_NOT_FOUND"}


# ---- 11 keeping results ----------


def test_r11_1_results_are_kept_for_300000_ms_by_default() -> None:
    page = (Path(__file__).parents[3] / "docs" / "settings.md").read_text()
    (row,) = [line for line in page.splitlines() if "`TASK_RESULT_TTL_MS`" in line]
    assert "| `5m` |" in row


@pytest.mark.parametrize("end", [{"result": {"a": 1}}, {"error": "no"}])
async def test_r11_1_an_ended_task_is_kept_for_task_result_ttl_ms(
    gateway: Start, end: dict[str, object]
) -> None:
    async with gateway(task_result_ttl_ms=1500) as talk, talk.worker() as worker:
        task_id = await talk.submit()
        await worker.answer(await worker.take(), **end)
        begun = asyncio.get_running_loop().time()
        await talk.reaches(task_id, "completed", "failed")

        async def expired() -> bool:
            return (await talk.http.get(f"/api/task/{task_id}")).status_code == 404

        await until(expired)
        assert asyncio.get_running_loop().time() - begun > 1


async def test_r11_2_when_the_ttl_expires_nothing_of_the_task_is_left(shared_gateway: Start) -> None:
    async with shared_gateway(task_result_ttl_ms=200) as talk, talk.worker() as worker:
        task_id = await talk.submit()
        await worker.answer(await worker.take(), {"a": 1})

        async def gone() -> bool:
            paths = (f"/api/task/{task_id}", f"/api/task/{task_id}/events", f"/api/admin/tasks/{task_id}")
            return {(await talk.http.get(path)).status_code for path in paths} == {404}

        await until(gone)


async def test_r11_3_an_expired_task_is_a_404_and_task_not_found_or_expired(shared_gateway: Start) -> None:
    async with shared_gateway(task_result_ttl_ms=200) as talk, talk.worker() as worker:
        task_id = await talk.submit()
        await worker.answer(await worker.take(), {"a": 1})

        async def expired() -> bool:
            return (await talk.http.get(f"/api/task/{task_id}")).status_code == 404

        await until(expired)
        answer = await talk.http.get(f"/api/task/{task_id}")
        assert answer.json() == {"error": "Task not found or expired", "code": "TASK_NOT_FOUND"}


@pytest.mark.slow
async def test_r7_a_gateway_as_a_process_obeys_its_environment_and_warns_of_what_it_ignores(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASK_TIMEOUT_MS", "400")
    monkeypatch.setenv("MAX_QUEUE_LENGTH", "lots")
    process = GatewayProcess(tmp_path, redis_url)
    try:
        await process.start()
        async with http_client(process.url) as http, connect(process.ws, proxy=None) as worker:
            call = asyncio.create_task(http.post("/api/openai", json={}))
            await worker.recv()
            assert (await call).json()["error"] == "Task timeout"
            queues = (await http.get("/api/admin/overview")).json()["queues"]
            assert {queue["maxLength"] for queue in queues} == {1000}
        lines = [json.loads(line) for line in process.log.splitlines() if line.startswith("{")]
        [warning] = [line for line in lines if "MAX_QUEUE_LENGTH" in line["event"]]
        assert warning["level"] == "warning"
        assert "TASK_TIMEOUT_MS" not in process.log
    finally:
        await process.stop()
