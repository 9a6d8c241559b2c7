"""Chains run while gateways, workers and Redis are killed at random, inside and between their stages: each ends once, each of its
stages and parts succeeds once at most, readers who come back see each event once, and the books agree.

Some twenty kills in the ordinary suite, on each database; with FAIRLANE_LONG=1 five hundred (`make chains`; FAIRLANE_KILLS for
another number).
"""

import asyncio
import contextlib
import os
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import select
from tests.integration.kills.chains.books import check_payments, check_run, check_store
from tests.integration.kills.chains.crowd import Crowd, Run
from tests.integration.kills.chains.play import CHAIN, NAME
from tests.integration.kills.chains.victims import Moments, Store, Victim, WorkerProcess, kill
from tests.integration.native.keys import key, secret
from tests.support.bank import Bank
from tests.support.ledger import ended_in, nothing_left
from tests.support.processes import gateway_process
from tests.support.records import KEYS, carrying, tasks_in
from tests.support.servers import Server, any_binary, free_port, running_server
from tests.support.serving import http_client
from tests.support.streams import events

from fairlane.gateway.database.tables import usage
from fairlane.gateway.records import outbox as module
from fairlane.queues.replies import decode_map

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LONG = os.environ.get("FAIRLANE_LONG") == "1"
KILLS = int(os.environ.get("FAIRLANE_KILLS") or (500 if LONG else 20))
CALLERS = 20
WORKERS = 4
GATEWAY_S, REDIS_S, WORKER_S = (3.0, 5.0, 8.0) if LONG else (1.0, 1.0, 3.0)
"""For how long one lives at most: that chains end meanwhile, too."""
CALLER_KEYS = ("rich", "poor")
GRANTS = {"rich": 100_000, "poor": 0.2}
SETTINGS: dict[str, Any] = {
    "lease_ms": 1500,
    "grant_ack_ms": 1500,
    "no_worker_grace_ms": 60_000,
    "task_result_ttl_ms": 7_200_000,
    "stream_token_secret": "the same at both gateways",
    "max_calls_per_caller": 1000,
    "stream_flush_interval_ms": 0,
    "models": {"eyes": {}, "sums": {}, "chat": {}},
    "chains": {NAME: CHAIN},
    "prices": [{"model": "*", "input": 1, "output": 4, "request": 0.001}],
    "keys": [*(key(name, tier="paid", quota={}) for name in CALLER_KEYS), key("ops", scopes=["admin"])],
    "workers": [key("gpu")],
}


async def hear_of_all(http: httpx2.AsyncClient, url: str, crowd: Crowd, server: Server) -> None:
    """Read also those chains of which no caller ever heard that they were accepted."""
    with server.client() as store:
        for name in store.scan_iter(KEYS("task", id="*")):
            task_id = name.decode().rpartition(":")[2]
            packed = store.hget(name, "spec")  # none: a mark of what was cancelled
            spec = decode_map(packed) if packed else {"chain": ""}
            if "chain" in spec or task_id in crowd.runs:
                continue
            run = crowd.runs[task_id] = Run(task_id, None, "")
            headers = {"Authorization": f"Bearer {secret(spec['user'])}"}
            async with events(http, "GET", f"{url}/api/task/{task_id}/events", headers=headers) as reader:
                for frame in await reader.rest():
                    run.reader.take(frame)
            run.told = await crowd.poll(http, spec["user"], task_id)


def show(killed: Counter[str], crowd: Crowd, rows: int) -> None:
    """For people: `pytest -s`."""
    ends = Counter(
        f"{run.told['status']} {run.told.get('code') or ''}".strip() for run in crowd.runs.values()
    )
    again = sum(
        sum(frame.event == "start" for frame in run.reader.frames)
        > sum(stage["status"] == "completed" for stage in run.told["stages"])
        for run in crowd.runs.values()
    )
    print(f"\nkilled: {sum(killed.values())} {dict(killed)}; chains: {len(crowd.runs)} {dict(ends)}")
    print(f"not heard of: {sum(run.order is None for run in crowd.runs.values())}; refused: {crowd.refused}")
    print(f"stages and parts recorded: {rows}; readers came back {crowd.cuts} times; begun anew: {again}")


@pytest.mark.timeout(0 if LONG else 300)
async def test_whatever_is_killed_each_chain_ends_once(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(database_url)
    lasting = ("--appendonly", "yes", "--appendfsync", "always")
    rewriting = ("--auto-aof-rewrite-percentage", "5", "--auto-aof-rewrite-min-size", "32mb")
    settings = {"database_url": database_url, **SETTINGS}
    with running_server(any_binary(), *lasting, *rewriting, port=free_port()) as server:
        async with (
            gateway_process(tmp_path / "one", server.tcp_url, **settings) as one,
            gateway_process(tmp_path / "two", server.tcp_url, **settings) as two,
            http_client(timeout=10) as http,
            contextlib.AsyncExitStack() as stack,
        ):
            gateways = [one, two]
            for name, credits in GRANTS.items():
                answer = await http.post(
                    f"{one.url}/api/admin/balances/grants",
                    json={"key": name, "credits": credits},
                    headers={"Authorization": f"Bearer {secret('ops')}"},
                )
                assert answer.is_success, answer.text
            victims: dict[str, tuple[Victim, float]] = {
                "gateway one": (one, GATEWAY_S),
                "gateway two": (two, GATEWAY_S),
                "redis": (Store(server), REDIS_S),
            }
            for number in range(WORKERS):
                worker = WorkerProcess(tmp_path, gateways[number % 2].url, secret("gpu"))
                stack.push_async_callback(worker.kill)
                await worker.start()
                victims[f"worker {number}"] = (worker, WORKER_S)
            moments = Moments(dice)
            crowd = Crowd([gateway.url for gateway in gateways], CALLER_KEYS, dice, moments.moved)
            over = asyncio.Event()
            async with asyncio.TaskGroup() as group:  # whoever fails ends all
                killing = group.create_task(kill(victims, KILLS, moments))
                killing.add_done_callback(lambda _: over.set())
                for _ in range(CALLERS):
                    group.create_task(crowd.call(http, over))
            killed = killing.result()
            with server.client() as store:
                await nothing_left(store, 60)
                await hear_of_all(http, one.url, crowd, server)
        check_store(server, crowd.runs)
        monkeypatch.setattr(module, "LEFT_MS", 0)  # the gateways are gone: what they had taken is left
        async with carrying(server.url, database_url) as (outbox, database, link):
            while await link.command("XLEN", KEYS("outbox")):
                outbox._look_for_left_at = 0
                await outbox.carry()
            found = await tasks_in(database)
            await check_payments(Bank(link, database))
            async with database.reading() as connection:
                rows = defaultdict[str, list[Any]](list)
                for row in await connection.execute(select(usage)):
                    rows[row.chain].append(row)
        show(killed, crowd, len(found))
        assert set(rows) == set(crowd.runs), "each has its rows, and nothing else has"
        with server.client() as store:
            ends = Counter(run.told["status"] for run in crowd.runs.values())
            assert ended_in(store) == {name: ends[name] for name in ("completed", "failed", "cancelled")}
            for run in crowd.runs.values():
                check_run(store, run, rows[run.task_id])
    # most, of many; of a few it is a matter of the machine's speed whom the killed workers had
    assert ends["completed"] > sum(ends.values()) / (2 if LONG else 4)
    for gateway in gateways:
        assert "a balance differed from the ledger" not in gateway.log
