"""Tasks that go on to another model, as callers meet it."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from openai import AsyncOpenAI
from tests.support.rawworkers import RawWorker
from tests.support.serving import until
from tests.support.talk import Talk

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
MODELS = {"a": {"fallbacks": ["b"], "fallback_after_ms": 0}}
CHAT: dict[str, Any] = {"model": "a", "messages": [{"role": "user", "content": "hi"}]}


def failure(code: str, *, retryable: bool) -> dict[str, Any]:
    return {"error": "it broke", "errorInfo": {"code": code, "retryable": retryable}}


@pytest.mark.parametrize(
    ("code", "retryable"),
    [("UPSTREAM_ERROR", True), ("MODEL_TOO_BUSY", True), ("UPSTREAM_AUTH", False), ("WORKER_ERROR", False)],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_caller_gets_the_other_models_answer(
    gateway: Start, code: str, retryable: bool, streamed: bool
) -> None:
    async with gateway(models=MODELS) as talk, talk.worker2(["a"]) as first, talk.worker2(["b"]) as second:
        lines = (await talk.http.get("/metrics")).text.splitlines()
        told = [line for line in lines if line.startswith("fairlane_fallbacks_total{")]
        assert len(told) == 2, "failed and unavailable"
        assert all('model="a"' in line and 'to="b"' in line and line.endswith(" 0.0") for line in told)
        call = talk.later(talk.http.post("/v1/chat/completions", json={**CHAT, "stream": streamed}))
        await first.answer(await first.take(), None, **failure(code, retryable=retryable))
        task = await second.take()
        assert (task["model"], task["payload"]["model"]) == ("b", "b")
        await second.answer(task, {"content": "from b"})
        answer = await call
        assert answer.status_code == 200
        if streamed:
            assert '"content":"from b"' in answer.text
            last = answer.text.split("\n\n")[-3]
            assert '"model":"b"' in last
        else:
            assert answer.json()["model"] == "b"
            assert answer.headers["x-fairlane-model"] == "b"
        lines = (await talk.http.get("/metrics")).text.splitlines()
        [counted] = [
            line for line in lines if line.startswith("fairlane_fallbacks_total{") and line.endswith(" 1.0")
        ]
        assert 'cause="failed"' in counted


@pytest.mark.parametrize("code", ["BAD_REQUEST", "CONTEXT_LENGTH", "CONTENT_FILTERED"])
async def test_what_is_the_callers_fault_ends(gateway: Start, code: str) -> None:
    async with gateway(models=MODELS) as talk, talk.worker2(["a"]) as first, talk.worker2(["b"]) as second:
        call = talk.later(talk.http.post("/api/openai", json=CHAT))
        await first.answer(await first.take(), None, **failure(code, retryable=False))
        assert (await call).json()["code"] == code
        await second.nothing_more()


async def test_after_the_first_token_it_is_too_late(gateway: Start) -> None:
    async with gateway(models=MODELS) as talk, talk.worker2(["a"]) as first, talk.worker2(["b"]) as second:
        async with talk.events("/api/openai", json={**CHAT, "stream": True}) as reader:
            task = await first.take()
            await first.chunk(task, "half ")
            await first.answer(task, None, **failure("UPSTREAM_ERROR", retryable=True))
            seen = [frame.event for frame in await reader.rest()]
        assert seen[-1] == "error"
        await second.nothing_more()


async def test_where_nobody_offers_the_model_another_one_runs_and_its_name_is_told(gateway: Start) -> None:
    async with (
        gateway(models=MODELS) as talk,
        talk.worker2(["b"]) as second,
        AsyncOpenAI(base_url=f"{talk.served.url}/v1", api_key="x", max_retries=0) as client,
    ):
        call = talk.later(
            client.chat.completions.create(model="a", messages=[{"role": "user", "content": "hi"}])
        )
        await second.answer(await second.take(), {"content": "from b"})
        assert (await call).model == "b"
        task_id = await talk.submit(**CHAT)
        assert (await talk.poll(task_id))["model"] == "b"
        await second.answer(await second.take(), {"content": "again"})
        done = await talk.reaches(task_id, "completed")
        assert (done["requestedModel"], done["model"]) == ("a", "b")


async def test_tasks_that_wait_go_on_when_their_last_worker_leaves(gateway: Start) -> None:
    async with gateway(models=MODELS) as talk, talk.worker2(["b"], slots=2) as second:
        async with talk.worker2(["a"]) as first:
            running = await talk.submit(**CHAT)
            held = await first.take()
            waiting = [await talk.submit(**CHAT) for _ in range(3)]
            assert held["taskId"] == running
        served: list[str] = []
        while len(served) < 4:
            task = await second.take()
            served.append(task["taskId"])
            await second.answer(task, {"content": "from b"})
        assert set(served) == {running, *waiting}
        for task_id in served:
            assert (await talk.reaches(task_id, "completed"))["model"] == "b"


async def test_a_model_that_is_paused_by_an_operator_gives_its_tasks_away(gateway: Start) -> None:
    async with gateway(models=MODELS) as talk, talk.worker2(["a"]) as first, talk.worker2(["b"]) as second:
        await talk.submit(**CHAT)
        await first.take()
        waiting = await talk.submit(**CHAT)
        changed = await talk.http.patch("/api/admin/models/a", json={"paused": True})
        assert changed.status_code == 200, changed.text
        task = await second.take()
        assert task["taskId"] == waiting
        await second.answer(task, {})


async def test_a_model_that_does_not_begin_in_time_is_left_and_its_worker_told_to_stop(
    gateway: Start,
) -> None:
    models = {"a": {"fallbacks": ["b"], "first_output_ms": 100}}
    async with gateway(models=models) as talk, talk.worker2(["a"]) as first, talk.worker2(["b"]) as second:
        call = talk.later(talk.http.post("/api/openai", json=CHAT))
        task = await first.take()
        other = await second.take()
        assert other["taskId"] == task["taskId"]
        assert (await first.skip_to("cancel"))["taskId"] == task["taskId"]
        await first.chunk(task, "late")
        await second.answer(other, {"content": "from b"})
        assert (await call).json()["content"] == "from b"
        await first.answer(task, {"content": "late"})


async def test_a_dead_primary_is_survived_without_a_hand(gateway: Start) -> None:
    """Every call of a burst is answered by the fallback; nothing is answered twice."""
    async with (
        gateway(models=MODELS) as talk,
        talk.worker2(["a"], slots=4) as first,
        talk.worker2(["b"], slots=4) as second,
    ):
        served: list[str] = []

        async def always_fails(worker: RawWorker) -> None:
            while True:
                await worker.answer(await worker.take(), None, **failure("UPSTREAM_ERROR", retryable=True))

        async def answers(worker: RawWorker) -> None:
            while True:
                task = await worker.take()
                served.append(task["taskId"])
                await worker.answer(task, {"content": "from b"})

        talk.later(always_fails(first))
        talk.later(answers(second))
        calls = [talk.later(talk.http.post("/api/openai", json=CHAT)) for _ in range(50)]
        done = await asyncio.gather(*calls)
        assert {answer.status_code for answer in done} == {200}
        assert len(served) == len(set(served)) == 50
        await until(lambda: not talk.served.gateway.dispatcher.attempts, "all attempts to be over")


async def test_operators_find_tasks_by_what_was_asked_and_by_what_answered(gateway: Start) -> None:
    routes = {"chat": {"model": "b"}}
    async with gateway(models=MODELS, routes=routes) as talk, talk.worker2(["b"]) as worker:

        async def found(**query: str) -> set[str]:
            answer = await talk.http.get("/api/admin/tasks", params=query)
            return {row["taskId"] for row in answer.json()["tasks"]}

        fallen, routed, plain = [await talk.submit(model=name) for name in ("a", "chat", "b")]
        await worker.answer(await worker.take(), None, **failure("WORKER_ERROR", retryable=False))
        for tasks in [{"status": "failed"}, {}]:
            assert await found(requestedModel="a", **tasks) == {fallen}
            assert await found(model="a", **tasks) == set()
        assert await found(requestedModel="chat") == {routed}
        assert await found(requestedModel="b") == {plain}
        assert await found(model="b") == {fallen, routed, plain}
        assert await found(requestedModel="nobody") == set()
