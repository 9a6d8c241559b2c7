"""Gateways that are killed while permits wait, are given out, are out and are used."""

import asyncio
import random
import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.ledger import nothing_left
from tests.support.processes import gateway_process
from tests.support.servers import Server
from tests.support.serving import http_client, until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

CAPACITY, TASKS, KILLS = 4, 40, 3
ENDPOINTS = {"image": {"url": "http://127.0.0.1:9/image/*", "concurrency": CAPACITY, "timeout_ms": 60_000}}


class Callers:
    """Each asks for a permit, and uses it as soon as it comes, twice; it counts how many are let in at a time."""

    def __init__(self, http: httpx2.AsyncClient, chance: random.Random) -> None:
        self.http, self.chance = http, chance
        self.inside = self.most = 0
        self.let_in: dict[str, int] = {}

    async def call(self) -> str:
        answer = await self.http.post("/api/tasks", json={"type": "permit", "endpoint": "image"})
        task_id = str(answer.json()["taskId"])
        told: dict[str, Any] = {}

        async def out() -> bool:
            told.update((await self.http.get(f"/api/task/{task_id}")).json())
            return "permit" in told

        await until(out, f"the permit of {task_id}", 60)
        headers = {"X-Fairlane-Permit": told["permit"]}
        answers = await asyncio.gather(
            *(self.http.get("/api/permit/check/image", headers=headers) for _ in range(2))
        )
        receipts = [one.headers["x-fairlane-receipt"] for one in answers if one.status_code == 200]
        self.let_in[task_id] = len(receipts)
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(self.chance.uniform(0, 0.1))
        self.inside -= 1
        for receipt in receipts:
            answer = await self.http.post("/api/permit/done", headers={"X-Fairlane-Receipt": receipt})
            assert answer.json() == {"status": "ended"}, answer.text
        return task_id


async def test_each_permit_lets_in_once_whichever_gateway_dies(own_redis: Server, tmp_path: Path) -> None:
    chance = random.Random(3)
    async with (
        gateway_process(tmp_path / "a", own_redis.url, endpoints=ENDPOINTS, http_worker_slots=0) as dying,
        gateway_process(tmp_path / "b", own_redis.url, endpoints=ENDPOINTS, http_worker_slots=0) as staying,
        http_client(staying.url) as http,
    ):
        callers = Callers(http, chance)
        calls = [asyncio.create_task(callers.call()) for _ in range(TASKS)]
        for _ in range(KILLS):
            before = len(callers.let_in)
            await until(
                lambda before=before: len(callers.let_in) > before or all(map(asyncio.Task.done, calls))
            )
            await asyncio.sleep(chance.uniform(0, 0.05))
            dying.signal(signal.SIGKILL)
            await dying.ended()
            await dying.start()
        tasks = await asyncio.gather(*calls)
        assert callers.let_in == dict.fromkeys(tasks, 1)
        assert callers.most <= CAPACITY
        for task_id in tasks:
            told = (await http.get(f"/api/task/{task_id}")).json()
            assert (told["status"], told["result"]) == ("completed", {"used": True, "reported": True})
        with own_redis.client() as store:
            await nothing_left(store)
