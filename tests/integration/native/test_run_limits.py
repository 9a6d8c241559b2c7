"""How long tasks may wait and run when nobody said: each limit has its own code."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.contract.store.store import OPERATOR
from tests.support.talk import Talk

from fairlane.queues.overrides import OverrideStore
from fairlane.streaming.events import WAITED_FOR

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]


async def test_an_async_task_waits_no_longer_than_pending_ttl_ms(gateway: Start) -> None:
    async with gateway(pending_ttl_ms=300) as talk, talk.worker() as worker:
        running = await talk.submit()
        task = await worker.take()
        body = await talk.reaches(await talk.submit(), "failed")
        assert (body["error"], body["code"]) == ("Task timeout", "QUEUE_TIMEOUT")
        await worker.answer(task, {})
        await talk.reaches(running, "completed")


async def test_an_async_task_runs_no_longer_than_worker_timeout_ms_and_its_worker_is_told(
    gateway: Start,
) -> None:
    async with gateway(worker_timeout_ms=300) as talk, talk.worker2(["m"]) as worker:
        task_id = await talk.submit(model="m")
        task = await worker.take()
        assert task["timeoutMs"] <= 300
        frame = await worker.recv()
        assert (frame["type"], frame["taskId"], frame["reason"]) == ("cancel", task_id, "timeout")
        body = await talk.poll(task_id)
        assert (body["status"], body["error"], body["code"]) == ("failed", "Task timeout", "TOTAL_TIMEOUT")


async def test_a_callers_timeout_on_an_async_task_includes_its_wait(gateway: Start) -> None:
    async with gateway(min_task_timeout_ms=100) as talk, talk.worker() as worker:
        await talk.submit()
        await worker.take()
        body = await talk.reaches(await talk.submit(timeout=300), "failed")
        assert (body["error"], body["code"]) == ("Task timeout", "TOTAL_TIMEOUT")


@pytest.mark.parametrize("waited_for", ["queue", "worker", "model"])
async def test_a_timeout_says_in_every_api_what_the_task_waited_for(gateway: Start, waited_for: str) -> None:
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
    timeout = {"x-fairlane-timeout": "1500"}
    async with (
        gateway(min_task_timeout_ms=100, no_worker_grace_ms=0) as talk,
        talk.worker2(["m"], slots=9) as worker,
    ):
        await talk.warm(worker, "m")
        if waited_for != "model":
            await OverrideStore([talk.served.gateway.link], lambda _: 0).set_settings(
                "model", "m", {"paused": True}, OPERATOR
            )
        calls = [
            talk.later(talk.http.post(path, json={"model": "m", **body}, headers=timeout))
            for path, body in (
                ("/v1/chat/completions", chat),
                ("/v1/chat/completions", {**chat, "stream": True}),
                ("/v1/messages", chat),
                ("/v1/messages", {**chat, "stream": True}),
                ("/v1/responses", {"input": "hi"}),
                ("/v1/responses", {"input": "hi", "stream": True}),
            )
        ]
        task_id = await talk.submit(model="m", timeout=1500)
        call = talk.sync(model="m", timeout=1500)
        if waited_for == "worker":
            await talk.waiting(8)
            await worker.ws.close()
            await talk.workers(0)
        native = await call
        assert native.json()["error"] == "Task timeout"
        assert native.json()["waitedFor"] == waited_for
        ran = int(native.headers["x-fairlane-ran-ms"])
        assert (ran > 0) == (waited_for == "model")
        poll = await talk.reaches(task_id, "failed")
        assert (poll["error"], poll["waitedFor"]) == ("Task timeout", waited_for)
        async with talk.events(f"/api/task/{task_id}/events") as reader:
            assert (await reader.rest())[-1].data["waitedFor"] == waited_for
        for call in calls:
            assert f"Task timeout: {WAITED_FOR[waited_for]}" in (await call).text


async def test_a_stream_that_runs_out_of_time_ends_with_its_error(gateway: Start) -> None:
    limits = {"min_task_timeout_ms": 100, "task_timeout_ms": 400, "max_task_timeout_ms": 400}
    async with (
        gateway(**limits) as talk,
        talk.worker() as worker,
        talk.events("/api/openai", json={"stream": True}) as reader,
    ):
        await worker.chunk(await worker.take(), "begun")
        last = (await reader.rest())[-1]
        assert (last.event, last.data["error"], last.data["code"]) == (
            "error",
            "Task timeout",
            "TOTAL_TIMEOUT",
        )


async def test_a_model_that_does_not_begin_in_time_fails_with_its_code(gateway: Start) -> None:
    async with gateway(models={"m": {"first_output_ms": 200}}) as talk, talk.worker2(["m"]) as worker:
        call = talk.sync(model="m")
        task = await worker.take()
        answer = await call
        assert (answer.status_code, answer.json()["code"]) == (500, "FIRST_TOKEN_TIMEOUT")
        frame = await worker.recv()
        assert (frame["type"], frame["taskId"]) == ("cancel", task["taskId"])


async def test_a_model_that_falls_silent_fails_with_its_code(gateway: Start) -> None:
    async with gateway(models={"m": {"silence_ms": 200}}) as talk, talk.worker2(["m"]) as worker:
        call = talk.sync(model="m")
        await worker.chunk(await worker.take(), "and then")
        answer = await call
        assert (answer.status_code, answer.json()["code"]) == (500, "STREAM_STALLED")


async def test_within_the_no_worker_grace_tasks_wait_for_the_worker_to_come_back(gateway: Start) -> None:
    async with gateway(no_worker_grace_ms=60_000) as talk:
        async with talk.worker():
            await talk.workers(1)
        await talk.workers(0)
        call = talk.sync(name="patient")
        await talk.waiting(1)
        async with talk.worker() as worker:
            task = await worker.take()
            assert task["payload"]["name"] == "patient"
            await worker.answer(task, {"a": 1})
            assert (await call).json() == {"a": 1}


async def test_within_the_no_worker_grace_of_a_start_tasks_wait_for_the_worker_of_a_configured_model(
    gateway: Start,
) -> None:
    upstreams = {"one": {"provider": "openai", "base_url": "http://127.0.0.1:9", "models": ["theirs"]}}
    async with gateway(no_worker_grace_ms=60_000, models={"m": {}}, upstreams=upstreams) as talk:
        calls = [talk.sync(model=model) for model in ("m", "theirs")]
        await talk.waiting(2)
        assert (await talk.sync(model="unknown")).status_code == 503
        async with talk.worker2(["m", "theirs"]) as worker:
            for _ in calls:
                await worker.answer(await worker.take(), {"a": 1})
            assert [(await call).json() for call in calls] == [{"a": 1}, {"a": 1}]


async def test_a_failure_has_a_category_wherever_its_code_is(gateway: Start) -> None:
    info = {"code": "STREAM_STALLED", "retryable": False}
    now = ("STREAM_STALLED", "timeout_or_capacity")
    async with gateway() as talk, talk.worker2(["m"]) as worker:
        call = talk.sync(model="m")
        await worker.answer(await worker.take(), error="It is silent", errorInfo=info)
        told = (await call).json()
        assert (told["code"], told["category"]) == now
        task_id = await talk.submit(model="m")
        async with talk.events(f"/api/task/{task_id}/events") as reader:
            await worker.answer(await worker.take(), error="It is silent", errorInfo=info)
            last = (await reader.rest())[-1]
        async with talk.events(f"/api/task/{task_id}/events") as reader:
            assert (await reader.rest())[-1].data == last.data, "a replay is the same"
        poll = await talk.poll(task_id)
        (row, _) = (await talk.http.get("/api/admin/tasks", params={"code": now[0]})).json()["tasks"]
        one = (await talk.http.get(f"/api/admin/tasks/{task_id}")).json()
        for told in (last.data, poll, row, one):
            assert (told["code"], told["category"]) == now
        metrics = (await talk.http.get("/metrics")).text
        assert 'category="timeout_or_capacity",code="STREAM_STALLED"' in metrics
        chat = talk.later(talk.http.post("/v1/chat/completions", json={"model": "m", "messages": []}))
        await worker.answer(await worker.take(), error="It is silent", errorInfo=info)
        body = (await chat).json()["error"]
        assert (body["code"], set(body)) == (now[0], {"message", "type", "param", "code", "docs_url"})
