"""When callers of a gateway that goes are told to come again: at once where another stays, else when this one is gone."""

from pathlib import Path
from typing import Any

import pytest
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


async def test_the_processes_of_one_gateway_go_together_and_count_for_none(
    redis_url: str, tmp_path: Path
) -> None:
    siblings = [Siblings(tmp_path, index, 2) for index in range(2)]
    settings = Settings(data_dir=tmp_path)
    async with (
        open_gateway(settings, redis_url, siblings[0]) as one,
        open_gateway(settings, redis_url, siblings[1]) as two,
    ):
        assert one.replica != two.replica
        assert not await one.replicas.another_stays()
        async with open_gateway(settings, redis_url) as stranger:
            await until(one.replicas.another_stays, "the stranger to be seen")
            assert await stranger.replicas.another_stays()
