"""Every refusal says why, and when to come again: computed from what the gateway knows, never a constant."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.servers import Server
from tests.support.serving import until
from tests.support.talk import Talk, talking

from .operating import change, retry_s

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
CHAT: dict[str, Any] = {"model": "m", "messages": []}


async def post(talk: Talk, **body: Any) -> httpx2.Response:
    return await talk.http.post("/api/openai", json={"model": "m", "async": True, **body})


async def test_a_full_queue_says_when_a_place_will_be_free(gateway: Start) -> None:
    async with gateway(max_queue_length=3) as talk, talk.worker2(["m"]) as worker:
        await talk.submit(model="m")
        await worker.take()
        for _ in range(3):
            await talk.submit(model="m")
        refused = await post(talk)
        assert (refused.status_code, refused.json()["code"]) == (503, "QUEUE_FULL")
        assert refused.json()["error"] == "Queue is full"
        assert retry_s(refused) >= 1
        chat = await talk.http.post("/v1/chat/completions", json={**CHAT}, headers=BATCH)
        assert (chat.status_code, chat.json()["error"]["code"]) == (503, "QUEUE_FULL")
        assert retry_s(chat) >= 1


BATCH = {"X-Fairlane-Mode": "batch"}


async def test_a_user_with_too_many_waiting_tasks_is_told_so_and_others_are_taken(gateway: Start) -> None:
    async with gateway(models={"m": {"max_waiting_per_user": 2}}) as talk, talk.worker2(["m"]) as worker:
        await talk.submit(model="m")
        await worker.take()
        for _ in range(2):
            await talk.submit(model="m")
        refused = await post(talk)
        assert (refused.status_code, refused.json()["code"]) == (429, "USER_QUEUE_FULL")
        assert refused.json()["error"] == "2 of your tasks already wait for m (limit 2). Retry later."
        assert retry_s(refused) >= 1
        async with talk.client(**{"X-Fairlane-User": "other"}) as other:
            answer = await other.post("/api/openai", json={"model": "m", "async": True})
            assert answer.status_code == 202


@asynccontextmanager
async def slow_and_adaptive(gateway: Start, **queue: Any) -> AsyncIterator[Talk]:
    """A queue that lets one task through every half second or more, as far as it knows; three wait."""
    queues = {"free_batch": {"admission": "adaptive"}}
    async with gateway(queues=queues) as talk, talk.worker2(["m"]) as worker:
        for _ in range(6):
            await talk.submit(model="m")
        for _ in range(2):
            task = await worker.take()
            await asyncio.sleep(0.5)  # what a task takes here
            await worker.answer(task, {})
        await worker.take()
        await change(talk, "queue", "free_batch", **queue)
        yield talk


async def test_adaptive_admission_refuses_what_would_wait_longer_than_the_queue_allows(
    gateway: Start,
) -> None:
    async with slow_and_adaptive(gateway, max_wait="1s") as talk:
        refused = await post(talk)
        assert (refused.status_code, refused.json()["code"]) == (503, "WAIT_TOO_LONG")
        sentence = refused.json()["error"]
        assert sentence.startswith("The predicted wait of ")
        assert sentence.endswith(" s is longer than the 1.0 s allowed")
        assert retry_s(refused) >= 1
        await change(talk, "queue", "free_batch", max_wait="1m")
        assert (await post(talk)).status_code == 202


async def test_fixed_admission_takes_them_and_their_wait_ends_later(gateway: Start) -> None:
    async with slow_and_adaptive(gateway, max_wait="1s") as talk:
        await change(talk, "queue", "free_batch", admission="fixed")
        answer = await post(talk)
        assert answer.status_code == 202
        assert (await talk.reaches(answer.json()["taskId"], "failed"))["code"] == "QUEUE_TIMEOUT"


async def test_no_worker_says_to_come_again_after_as_long_as_it_has_been_away(gateway: Start) -> None:
    async with gateway(models={"m": {}}) as talk:
        never = await post(talk)
        assert (never.status_code, never.json()["code"]) == (503, "NO_WORKER")
        assert retry_s(never) == 10
        async with talk.worker2(["m"]):
            await talk.submit(model="m")

        async def gone() -> bool:
            return (await post(talk)).status_code == 503

        await until(gone, "the worker to be gone")
        first = retry_s(await post(talk))
        assert first < 5

        async def longer() -> bool:
            return retry_s(await post(talk)) > first

        await until(longer, "a longer wait")


async def test_the_longer_redis_is_away_the_later_callers_are_told_to_come_again(
    own_redis: Server, tmp_path: Path
) -> None:
    async with talking(own_redis.url, tmp_path) as talk, talk.worker():
        own_redis.stop()

        async def down() -> bool:
            return (await post(talk)).status_code == 503

        await until(down, "Redis to be missed")
        first = retry_s(await post(talk))

        async def longer() -> bool:
            refused = await post(talk)
            assert refused.json()["code"] == "STORE_UNAVAILABLE"
            return retry_s(refused) > first

        await until(longer, "a longer wait")
        ready = await talk.http.get("/readyz")
        assert int(ready.headers["retry-after"]) >= 1
        for method, path in (("PATCH", "/api/admin/models/m"), ("GET", "/api/admin/users")):
            answer = await talk.http.request(method, path, json={"paused": True})
            assert (answer.status_code, answer.json()["code"]) == (503, "STORE_UNAVAILABLE")
            assert retry_s(answer) >= 1


async def test_a_gateway_that_goes_says_how_long_it_may_still_take(gateway: Start) -> None:
    async with gateway(drain_ms=20_000) as talk, talk.worker() as worker:
        call = talk.sync()
        task = await worker.take()
        drain = talk.later(talk.served.gateway.drain())
        await until(lambda: talk.served.gateway.tasks.lifecycle.draining)
        refused = await post(talk)
        assert (refused.status_code, refused.json()["code"]) == (503, "GATEWAY_STOPPING")
        assert 5 < retry_s(refused) <= 20
        await worker.answer(task, {})
        await call
        await drain


async def test_a_provider_that_is_too_busy_is_worth_a_call_later_and_no_retry_of_the_sdk(
    gateway: Start,
) -> None:
    """It was tried as often as was sensible; when to come again is as long as that took."""
    async with gateway() as talk, talk.worker2(["m"]) as worker:
        call = talk.later(talk.http.post("/v1/chat/completions", json=CHAT))
        task = await worker.take()
        info = {"code": "MODEL_TOO_BUSY", "retryable": False}
        await worker.answer(task, None, error="busy", errorInfo=info)
        answer = await call
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "MODEL_TOO_BUSY")
        spent = sum(int(answer.headers[f"x-fairlane-{name}-ms"]) for name in ("waited", "ran"))
        assert int(answer.headers["retry-after-ms"]) == max(spent, 1000)
        assert answer.headers["x-should-retry"] == "false"
