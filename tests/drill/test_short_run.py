"""A short drill: the same as `make drill`, with a few calls for each fault. Nothing is said of times: a machine may be slow."""

import asyncio
from pathlib import Path

import pytest
from tests.drill.backlog import Backlog, move_backlog
from tests.drill.faults import FALLBACK, FAULTS
from tests.drill.report import Row, render
from tests.drill.run import Size, drill
from tests.drill.stage import stage

pytestmark = pytest.mark.slow


@pytest.mark.timeout(900)
def test_callers_notice_no_fault_and_each_answer_is_paid_once(tmp_path: Path) -> None:
    async def run() -> list[Row]:
        async with stage(tmp_path, first_output_ms=1000, open_ms=2000) as scene:
            return [await drill(scene, fault, Size(calls=40, at_once=8)) for fault in FAULTS]

    rows = asyncio.run(run())
    assert not [what for row in rows for what in row.wrong()], render(rows)
    for row in rows:
        assert row.answered(row.fault.model) + row.answered(FALLBACK) == len(row.calls) == 40, render(rows)


@pytest.mark.timeout(900)
def test_ten_thousand_waiting_tasks_go_on_in_their_order_and_others_are_served(tmp_path: Path) -> None:
    async def run() -> Backlog:
        async with stage(tmp_path, first_output_ms=60_000, open_ms=2000) as scene:
            return await move_backlog(scene, 10_000)

    seen = asyncio.run(run())
    assert not seen.wrong(), seen.render()
