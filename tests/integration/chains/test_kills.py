"""kill -9 of a gateway, of its Redis, or of both, while chains are in all their stages."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.kills.test_kill_processes import (
    LEASES,
    OPEN_S,
    kill_both,
    kill_gateway,
    kill_redis,
    results,
)
from tests.support.ledger import ended_once, nothing_left
from tests.support.processes import GatewayProcess, gateway_process, tireless
from tests.support.serving import http_client, until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

CHAINS, WORKERS, PARTS = 24, 12, 3
HELD = 3
"""So many tasks of each stage run until chains are in all of them."""


def says(content: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}]}


STAGES = [
    {"name": "each", "each": "list", **says("p{{ n }}.{{ item }}")},
    {"name": "never", "when": "{{ stages.each.skipped }}", **says("never")},
    {"name": "sum", **says("s({{ stages.each.parts | map(attribute='content') | join(' ') }})")},
    {"name": "last", **says("l({{ stages.sum.content }})")},
]


def expected(number: int) -> str:
    """What comes of a chain whose models answer with their request, in capitals."""
    parts = " ".join(f"P{number}.{part}" for part in range(PARTS))
    return f"L(S({parts}))"


@pytest.mark.parametrize("kill", [kill_gateway, kill_redis, kill_both])
async def test_each_chain_ends_once_and_each_stage_has_run_once(
    tmp_path: Path, kill: Callable[[GatewayProcess], Any]
) -> None:
    chance = random.Random(kill.__name__)
    held = Counter[str]()
    in_all = asyncio.Event()

    async def work(send: Callable[..., Any], task: dict[str, Any]) -> None:
        text = task["payload"]["messages"][0]["content"]
        stage = text[0]
        held[stage] += 1
        if held[stage] <= HELD:
            await in_all.wait()
        await asyncio.sleep(chance.random() / 5)
        await send(type="taskResult", taskId=task["taskId"], result={"content": text.upper()}, error=None)

    async with (
        gateway_process(tmp_path, **LEASES, chains={"steps": {"stages": STAGES}}) as gateway,
        http_client(gateway.url, timeout=OPEN_S) as http,
        tireless(WORKERS, lambda: gateway.ws, work),
    ):
        task_ids = []
        for number in range(CHAINS):
            variables = {"n": number, "list": list(range(PARTS))}
            answer = await http.post("/api/tasks", json={"chain": "steps", "variables": variables})
            assert answer.status_code == 202, answer.text
            task_ids.append(str(answer.json()["taskId"]))

        async def in_its_stages() -> bool:
            polls = [(await http.get(f"/api/task/{task_id}")).json() for task_id in task_ids]
            return len({poll["stageStatus"] for poll in polls}) >= 3

        await until(in_its_stages, "chains in several stages")
        in_all.set()
        await kill(gateway)
        ended = await results(http, task_ids)
        assert [body["status"] for body in ended] == ["completed"] * CHAINS
        assert [body["result"]["content"] for body in ended] == [expected(n) for n in range(CHAINS)]
        for body in ended:
            assert [stage["status"] for stage in body["stages"]] == [
                "completed",
                "skipped",
                "completed",
                "completed",
            ]
        with gateway.store() as store:
            assert {ended_once(store, task_id) for task_id in task_ids} == {b"done"}
            await nothing_left(store)

        async def recorded() -> bool:
            rows = (await http.get("/api/admin/usage/tasks", params={"limit": 1000})).json()["tasks"]
            known = [(row["taskId"], row["stage"], row["part"]) for row in rows]
            assert len(known) == len(set(known)), "a stage has two records"
            return len(known) == CHAINS * (PARTS + 2)

        await until(recorded, "a record of each stage and part")
