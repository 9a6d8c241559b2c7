"""Each fault in turn: break the provider, call, repair it, call until all is well, and compare the ledger with the answers."""

import asyncio
import os
from collections import Counter
from pathlib import Path

import pytest
from tests.drill.callers import Call, Callers, callers
from tests.drill.faults import BEHIND, FALLBACK, FAULTS, Fault
from tests.drill.provider import Mode
from tests.drill.stage import GRANTED, PRICES, Stage, grant, route, stage
from tests.integration.native.keys import secret
from tests.support.serving import until

CALLS = int(os.environ.get("FAIRLANE_CALLS", "40"))
"""Calls while a fault lasts."""
CONCURRENT_CALLS = 8
RECOVERY_S = 180.0
"""Longer than a breaker stays open, and than a worker waits before it tries its upstream again."""
CALLS_OF_A_CHECK = 16


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_clients_notice_no_fault_and_each_answer_is_paid_once(tmp_path: Path) -> None:
    async def run() -> list[str]:
        async with stage(tmp_path, first_output_ms=1000, open_ms=2000) as scene:
            return [f"{fault.what}: {wrong}" for fault in FAULTS for wrong in await drill(scene, fault)]

    assert asyncio.run(run()) == []


async def drill(scene: Stage, fault: Fault) -> list[str]:
    """Break a provider, call, repair it, and call until all is well. Return everything that was wrong."""
    broken = scene.providers[fault.breaks]
    await grant(scene, fault.name)
    async with callers(scene.urls, secret(fault.name)) as some:
        calls, missing = await _recover(scene, fault, some)
        assert not missing, missing
        await broken.become(fault.mode)
        during = await _ask(some, fault, CALLS // 2)
        attempts = broken.attempts
        during += await _ask(some, fault, CALLS // 2)
        attempts = broken.attempts - attempts
        await broken.become(Mode.HEALTHY)
        after, missing = await _recover(scene, fault, some)
    calls += during + after
    wrong = [f"{number} x {why}" for why, number in Counter(call.why for call in calls if call.why).items()]
    if fault.breaks == "main" and not any(call.model == FALLBACK for call in during):
        wrong.append("no answer of the fallback")
    if fault.breaker and attempts * 2 >= CALLS // 2:
        wrong.append(f"{attempts} attempts at a provider that is known to be broken")
    return [*wrong, *missing, *await _unpaid(scene, fault, calls)]


async def _ask(some: Callers, fault: Fault, count: int) -> list[Call]:
    return await some.ask(
        route(fault.model), count, CONCURRENT_CALLS, streams=fault.streams, schema=fault.schema
    )


async def _recover(scene: Stage, fault: Fault, some: Callers) -> tuple[list[Call], list[str]]:
    """Call until the model serves every call through each of its providers, and an operator sees no trouble.

    Return all calls until then, and the troubles that remained.
    """
    calls: list[Call] = []
    missing: list[str] = []

    async def well() -> bool:
        nonlocal missing
        if missing := await scene.shut(fault.model):
            return False  # until the model may start tasks again, only the fallback would answer
        latest = await _ask(some, fault, CALLS_OF_A_CHECK)
        calls.extend(latest)
        silent = set(BEHIND[fault.model]) - {call.provider for call in latest if call.model == fault.model}
        missing = [
            *(await scene.troubles(fault.model)),
            *(f"{name} answers nothing" for name in sorted(silent)),
        ]
        return not missing and all(call.model == fault.model for call in latest)

    try:
        await until(well, f"{fault.model} to serve every call again", RECOVERY_S)
    except AssertionError as error:
        missing = missing or [str(error)]
    return calls, missing


async def _unpaid(scene: Stage, fault: Fault, calls: list[Call]) -> list[str]:
    """Compare the ledger with the answers, each at the price of the model that gave it."""
    await scene.settled(fault.name)
    debits = [entry for entry in await scene.ledger(fault.name) if entry["kind"] == "task"]
    answers = [call for call in calls if not call.why]
    owed, paid = sum(PRICES[call.model] for call in answers), -sum(entry["amount"] for entry in debits)
    balance = (await scene.told("/api/admin/balances", key=fault.name))["rows"][0]["balance"]
    tasks = len({entry["id"] for entry in debits})
    if (tasks, len(debits), paid, balance) == (len(answers), len(answers), owed, GRANTED - owed):
        return []
    return [
        f"{len(debits)} debits of {tasks} tasks for {len(answers)} answers, {paid} paid of {owed}, {balance} left"
    ]
