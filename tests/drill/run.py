"""One fault after the other: broken, asked, mended, asked until all is well; and what that cost."""

import time
from dataclasses import dataclass
from decimal import Decimal

from tests.drill.callers import Call, Callers, End, callers
from tests.drill.faults import BEHIND, Fault
from tests.drill.provider import Mode
from tests.drill.report import Row
from tests.drill.stage import GRANTED, PRICES, Stage, grant, route
from tests.integration.native.keys import secret
from tests.support.serving import until

RECOVERY_S = 180.0
"""Longer than a breaker is ever open by itself, and than a worker waits before it asks its upstream again."""
EACH_TIME = 16
"""Calls between two looks whether all is well."""


@dataclass(frozen=True)
class Size:
    """How many calls each fault meets, and how many of them are under way at a time."""

    calls: int
    at_once: int


async def drill(scene: Stage, fault: Fault, size: Size) -> Row:
    """Break, ask, mend, ask on; what was seen."""
    row = Row(fault, scene.limit_ms, granted=Decimal(GRANTED))
    broken = scene.providers[fault.breaks]
    await grant(scene, fault.name)
    async with callers(scene.urls, secret(fault.name)) as some:
        row.after, row.missing = await _all_is_well(scene, fault, some)
        assert not row.missing, row.missing
        await broken.become(fault.mode)
        before = broken.attempts
        row.calls += await _ask(some, fault, size.calls // 2, size.at_once)
        half = broken.attempts
        row.calls += await _ask(some, fault, size.calls - size.calls // 2, size.at_once)
        row.attempts = half - before, broken.attempts - half
        mended = time.monotonic()
        await broken.become(Mode.WELL)
        calls, row.missing = await _all_is_well(scene, fault, some)
        row.mended_s = time.monotonic() - mended
        row.after += calls
    await scene.settled(fault.name)
    await _money(scene, row)
    return row


async def _ask(some: Callers, fault: Fault, count: int, at_once: int) -> list[Call]:
    return await some.ask(route(fault.model), count, at_once, streams=fault.streams, schema=fault.schema)


async def _all_is_well(scene: Stage, fault: Fault, some: Callers) -> tuple[list[Call], list[str]]:
    """Ask until the model itself answers everything, each of its providers something, and an operator sees nothing wrong with it.
    Returns all calls until then, and what was missing to the last."""
    calls: list[Call] = []
    missing: list[str] = []

    async def well() -> bool:
        nonlocal missing
        if missing := await scene.shut(fault.model):
            return False  # until one may start there, callers would only hear from others again
        latest = await _ask(some, fault, EACH_TIME, EACH_TIME // 2)
        calls.extend(latest)
        behind = {call.provider for call in latest if call.model == fault.model}
        own = all(call.end is End.ANSWERED and call.model == fault.model for call in latest)
        silent = set(BEHIND[fault.model]) - behind
        missing = [
            *(await scene.troubles(fault.model)),
            *(f"{name} answers nothing" for name in sorted(silent)),
        ]
        return own and not missing

    try:
        await until(well, f"{fault.model} to have everything again", RECOVERY_S)
    except AssertionError:
        return calls, missing or [f"calls that others answer, or nobody: {calls[-1]}"]
    return calls, []


async def _money(scene: Stage, row: Row) -> None:
    entries = await scene.ledger(row.fault.name)
    row.paid = [(entry["id"], -entry["amount"]) for entry in entries if entry["kind"] == "task"]
    answers = [call for call in (*row.calls, *row.after) if call.end is End.ANSWERED]
    row.owed = sum((PRICES[call.model] for call in answers), Decimal(0))
    row.balance = (await scene.told("/api/admin/balances", key=row.fault.name))["rows"][0]["balance"]
