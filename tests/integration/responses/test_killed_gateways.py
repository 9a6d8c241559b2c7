"""A gateway is killed while its responses wait, run and are read, another one right behind their ends: nothing is lost."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.integration.responses.asking import KEYS, events_of, good, text_of, told_events
from tests.support.databases import FILE, place_database
from tests.support.processes import GatewayProcess, gateway_process
from tests.support.rawworkers import worker_v2
from tests.support.servers import Server
from tests.support.serving import http_client, until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
SETTINGS: dict[str, Any] = {
    "lease_ms": 1500,
    "grant_ack_ms": 1500,
    "no_worker_grace_ms": 20_000,
    "stream_flush_interval_ms": 0,
    "stream_flush_size": 1,
}
Pair = tuple[GatewayProcess, GatewayProcess]
PIECES = ("one ", "two ", "three")
OPEN_S = 30.0


@pytest.fixture
async def gateways(own_redis: Server, tmp_path: Path) -> AsyncIterator[Pair]:
    place_database(tmp_path / "shared")
    database = f"sqlite:///{tmp_path}/shared/{FILE}"
    async with (
        gateway_process(tmp_path / "a", own_redis.url, database_url=database, **SETTINGS) as a,
        gateway_process(tmp_path / "b", own_redis.url, database_url=database, **SETTINGS) as b,
    ):
        yield a, b


async def ask(http: httpx.AsyncClient, text: str) -> str:
    body = {"model": "m", "input": text, "background": True}
    return str(good(await http.post("/v1/responses", json=body))["id"])


async def read_until_cut(http: httpx.AsyncClient, response_id: str, seen: list[dict[str, Any]]) -> None:
    """Collect the events of a response until its gateway is gone."""
    held = b""
    try:
        async with http.stream("GET", f"/v1/responses/{response_id}", params={"stream": "true"}) as answer:
            async for piece in answer.aiter_bytes():
                held += piece
                seen[:] = told_events(held)
    except httpx.TransportError:
        return


async def whole(http: httpx.AsyncClient, response_id: str, after: int = -1) -> list[dict[str, Any]]:
    query = {"stream": "true"} | ({"starting_after": str(after)} if after >= 0 else {})
    return events_of((await http.get(f"/v1/responses/{response_id}", params=query)).content)


async def test_what_was_asked_and_answered_outlives_its_gateways(gateways: Pair, own_redis: Server) -> None:
    a, b = gateways
    async with http_client(a.url, timeout=OPEN_S) as at_a, http_client(b.url, timeout=OPEN_S) as at_b:
        async with worker_v2(b.ws, "m", slots=1) as worker:
            asked = [await ask(at_a, f"{number}") for number in range(6)]
            task = await worker.take()
            await worker.chunk(task, PIECES[0], 1)
            seen: list[dict[str, Any]] = []
            reading = asyncio.create_task(read_until_cut(at_a, asked[0], seen))
            await until(lambda: any(event["type"].endswith("delta") for event in seen), "its first text")
            await a.kill()
            await reading

            for seq, piece in enumerate(PIECES[1:], 2):
                await worker.chunk(task, piece, seq)
            await worker.answer(task, result=None)
            for _ in asked[1:]:
                task = await worker.take()
                text = task["payload"]["messages"][0]["content"]
                await worker.answer(task, result={"content": f"answer to {text}"})
            await whole(at_b, asked[-1])
        await b.kill()

        await b.start()
        rest = await whole(at_b, asked[0], seen[-1]["sequence_number"])
        uncut = await whole(at_b, asked[0])
        assert seen + rest == uncut
        before = [good(await at_b.get(f"/v1/responses/{one}")) for one in asked]
        assert text_of(before[0]) == "".join(PIECES)
        assert [text_of(one) for one in before[1:]] == [f"answer to {number}" for number in range(1, 6)]
        with own_redis.client() as store:
            await until(lambda: not store.xlen(KEYS("archive")), "SQL to have all of it")
            store.flushall()

        assert [good(await at_b.get(f"/v1/responses/{one}")) for one in asked] == before
        assert await whole(at_b, asked[0]) == uncut
