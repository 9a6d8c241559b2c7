"""Tasks are submitted, cancelled and run while gateways and Redis are killed at random: each that ended is one row, and no other.

Some hundred tasks in the ordinary suite; with FAIRLANE_LONG=1 a hundred thousand (`make records`; TASKS= for another
number).
"""

import asyncio
import contextlib
import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select
from tests.support.processes import GatewayProcess, gateway_process, tireless
from tests.support.records import KEYS, carrying, tasks_in
from tests.support.servers import Server, any_binary, free_port, running_server
from tests.support.serving import http_client, until

from fairlane.gateway.database.tables import MEASURES, usage, usage_sums, usage_users
from fairlane.gateway.records import outbox as module

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LONG = os.environ.get("FAIRLANE_LONG") == "1"
TASKS = int(os.environ.get("FAIRLANE_TASKS") or (100_000 if LONG else 400))
CALLERS, WORKERS = 24, 12
CANCELLED = 0.04
SETTINGS: dict[str, Any] = {
    "lease_ms": 1500,
    "grant_ack_ms": 1500,
    "no_worker_grace_ms": 30_000,
    "task_result_ttl_ms": 5000,
    "max_queue_length": 100_000,
    "max_calls_per_caller": 1000,
}


async def work(send: Callable[..., Any], task: dict[str, Any]) -> None:
    """A worker that fails now and then, streams now and then."""
    number, name = task["payload"]["n"], task["taskId"]
    if number % 11 == 0:
        await send(type="taskResult", taskId=name, result=None, error="no such luck")
        return
    if number % 2 == 0:
        await send(type="taskChunk", taskId=name, delta=f"{number}")
    await send(type="taskResult", taskId=name, result={"content": f"{number}"}, error=None)


class Crowd:
    """Callers who submit until all tasks are accepted, at whichever gateway lives."""

    def __init__(self, gateways: list[GatewayProcess], dice: random.Random) -> None:
        self._urls = [gateway.url for gateway in gateways]
        self._dice = dice
        self._numbers = itertools.count()
        self.accepted: set[str] = set()

    async def call(self, http: httpx.AsyncClient) -> None:
        while len(self.accepted) < TASKS:
            body = {
                "messages": [],
                "n": next(self._numbers),
                "async": True,
                "model": f"m{self._dice.randrange(3)}",
            }
            answer = await self._post(http, "/api/openai", body)
            if answer is None or answer.status_code != 202:
                await asyncio.sleep(0.05)
                continue
            task_id = answer.json()["taskId"]
            self.accepted.add(task_id)
            if self._dice.random() < CANCELLED:
                await self._post(http, f"/api/task/{task_id}/cancel", {})

    async def _post(self, http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> httpx.Response | None:
        with contextlib.suppress(httpx.TransportError):
            return await http.post(self._dice.choice(self._urls) + path, json=body)
        return None


async def kill_now_and_then(
    gateways: list[GatewayProcess], server: Server, dice: random.Random, over: asyncio.Event
) -> None:
    """Each once, then any, until it is over: then all of them live."""
    everybody: list[GatewayProcess | Server] = [*gateways, server]
    for number in itertools.count():
        victim = everybody[number] if number < len(everybody) else dice.choice(everybody)
        await asyncio.sleep(dice.uniform(0.2, 8.0 if LONG else 1.5))
        if isinstance(victim, Server):
            await asyncio.to_thread(victim.stop)
            await asyncio.sleep(dice.uniform(0, 0.5))
            await asyncio.to_thread(victim.start)
        else:
            await victim.kill()
            await victim.start()
        if over.is_set() and number >= len(everybody):
            return


@pytest.mark.timeout(0 if LONG else 300)
async def test_whatever_is_killed_each_task_that_ended_is_one_row(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(database_url)
    # a server that is killed again and again never comes to rewrite its file by itself, and would read it for longer and longer
    options = (
        "--appendonly",
        "yes",
        "--auto-aof-rewrite-percentage",
        "5",
        "--auto-aof-rewrite-min-size",
        "8mb",
    )
    with running_server(any_binary(), *options, port=free_port()) as server:
        settings = {"database_url": database_url, **SETTINGS}
        one, two = (tmp_path / name for name in ("one", "two"))
        one.mkdir(), two.mkdir()
        async with (
            gateway_process(one, server.tcp_url, **settings) as first,
            gateway_process(two, server.tcp_url, **settings) as second,
            http_client(timeout=10) as http,
            contextlib.AsyncExitStack() as stack,
        ):
            for gateway in (first, second):
                await stack.enter_async_context(tireless(WORKERS, lambda gateway=gateway: gateway.ws, work))
            crowd = Crowd([first, second], dice)
            over = asyncio.Event()
            killing = asyncio.create_task(kill_now_and_then([first, second], server, dice, over))
            calls = asyncio.gather(*(crowd.call(http) for _ in range(CALLERS)))
            await asyncio.wait([killing, calls], return_when=asyncio.FIRST_COMPLETED)
            if not calls.done():
                await killing  # it failed
            over.set()
            await asyncio.gather(killing, calls)
            with server.client() as store:
                await until(lambda: store.zcard(KEYS("look")) == 0, "all tasks to end", 600 if LONG else 120)
                totals = [int(n or 0) for n in store.hmget(KEYS("pool"), "completed", "failed", "cancelled")]
        monkeypatch.setattr(module, "LEFT_MS", 0)  # the gateways are gone: what they had taken is left
        async with carrying(server.url, database_url) as (outbox, database, link):
            while await link.command("XLEN", KEYS("outbox")):
                outbox._look_for_left_at = 0
                await outbox.carry()
            found = await tasks_in(database)
            async with database.reading() as connection:
                states = dict(
                    (
                        await connection.execute(select(usage.c.state, func.count()).group_by(usage.c.state))
                    ).all()
                )  # type: ignore[arg-type]
                for table in (usage_sums, usage_users):
                    sums = [func.sum(table.c[name]) for name in MEASURES]
                    told = (
                        await connection.execute(select(*sums).where(table.c.began % 86_400_000 == 0))
                    ).one()
                    assert all(value is not None for value in told)
    assert crowd.accepted <= set(found), "every task that was accepted has a row"
    assert len(found) == sum(totals), "and so has each whose caller never heard that it was"
    assert [states.get(name, 0) for name in ("completed", "failed", "cancelled")] == totals
