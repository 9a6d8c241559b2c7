"""One gateway on several pools."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.support.servers import Server, running_server
from tests.support.serving import until
from tests.support.talk import Talk, talking

from fairlane.gateway.routing.plans import Plans
from fairlane.gateway.settings import Settings
from fairlane.queues.ids import pool_of

from .load import Load, settled

pytestmark = pytest.mark.anyio

MODELS = {"a": {"pool": "main", "concurrency": 2}, "b": {"pool": "pool-2", "concurrency": 2}}
assert Plans(Settings(pools=2, models=MODELS)).placement.of_model("b") == 1


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    with running_server() as one, running_server() as two:
        yield [one, two]


@pytest.fixture
async def talk(servers: list[Server], tmp_path: Path) -> AsyncIterator[Talk]:
    urls = [server.url for server in servers]
    async with talking(urls, tmp_path, pools=2, models=MODELS) as talk:
        yield talk


async def test_a_task_is_in_the_pool_of_its_model_and_found_by_its_id(
    talk: Talk, servers: list[Server]
) -> None:
    async with talk.worker2(["a", "b"], slots=4) as worker:
        ids = [await talk.submit(model=model) for model in "abab"]
        assert [pool_of(task_id) for task_id in ids] == [0, 1, 0, 1]
        for _ in ids:
            await worker.answer(await worker.take(), "done")
        for task_id in ids:
            assert (await talk.reaches(task_id, "completed"))["result"] == "done"
    for pool, server in enumerate(servers):
        with server.client() as client:
            keys = [key.decode() for key in client.keys("*task:*")]
            assert sorted(keys) == sorted(
                f"fairlane:{{{pool}}}:task:{task}" for task in ids if pool_of(task) == pool
            )
    found = (await talk.http.get("/api/admin/tasks")).json()
    assert [row["taskId"] for row in found["tasks"]] == ids[::-1]


async def test_a_worker_of_two_pools_serves_both_within_its_slots(talk: Talk) -> None:
    async with talk.worker2(["a", "b"], slots=1) as worker:
        ids = [await talk.submit(model=model) for model in "aaabbb"]
        served = []
        for _ in ids:
            task = await worker.take()
            assert len(talk.served.gateway.dispatcher.attempts) == 1
            served.append(task["model"])
            await worker.answer(task, "done")
    assert sorted(served) == [*"aaabbb"]
    assert served[:4].count("b") >= 1, "no pool has the worker each time"


async def test_one_pool_is_unavailable_and_the_other_goes_on(servers: list[Server], tmp_path: Path) -> None:
    urls = [server.url for server in servers]
    async with talking(urls, tmp_path, pools=2, models=MODELS) as talk:
        load = Load([talk], ["a", "b"])
        async with load.workers(), load.running(40):
            await settled(load)
            with servers[1].frozen():
                await until(lambda: not talk.served.gateway.store.pools[1].link.up, "the link to be given up")
                loop = asyncio.get_running_loop()
                begun = loop.time()
                answer = await talk.http.post("/api/openai", json={"model": "b", "messages": []})
                assert (answer.status_code, answer.json()["code"]) == (503, "STORE_UNAVAILABLE")
                await until(lambda: load.ended_at["a"] > begun + 1, "the other pool to go on")
                assert (await talk.http.get("/readyz")).status_code == 200
                state = (await talk.http.get("/api/admin/overview")).json()["store"]
                assert [(pool["pool"], pool["up"]) for pool in state["pools"]] == [
                    ("main", True),
                    ("pool-2", False),
                ]
            await settled(load)
    print(load.outcomes, load.codes)
    assert load.wrong == []
    assert not load.outcomes["lost"]
