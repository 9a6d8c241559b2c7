"""A thousand submissions with one key, and gateways that are killed in between: one task, and one answer for all.

The thousand use aiohttp, which takes a fraction of httpx2's processor time.
"""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import pytest
from tests.support.ledger import KEYS, ended_in, ended_once, nothing_left
from tests.support.processes import GatewayProcess, gateway_process, runs, tireless
from tests.support.servers import Server
from tests.support.serving import http_client, until

from .asking import CHAT, KEY, NATIVE, Asking, promised

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SETTINGS: dict[str, Any] = {
    "lease_ms": 1500,
    "grant_ack_ms": 1500,
    "no_worker_grace_ms": 10_000,
    "max_calls_per_caller": 5000,
}
MANY = 1000
WAIT_S = 60.0


def caller(gateway: GatewayProcess) -> httpx2.AsyncClient:
    return http_client(gateway.url, timeout=WAIT_S)


async def insist(asking: Asking, http: aiohttp.ClientSession, *gateways: GatewayProcess) -> httpx2.Response:
    """Ask one gateway, and the next one if that is no more, as clients with retries do behind a balancer."""
    for gateway in gateways[:-1]:
        with contextlib.suppress(aiohttp.ClientError):
            return await ask(asking, http, gateway)
    return await ask(asking, http, gateways[-1])


async def ask(asking: Asking, http: aiohttp.ClientSession, gateway: GatewayProcess) -> httpx2.Response:
    headers = {"Idempotency-Key": KEY}
    async with http.post(gateway.url + asking.path, json=asking.body, headers=headers) as answer:
        content = await answer.read()
        return httpx2.Response(answer.status, headers=list(answer.headers.items()), content=content)


@pytest.mark.parametrize(
    "asking",
    [
        Asking("/api/openai", NATIVE),
        Asking("/api/openai", {**NATIVE, "stream": True}),
        Asking("/v1/chat/completions", CHAT),
        Asking("/v1/chat/completions", {**CHAT, "stream": True}),
    ],
    ids=str,
)
async def test_a_thousand_submissions_at_two_gateways_are_one_task_also_when_one_gateway_is_killed(
    own_redis: Server, tmp_path: Path, asking: Asking
) -> None:
    given: list[str] = []
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def work(send: Any, task: dict[str, Any]) -> None:
        given.append(task["taskId"])
        await send(type="taskChunk", taskId=task["taskId"], delta="before ")
        begun.set()
        await go_on.wait()
        for text in ("and ", "behind"):
            await send(type="taskChunk", taskId=task["taskId"], delta=text)
        await send(type="taskResult", taskId=task["taskId"], result=None, error=None)

    async with (
        gateway_process(tmp_path / "a", own_redis.url, **SETTINGS) as a,
        gateway_process(tmp_path / "b", own_redis.url, **SETTINGS) as b,
        tireless(1, lambda: b.ws, work),
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(WAIT_S)
        ) as http,
    ):
        calls = [
            asyncio.create_task(insist(asking, http, *((a, b) if number % 2 else (b,))))
            for number in range(MANY)
        ]
        try:
            async with asyncio.timeout(WAIT_S):
                await begun.wait()
            await a.kill()
            go_on.set()
            answers = await asyncio.gather(*calls)
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        assert {answer.status_code for answer in answers} == {200}
        assert len({promised(answer) for answer in answers}) == 1
        assert "behind" in answers[0].text
        assert {answer.headers["x-task-id"] for answer in answers} == set(given)
        assert len(given) == 1
        firsts = [answer for answer in answers if "idempotency-replayed" not in answer.headers]
        assert len(firsts) <= 1, "none, where the first one's gateway was killed"
        with own_redis.client() as store:
            assert ended_once(store, given[0]) == b"done"
            assert ended_in(store)["completed"] == 1
            assert len(list(store.scan_iter(f"{KEYS.prefix}task:*"))) == 1
            await nothing_left(store)


async def test_a_key_is_known_when_the_gateway_and_its_redis_are_there_again(tmp_path: Path) -> None:
    asking = Asking("/api/openai", NATIVE)
    given: list[str] = []
    go_on = asyncio.Event()

    async def work(send: Any, task: dict[str, Any]) -> None:
        given.append(task["taskId"])
        await go_on.wait()
        await send(type="taskResult", taskId=task["taskId"], result={"content": "once"}, error=None)

    async def kill(gateway: GatewayProcess) -> None:
        server = gateway.redis_pid
        await gateway.kill()
        await until(lambda: not runs(server), "its Redis to end")
        await gateway.start()

    async with (
        gateway_process(tmp_path, **SETTINGS) as gateway,
        caller(gateway) as http,
        tireless(1, lambda: gateway.ws, work),
    ):
        first = asyncio.create_task(asking(http))
        await until(lambda: bool(given), "the task to run")
        await kill(gateway)
        with pytest.raises(httpx2.TransportError):
            await first
        go_on.set()
        second = await asking(http)
        assert second.json() == {"content": "once"}
        assert set(given) == {second.headers["x-task-id"]}
        await kill(gateway)
        third = await asking(http)
        assert (third.content, third.headers["x-task-id"]) == (second.content, second.headers["x-task-id"])
        assert third.headers["idempotency-replayed"] == "true"
