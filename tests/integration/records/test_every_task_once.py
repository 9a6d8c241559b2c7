"""Tasks are submitted, cancelled and run while gateways and Redis are killed at random: each that ended is one row, and no other;
and each of a key with a quota is paid, or given back, once.

Some hundred tasks in the ordinary suite; with FAIRLANE_LONG=1 a hundred thousand (`make records`; TASKS= for another
number).
"""

import asyncio
import contextlib
import itertools
import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
import redis
from sqlalchemy import func, select
from tests.integration.native.keys import key, secret
from tests.support.bank import Bank
from tests.support.ledger import ended_in
from tests.support.processes import GatewayProcess, gateway_process, tireless
from tests.support.records import KEYS, carrying, tasks_in
from tests.support.servers import Server, any_binary, free_port, running_server
from tests.support.serving import http_client, until

from fairlane.gateway.database.database import Database
from fairlane.gateway.database.tables import MEASURES, usage, usage_sums, usage_users
from fairlane.gateway.records import outbox as module
from fairlane.queues.store.link import RedisLink

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LONG = os.environ.get("FAIRLANE_LONG") == "1"
TASKS = int(os.environ.get("FAIRLANE_TASKS") or (100_000 if LONG else 400))
CALLERS, WORKERS = 24, 12
CANCELLED = 0.04
PAYERS = [
    key("rich", tier="paid", quota={}),
    key("poor", tier="paid", quota={}),
    key("daily", tier="paid", quota={"budget": 0.2, "per": "day", "otherwise": "free"}),
    key("site", tier="paid", delegating=True, quota={"of": "user", "budget": 0.5, "per": "month"}),
]
CALLER_KEYS = [*PAYERS, key("plain", tier="free")]
USERS = ("ann", "bob")
GRANTS = [("rich", 0.25, f"rich-{number}") for number in range(max(TASKS // 400, 4))] + [
    ("poor", 0.05, "poor"),
    ("site/ann", 0.3, "ann"),
]
GRANTED = Counter[str]()
"""Micro-credits of each subject, of all its grants."""
for _name, _credits, _ in GRANTS:
    GRANTED[("u:" if "/" in _name else "k:") + _name] += round(_credits * 1_000_000)
SETTINGS: dict[str, Any] = {
    "lease_ms": 1500,
    "grant_ack_ms": 1500,
    "no_worker_grace_ms": 30_000,
    "task_result_ttl_ms": 5000,
    "max_queue_length": 100_000,
    "max_calls_per_caller": 1000,
    "prices": [{"model": "*", "input": 1, "output": 4, "request": 0.001}],
    "keys": [*CALLER_KEYS, key("ops", scopes=["admin"])],
    "workers": [key("gpu")],
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


def as_caller(key_id: str, user: str = "") -> dict[str, str]:
    headers = {"Authorization": f"Bearer {secret(key_id)}"}
    return {**headers, "X-Fairlane-User": user} if user and key_id == "site" else headers


def granted_in(store: redis.Redis) -> dict[str, int]:
    """The same, as Redis knows them."""
    return {subject: int(store.hget(KEYS("balance", subject=subject), "granted") or 0) for subject in GRANTED}


class Crowd:
    """Callers who submit until all tasks are accepted, at whichever gateway lives."""

    def __init__(self, gateways: list[GatewayProcess], dice: random.Random) -> None:
        self._urls = [gateway.url for gateway in gateways]
        self._dice = dice
        self._numbers = itertools.count()
        self.accepted: set[str] = set()
        self.refused = 0

    async def grant(self, http: httpx2.AsyncClient) -> None:
        """Grant what is to be granted, each until somebody says that it was."""
        for subject, amount, name in GRANTS:
            body = {"user" if "/" in subject else "key": subject, "credits": amount, "id": name}
            while True:
                answer = await self._post(http, "/api/admin/balances/grants", body, as_caller("ops"))
                if answer is not None and answer.status_code in (200, 201):
                    break
                assert answer is None or answer.status_code >= 500, answer.text
                await asyncio.sleep(0.05)
            await asyncio.sleep(self._dice.uniform(0, 0.5))

    async def call(self, http: httpx2.AsyncClient) -> None:
        while len(self.accepted) < TASKS:
            body = {
                "messages": [],
                "n": next(self._numbers),
                "async": True,
                "model": f"m{self._dice.randrange(3)}",
            }
            caller = as_caller(self._dice.choice(CALLER_KEYS)["id"], self._dice.choice(USERS))
            answer = await self._post(http, "/api/openai", body, caller)
            self.refused += answer is not None and answer.status_code == 429
            if answer is None or answer.status_code != 202:
                await asyncio.sleep(0.05)
                continue
            task_id = answer.json()["taskId"]
            self.accepted.add(task_id)
            if self._dice.random() < CANCELLED:
                await self._post(http, f"/api/task/{task_id}/cancel", {}, caller)

    async def _post(
        self, http: httpx2.AsyncClient, path: str, body: dict[str, Any], headers: dict[str, str]
    ) -> httpx2.Response | None:
        with contextlib.suppress(httpx2.TransportError):
            return await http.post(self._dice.choice(self._urls) + path, json=body, headers=headers)
        return None


async def check_payments(link: RedisLink, database: Database) -> None:
    """The ledger is what Redis holds of each subject; nothing is held any more; each task of a tier that pays was numbered once
    for whoever paid it, and was charged what it cost; and no other task was."""
    bank = Bank(link, database)
    names: list[bytes] = await link.command("ZRANGE", KEYS("balances"), "0", "-1")
    subjects = [name.decode() for name in names]
    assert {"k:rich", "k:poor", "k:daily", "u:site/ann", "u:site/bob"} == set(subjects)
    await bank.check(*subjects)
    for subject in subjects:
        balance = await bank.balance_store.find(subject)
        assert balance is not None
        assert [balance.held, *map(balance.reserved_of, balance.windows)] == [0] * (1 + len(balance.windows))
    rows = await bank.rows()
    grants = sorted((row.subject[2:], row.amount, row.id) for row in rows if row.kind == "grant")
    assert grants == sorted((subject, round(amount * 10**6), name) for subject, amount, name in GRANTS)
    charged, numbers = Counter[str](), defaultdict[str, dict[str, int]](dict)
    for row in rows:
        if row.kind == "task":
            charged[row.id] -= row.amount
            numbers[row.subject][row.id] = row.number
    for subject, given in numbers.items():
        assert sorted(given.values()) == list(range(2, len(given) + 2)), subject
    async with database.reading() as connection:
        columns = (usage.c.task, usage.c.cost, usage.c.state)
        paid = (await connection.execute(select(*columns).where(usage.c.tier == "paid"))).all()
    assert {task: cost for task, cost, _ in paid} == dict(charged)
    assert {state for _, cost, state in paid if cost} <= {"completed", "cancelled"}


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
    lasting = ("--appendonly", "yes", "--appendfsync", "always")
    rewriting = ("--auto-aof-rewrite-percentage", "5", "--auto-aof-rewrite-min-size", "8mb")
    with running_server(any_binary(), *lasting, *rewriting, port=free_port()) as server:
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
                await stack.enter_async_context(
                    tireless(WORKERS, lambda gateway=gateway: gateway.ws, work, secret("gpu"))
                )
            crowd = Crowd([first, second], dice)
            over = asyncio.Event()
            killing = asyncio.create_task(kill_now_and_then([first, second], server, dice, over))
            calls = asyncio.gather(crowd.grant(http), *(crowd.call(http) for _ in range(CALLERS)))
            await asyncio.wait([killing, calls], return_when=asyncio.FIRST_COMPLETED)
            if not calls.done():
                await killing  # it failed
            over.set()
            await asyncio.gather(killing, calls)
            with server.client() as store:
                await until(lambda: store.zcard(KEYS("due")) == 0, "all tasks to end", 600 if LONG else 120)
                # what was granted while Redis was away is told to it within a minute
                await until(lambda: granted_in(store) == dict(GRANTED), "Redis to know all grants", 120)
                totals = list(ended_in(store).values())
        monkeypatch.setattr(module, "LEFT_MS", 0)  # the gateways are gone: what they had taken is left
        async with carrying(server.url, database_url) as (outbox, database, link):
            while await link.command("XLEN", KEYS("outbox")):
                outbox._look_for_left_at = 0
                await outbox.carry()
            found = await tasks_in(database)
            await check_payments(link, database)
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
    assert crowd.refused, "somebody could not pay"
    for gateway in (first, second):
        assert "a balance differed from the ledger" not in gateway.log
    assert crowd.accepted <= set(found), "every task that was accepted has a row"
    assert len(found) == sum(totals), "and so has each whose caller never heard that it was"
    assert [states.get(name, 0) for name in ("completed", "failed", "cancelled")] == totals
