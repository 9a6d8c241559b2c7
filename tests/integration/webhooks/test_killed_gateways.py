"""kill -9 of the gateway between an end and its webhook: what is owed survives it, and comes under the same id."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.processes import gateway_process, tireless
from tests.support.receivers import LOCAL, Got, Reply, receiving
from tests.support.serving import http_client, until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LEASES: dict[str, Any] = {"lease_ms": 1500, "grant_ack_ms": 1500, "no_worker_grace_ms": 10_000}
TASKS = 60


async def test_no_end_is_lost_with_a_gateway_that_is_killed_again_and_again(tmp_path: Path) -> None:
    """Whether it dies before the end is in SQL, before it is sent, or before it is noted that it was taken."""

    hung: set[str] = set()

    def reply(got: Got) -> Reply:
        """Of an eighth of them the first request is left without an answer."""
        if got.id[-1] in "08" and got.id not in hung:
            hung.add(got.id)
            return None
        return 200

    async def work(send: Callable[..., Any], task: dict[str, Any]) -> None:
        await send(type="taskResult", taskId=task["taskId"], result={"content": "done"}, error=None)

    async with (
        receiving(reply) as receiver,
        gateway_process(
            tmp_path, webhooks=LOCAL, webhook_timeout_ms=300, webhook_retry_ms=50, **LEASES
        ) as gateway,
        http_client(gateway.url) as http,
        tireless(4, lambda: gateway.ws, work),
    ):
        made = await http.post("/api/webhooks", json={"url": receiver.url})
        assert made.status_code == 201, made.text
        tasks: list[str] = []
        for number in range(TASKS):
            tasks.append(await submitted(http, number))
            if number % 20 == 19:
                await gateway.kill()
                await gateway.start()

        def told() -> set[str]:
            return {got.json["data"]["id"] for got in receiver.got if got.json["type"] == "task.completed"}

        await until(lambda: told() >= set(tasks), "all ends to be told", 150)
        by_task = {got.json["data"]["id"]: got.id for got in receiver.got}
        assert len(set(receiver.ids)) == len(by_task) == TASKS, "one id for each end, however often it came"
        assert max(Counter(receiver.ids).values()) < 10


async def submitted(http: httpx.AsyncClient, number: int) -> str:
    async with asyncio.timeout(60):
        while True:
            try:
                answer = await http.post("/api/openai", json={"messages": [], "n": number, "async": True})
            except httpx.TransportError:
                await asyncio.sleep(0.1)
                continue
            if answer.status_code == 202:
                return str(answer.json()["taskId"])
            await asyncio.sleep(0.1)
