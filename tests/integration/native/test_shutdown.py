"""When callers of a gateway that goes are told to come again: at once where another stays, else when this one is gone."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.support.servers import Server
from tests.support.serving import until
from tests.support.talk import Talk, talking

from fairlane.gateway.metrics.siblings import Siblings
from fairlane.gateway.runtime import open_gateway
from fairlane.gateway.settings import Settings

pytestmark = pytest.mark.anyio


async def refused(talk: Talk, **body: Any) -> int:
    """The ms after which a gateway that drains says to come again."""
    answer = await talk.http.post("/api/openai", json={"messages": [], **body})
    assert (answer.status_code, answer.json()["code"]) == (503, "GATEWAY_STOPPING")
    chat = await talk.http.post("/v1/chat/completions", json={"model": "m", "messages": []})
    assert 1000 <= int(chat.headers["retry-after-ms"]) <= int(answer.headers["retry-after-ms"])
    assert "x-should-retry" not in chat.headers
    return int(answer.headers["retry-after-ms"])


async def test_who_drains_beside_another_replica_says_to_come_again_in_a_second(
    redis_url: str, tmp_path: Path
) -> None:
    async with talking(redis_url, tmp_path / "a", drain_ms=30_000) as a, a.worker() as worker:
        a.sync()
        task = await worker.take()  # what runs delays the shutdown
        async with talking(redis_url, tmp_path / "b", drain_ms=30_000) as b, b.worker() as other:
            await a.replicas(2)
            draining = a.later(a.served.gateway.drain())

            async def soon() -> bool:
                return await refused(a) == 1000

            await until(soon, "the look at the others")
            b.sync()
            await other.take()
            assert (await b.http.get("/readyz")).status_code == 200
        await worker.answer(task, {})
        await draining


async def test_who_drains_alone_says_how_long_it_may_take(redis_url: str, tmp_path: Path) -> None:
    async with talking(redis_url, tmp_path / "b", drain_ms=0) as b:
        async with talking(redis_url, tmp_path / "a", drain_ms=30_000) as a, a.worker() as worker:
            await b.replicas(2)
        await b.replicas(1)  # it has left at once, and not when its entry expires
    async with talking(redis_url, tmp_path / "a", drain_ms=30_000) as a, a.worker() as worker:
        a.sync()
        task = await worker.take()
        draining = a.later(a.served.gateway.drain())
        await until(lambda: a.served.gateway.tasks.lifecycle.draining, "the drain to begin")
        assert 20_000 < await refused(a) <= 30_000
        await worker.answer(task, {})
        await draining


async def test_a_waiting_call_is_served_by_another_replica_while_its_gateway_drains(
    redis_url: str, tmp_path: Path
) -> None:
    """Its client could not resume it elsewhere: the task keeps its place, and the answer passes through this gateway."""
    chat = {"model": "m", "messages": []}
    async with (
        talking(redis_url, tmp_path / "a", drain_ms=30_000) as a,
        talking(redis_url, tmp_path / "b", drain_ms=30_000) as b,
    ):
        await a.replicas(2)
        async with b.worker2(["m"]) as worker:
            b.sync(model="m")
            first = await worker.take()
            stream = a.later(a.http.post("/v1/chat/completions", json={**chat, "stream": True}))
            body = a.later(a.http.post("/v1/chat/completions", json=chat))
            await a.waiting(2)
            draining = a.later(a.served.gateway.drain())
            await until(lambda: a.served.gateway.tasks.lifecycle.peer_available, "the look at the others")
            await worker.answer(first, {})
            for _ in range(2):
                await worker.answer(await worker.take(), "served")
            assert '"content":"served"' in (await stream).text
            assert (await body).json()["choices"][0]["message"]["content"] == "served"
            await draining


async def test_a_call_that_is_not_served_in_time_finds_its_task_by_its_key(
    redis_url: str, tmp_path: Path
) -> None:
    chat, key = {"model": "m", "messages": []}, {"Idempotency-Key": "once"}
    async with (
        talking(redis_url, tmp_path / "a", drain_ms=300) as a,
        talking(redis_url, tmp_path / "b") as b,
        b.worker2(["m"]) as worker,
    ):
        await a.replicas(2)
        b.sync(model="m")
        first = await worker.take()
        stream = a.later(a.http.post("/v1/chat/completions", json={**chat, "stream": True}, headers=key))
        await a.waiting(1)
        await a.served.gateway.drain()
        assert '"code":"GATEWAY_STOPPING"' in (await stream).text
        again = b.later(b.http.post("/v1/chat/completions", json={**chat, "stream": True}, headers=key))
        await worker.answer(first, {})
        task = await worker.take()
        assert task["taskId"] == (await stream).headers["x-task-id"]
        await worker.answer(task, "served")
        assert '"content":"served"' in (await again).text


async def test_a_shutdown_does_not_wait_for_a_redis_that_is_down(own_redis: Server, tmp_path: Path) -> None:
    async with (
        talking(own_redis.url, tmp_path, drain_ms=60_000, redis_timeout_ms=200) as talk,
        talk.worker() as worker,
    ):
        talk.sync()
        await worker.take()
        with own_redis.frozen():
            async with asyncio.timeout(20):
                await talk.served.gateway.drain()


async def test_the_processes_of_one_gateway_go_together_and_count_for_none(
    redis_url: str, tmp_path: Path
) -> None:
    siblings = [Siblings(tmp_path, index, 2) for index in range(2)]
    settings = Settings(data_dir=tmp_path)
    async with (
        open_gateway(settings, [redis_url], siblings[0]) as one,
        open_gateway(settings, [redis_url], siblings[1]) as two,
    ):
        assert one.replica != two.replica
        assert not await one.replicas.another_stays()
        async with open_gateway(settings, [redis_url]) as stranger:
            await until(one.replicas.another_stays, "the stranger to be seen")
            assert await stranger.replicas.another_stays()
