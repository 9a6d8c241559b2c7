"""What a native call may say beside its payload, and what the answers to `async` and polls hold."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.support.stored import kept_ms, set_in_model
from tests.support.talk import RawWorker, Talk

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]

LATE = 3000
"""Milliseconds that a task may have waited for its grant: its worker is told what is left of the timeout."""
PLACE = {"position", "estimatedWaitMs", "estimatedWaitLowMs", "estimatedWaitHighMs"}
ACCEPTED = {"taskId", "status", *PLACE, "pollAfterMs", "streamUrl", "statusUrl"}
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]


async def test_an_async_call_is_answered_with_202_and_these_fields(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        await learn(talk, worker)
        await talk.submit()
        for place in (1, 2):
            answer = await talk.http.post("/api/openai", json={"async": True})
            assert answer.status_code == 202
            body = answer.json()
            task_id = body["taskId"]
            assert set(body) == ACCEPTED
            assert (body["status"], body["position"]) == ("queued", place)
            assert body["statusUrl"] == f"/api/task/{task_id}"
            assert body["streamUrl"].startswith(f"/api/task/{task_id}/events?token=")
            assert body["pollAfterMs"] in (3000, 5000, 10_000, 20_000)
            assert isinstance(body["estimatedWaitMs"], int)
            assert answer.headers["location"] == f"/api/task/{task_id}"
            assert answer.headers["x-task-id"] == task_id


async def test_async_beats_stream(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        answer = await talk.http.post("/api/openai", json={"async": True, "stream": True})
        assert (answer.status_code, set(answer.json()) - {"estimating"}) == (202, ACCEPTED)
        assert (await worker.take())["payload"] == {"stream": True}


async def learn(talk: Talk, worker: RawWorker) -> None:
    """Let a first task complete, from which the gateway learns how long one runs."""
    task_id = await talk.submit()
    await worker.answer(await worker.take(), {})
    await talk.reaches(task_id, "completed")


async def test_a_wait_is_null_until_something_has_been_learnt(gateway: Start) -> None:
    async with gateway() as talk, talk.worker() as worker:
        await talk.submit()
        task = await worker.take()
        answer = (await talk.http.post("/api/openai", json={"async": True})).json()
        polled = await talk.poll(answer["taskId"])
        async with talk.events(answer["streamUrl"]) as events:
            told = [answer, polled, (await events.next()).data]
            for place in told:
                assert (place["position"], place["estimating"]) == (1, True)
                assert {place[name] for name in PLACE - {"position"}} == {None}
            behind = await talk.submit()
            async with talk.events(f"/api/task/{behind}/events") as later:
                assert (await later.next()).data["estimatedWaitMs"] is None
                await worker.answer(task, {})
                place = (await later.until("queued"))[-1].data
                assert "estimating" not in place
                low, high = place["estimatedWaitLowMs"], place["estimatedWaitHighMs"]
                assert 0 <= low <= place["estimatedWaitMs"] <= high


async def test_poll_after_grows_with_the_estimated_wait(gateway: Start) -> None:
    async with gateway(max_queue_length=100) as talk, talk.worker() as worker:
        await talk.submit()
        task = await worker.take()
        first = await talk.submit()
        await set_in_model(talk.served.gateway, "*", mean_ms=6000)
        last = [await talk.submit() for _ in range(29)][-1]
        near, far = await talk.poll(first), await talk.poll(last)
        assert near["estimatedWaitMs"] < far["estimatedWaitMs"]
        assert near["pollAfterMs"] < far["pollAfterMs"] == 20_000
        await worker.answer(task, {})


@pytest.mark.parametrize(
    ("body", "queue"),
    [
        ({}, "free_stream"),
        ({"stream": True}, "free_stream"),
        ({"async": True}, "free_batch"),
        ({"async": True, "stream": True}, "free_stream"),
        ({"mode": "batch"}, "free_batch"),
        ({"mode": "vision"}, "free_vision"),
        ({"async": True, "mode": "stream"}, "free_stream"),
        ({"messages": IMAGE}, "free_vision"),
        ({"async": True, "messages": IMAGE}, "free_vision"),
        ({"messages": IMAGE, "mode": "batch"}, "free_batch"),
        ({"messages": [{"role": "user", "content": "image_url"}]}, "free_stream"),
    ],
)
async def test_the_mode_follows_from_the_call_unless_it_is_said(
    shared_gateway: Start, body: dict[str, Any], queue: str
) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        call = talk.later(talk.http.post("/api/openai", json=body))
        task = await worker.take()
        assert (await talk.row(task["taskId"]))["queue"] == queue
        call.cancel()


async def test_an_image_in_a_generic_tasks_payload_makes_it_vision(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        body = {"type": "look", "payload": {"messages": IMAGE}, "async": True}
        await talk.http.post("/api/tasks", json=body)
        task = await worker.take()
        assert task["taskType"] == "look"
        assert (await talk.row(task["taskId"]))["queue"] == "free_vision"


async def test_the_tier_chooses_the_queue(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        async with talk.client(**{"X-Fairlane-Tier": "paid"}) as paying:
            await paying.post("/api/openai", json={"async": True})
        task = await worker.take()
        assert (await talk.row(task["taskId"]))["queue"] == "paid_batch"


async def test_priority_overtakes_only_within_ones_own_tasks(gateway: Start) -> None:
    async with gateway() as talk, talk.worker() as worker:
        await talk.submit()
        running = await worker.take()
        async with talk.client(**{"X-Fairlane-User": "other"}) as other:
            await talk.submit(name="mine, low")
            await other.post("/api/openai", json={"async": True, "name": "other"})
            await talk.submit(name="mine, high", priority=5)
        order = []
        for _ in range(3):
            await worker.answer(running, {})
            running = await worker.take()
            order.append(running["payload"]["name"])
        assert order.index("mine, high") < order.index("mine, low")
        assert order.index("other") < 2
        assert "priority" not in running["payload"]


async def test_a_missing_model_is_called_default(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker2(["default"]) as worker:
        await talk.submit()
        task = await worker.take()
        assert task["model"] == "default"
        assert task["payload"] == {"messages": []}


async def test_a_missing_model_is_a_400_where_workers_run_others(gateway: Start) -> None:
    async with gateway() as talk, talk.worker2(["m"]):
        for path, body in (("/api/openai", {}), ("/api/tasks", {"type": "openaiLike", "payload": {}})):
            for way in ({}, {"async": True}, {"stream": True}):
                answer = await talk.http.post(path, json={**body, **way})
                assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
                assert "`model`" in answer.json()["error"]
        named = await talk.http.post("/api/openai", json={"model": "other"})
        assert (named.status_code, named.json()["code"]) == (503, "NO_WORKER")


async def test_the_body_without_our_fields_is_the_payload_and_model_and_stream_stay(
    shared_gateway: Start,
) -> None:
    ours = {
        "async": True,
        "timeout": 9000,
        "mode": "batch",
        "priority": 1,
        "onDisconnect": "continue",
        "resultTtlMs": 1000,
        "metadata": {"a": 1},
    }
    async with shared_gateway() as talk, talk.worker() as worker:
        await talk.http.post("/api/openai", json={"model": "m", "stream": True, "n": 2, **ours})
        assert (await worker.take())["payload"] == {"model": "m", "stream": True, "n": 2}


@pytest.mark.parametrize("payload", [None, 5, "text", [1, 2], {"timeout": 5}, {"metadata": 1}])
async def test_a_generic_tasks_payload_may_be_any_json(shared_gateway: Start, payload: Any) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        body = {"type": "render", "payload": payload}
        call = talk.later(talk.http.post("/api/tasks", json=body))
        task = await worker.take()
        assert (task["taskType"], task["payload"]) == ("render", payload)
        await worker.answer(task, {"ok": 1})
        assert (await call).json() == {"ok": 1}


async def test_streams_get_the_longest_timeout_and_async_tasks_run_that_long(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker2(["default"], slots=2) as worker:
        await talk.warm(worker)
        talk.later(talk.http.post("/api/openai", json={"stream": True}))
        assert 600_000 - LATE < (await worker.take())["timeoutMs"] <= 600_000
        await talk.submit()
        assert 600_000 - LATE < (await worker.take())["timeoutMs"] <= 600_000


async def test_result_ttl_ms_is_obeyed_up_to_a_day(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        for asked, least, most in ((20_000, 5000, 20_000), (10**9, 86_000_000, 86_400_000)):
            task_id = await talk.submit(resultTtlMs=asked)
            await worker.answer(await worker.take(), {})
            await talk.reaches(task_id, "completed")
            assert least < await kept_ms(talk.served.gateway, task_id) <= most


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("timeout", bad) for bad in ("5000", True, [1])],
        *[("mode", bad) for bad in ("fast", 5, ["stream"])],
        *[("priority", bad) for bad in (6, -1, 1.5, "1", True)],
        *[("onDisconnect", bad) for bad in ("stop", 1)],
        *[("resultTtlMs", bad) for bad in (0, -5, "1000", True)],
        *[("async", bad) for bad in ("true", 1)],
        *[("stream", bad) for bad in ("yes", 0)],
        *[("repair", bad) for bad in ("yes", 2)],
        *[("model", bad) for bad in (5, "*", "a\u0000b", "x" * 201, ["m"])],
        ("metadata", {"x": "y" * 5000}),
    ],
)
async def test_an_option_that_makes_no_sense_is_a_400_that_names_it(
    shared_gateway: Start, field: str, value: Any
) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        for path, body in (("/api/openai", {}), ("/api/tasks", {"type": "t", "payload": {}})):
            answer = await talk.http.post(path, json={**body, field: value})
            assert answer.status_code == 400
            assert answer.json()["code"] == "INVALID_REQUEST"
            assert field in answer.json()["error"]
        assert await worker.idle(0.05)


@pytest.mark.parametrize(
    "body", [{}, {"type": "t"}, {"payload": {}}, {"type": "", "payload": {}}, {"type": 1, "payload": {}}]
)
async def test_a_generic_task_needs_type_and_payload(shared_gateway: Start, body: dict[str, Any]) -> None:
    async with shared_gateway() as talk, talk.worker():
        answer = await talk.http.post("/api/tasks", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"].startswith(("type", "payload"))
