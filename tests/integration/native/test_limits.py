"""Full queues, long waits, missing models: refused or ended with a reason, and a hint when to come again."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx2
import pytest
from tests.support.talk import Talk

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]


def says_when(answer: httpx2.Response) -> bool:
    """Whether a 429 or 503 tells when to come again, in header and body alike."""
    seconds, exact = int(answer.headers["retry-after"]), int(answer.headers["retry-after-ms"])
    return 1 <= seconds <= 60 and exact <= seconds * 1000


async def test_a_refused_task_leaves_nothing(gateway: Start) -> None:
    async with gateway(max_queue_length=1) as talk, talk.worker() as worker:
        await talk.submit()
        await worker.take()
        await talk.submit()
        made = talk.served.gateway
        before = sorted(await made.link.command("KEYS", "*"))
        for way in ({"async": True}, {}, {"stream": True}):
            answer = await talk.http.post("/api/openai", json={"mode": "batch", **way})
            assert (answer.status_code, answer.json()["error"]) == (503, "Queue is full")
        assert sorted(await made.link.command("KEYS", "*")) == before


async def test_too_many_queued_bytes_are_a_full_queue(gateway: Start) -> None:
    async with gateway(max_queued_bytes=40_000) as talk, talk.worker() as worker:
        await talk.submit()
        await worker.take()
        first = await talk.http.post("/api/openai", json={"async": True, "x": "y" * 30_000})
        second = await talk.http.post("/api/openai", json={"async": True, "x": "y" * 30_000})
        assert (first.status_code, second.status_code) == (202, 503)
        assert second.json()["error"] == "Queue is full"
        assert says_when(second)


async def test_a_queues_own_wait_ends_with_queue_timeout_in_every_reading(gateway: Start) -> None:
    queues = {
        f"{tier}_{mode}": {"tier": tier, "mode": mode, "max_wait_ms": 300 if tier == "free" else None}
        for tier in ("paid", "free")
        for mode in ("stream", "batch", "vision")
    }
    async with gateway(queues=queues) as talk, talk.worker() as worker:
        await talk.submit()
        await worker.take()
        call = talk.sync()
        stream = talk.later(talk.http.post("/api/openai", json={"stream": True}))
        polled = await talk.submit()
        paid = await talk.http.post("/api/openai", json={"async": True}, headers={"X-Fairlane-Tier": "paid"})
        answer = await call
        assert answer.status_code == 500
        assert (answer.json()["error"], answer.json()["code"]) == ("Task timeout", "QUEUE_TIMEOUT")
        body = await talk.reaches(polled, "failed")
        assert (body["error"], body["code"]) == ("Task timeout", "QUEUE_TIMEOUT")
        assert '"code":"QUEUE_TIMEOUT"' in (await stream).text.replace('": "', '":"')
        assert (await talk.poll(paid.json()["taskId"]))["status"] == "queued"


async def test_a_model_that_no_worker_offers_is_no_worker_available(gateway: Start) -> None:
    async with gateway(models={"configured": {}}) as talk, talk.worker2(["other"]):
        for model in ("unknown", "configured"):
            answer = await talk.sync(model=model)
            assert (answer.status_code, answer.json()["error"]) == (503, "No worker available")
            assert says_when(answer)


async def test_a_version_1_worker_is_away_for_as_long_as_it_was(gateway: Start) -> None:
    async with gateway() as talk, talk.worker2(["other"]):
        async with talk.worker():
            await talk.workers(2)
        await talk.workers(1)
        native = await talk.sync(model="m")
        openai = await talk.http.post("/v1/chat/completions", json={"model": "m", "messages": []})
        for answer in (native, openai):
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) < 10  # which it is where none was seen
        assert native.json()["code"] == openai.json()["error"]["code"] == "NO_WORKER"
        assert openai.json()["error"]["param"] == "model"
        assert native.json()["model"] == "m"


async def test_on_v1_an_unknown_model_is_a_404_and_a_configured_one_a_503(gateway: Start) -> None:
    async with gateway(models={"configured": {}}) as talk, talk.worker2(["other"]):
        answers: dict[str, Any] = {}
        for model in ("unknown", "configured"):
            body: dict[str, Any] = {"model": model, "messages": []}
            answers[model] = await talk.http.post("/v1/chat/completions", json=body)
        assert answers["unknown"].status_code == 404
        assert answers["unknown"].json()["error"]["code"] == "model_not_found"
        assert answers["configured"].status_code == 503
        assert says_when(answers["configured"])


async def test_a_models_concurrency_holds_whatever_the_slots(gateway: Start) -> None:
    async with gateway(models={"m": {"concurrency": 1}}) as talk, talk.worker2(["m"], slots=4) as worker:
        for _ in range(2):
            await talk.submit(model="m")
        first = await worker.take()
        assert await worker.idle()
        await worker.answer(first, {})
        await worker.take()
