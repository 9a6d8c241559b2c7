"""A batch whose leader is killed again and again has each answer once, and delays nobody.

A few hundred lines and two kills in the ordinary suite; with FAIRLANE_LONG=1 fifty thousand and ten (`make batches`;
FAIRLANE_LINES and FAIRLANE_KILLS for other numbers).
"""

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select
from tests.support.processes import gateway_process
from tests.support.servers import any_binary, free_port, running_server
from tests.support.serving import WORKER_TOKEN, until

from fairlane.gateway.accounts.callers import digest
from fairlane.gateway.database.address import parse_address
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.tables import batch_results, usage

from .long_run import CHAT, ENDED, Play, keys, lines_file, progress, share, upload

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LONG = os.environ.get("FAIRLANE_LONG") == "1"
LINES = int(os.environ.get("FAIRLANE_LINES") or (50_000 if LONG else 600))
KILLS = int(os.environ.get("FAIRLANE_KILLS") or (10 if LONG else 2))
SLOTS, SERVICE_S = 10, 0.08
BASE_S = 20.0 if LONG else 4.0
"""For so long the interactive user is alone, before the batch comes."""
MAX_S = 3600.0 if LONG else 150.0
GROWS_MIB = 40


@pytest.mark.timeout(0 if LONG else 240)
async def test_whoever_is_killed_each_line_has_one_answer_and_nobody_waits_for_it(tmp_path: Path) -> None:
    database_url = f"sqlite:///{tmp_path}/shared.db"
    settings: dict[str, Any] = {
        "database_url": database_url,
        "files": {"storage": str(tmp_path / "files")},
        "lease_ms": 2000,
        "grant_ack_ms": 1500,
        "models": {"sim": {"concurrency": 2 * SLOTS}},
        "keys": keys(),
        "workers": [{"id": "tests", "sha256": digest(WORKER_TOKEN)}],
        "batches": {"window": 100},
    }
    lasting = ("--appendonly", "yes", "--appendfsync", "everysec")
    over = asyncio.Event()
    with running_server(any_binary(), *lasting, port=free_port()) as server:
        async with (
            gateway_process(tmp_path / "one", server.tcp_url, **settings) as one,
            gateway_process(tmp_path / "two", server.tcp_url, **settings) as two,
        ):
            play = Play([one, two], SLOTS, SERVICE_S)
            async with play.working(), play.client("robot") as http, play.client("ops") as ops:
                beside = asyncio.gather(play.interact(over), play.watch(over))
                alone = time.monotonic()
                await asyncio.sleep(BASE_S)
                file_id = await upload(play, http, lines_file(tmp_path, LINES))
                body = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
                batch_id = (await play.anywhere(http, "POST", "/v1/batches", json=body)).json()["id"]
                began = time.monotonic()
                done, shown = 0, await progress(play, http, batch_id)
                while shown["status"] not in ENDED:
                    assert time.monotonic() - began < MAX_S, shown
                    counts = shown["request_counts"]
                    done = counts["completed"] + counts["failed"]
                    due = len(play.kills) < KILLS and done >= LINES * (len(play.kills) + 1) / (KILLS + 2)
                    if due and shown["status"] == "in_progress":
                        await play.kill_leader(ops, batch_id)
                    await asyncio.sleep(0.2)
                    shown = await progress(play, http, batch_id)
                ended = time.monotonic()
                output = await play.anywhere(http, "GET", f"/v1/files/{shown['output_file_id']}/content")
                over.set()
                await beside
            _show(play, (alone, began, ended), shown)
            await _check(database_url, batch_id)
    assert shown["status"] == "completed", shown
    assert shown["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
    records = [json.loads(text) for text in output.content.split(b"\n") if text]
    assert [record["custom_id"] for record in records] == [f"id-{number}" for number in range(LINES)]
    assert len({record["response"]["request_id"] for record in records}) == LINES
    assert {record["response"]["status_code"] for record in records} == {200}
    assert len(play.kills) == KILLS
    before, beside_it = play.compared(alone, began), play.compared(began, ended)
    part = 0.95 if LONG else 0.5  # a short run has few calls that no kill concerns
    assert share(beside_it, part) <= share(before, part) + SERVICE_S * 1000
    for used in play.memory.values():
        if len(used) > 30:
            assert max(used[len(used) // 2 :]) <= max(used[: len(used) // 2]) + GROWS_MIB, used


async def _check(database_url: str, batch_id: str) -> None:
    """Each line has had one task, and what came of it is stored in the file alone."""
    database = Database(parse_address(database_url, Path()))
    await database.start()
    rows: list[Any] = []

    async def settled() -> bool:
        async with database.reading() as connection:
            wanted = select(usage.c.task, usage.c.state).where(usage.c.request == batch_id)
            rows[:] = (await connection.execute(wanted)).all()
            left = await connection.scalar(select(func.count()).select_from(batch_results))
        return len(rows) >= LINES and left == 0

    try:
        await until(settled, "the records of all tasks", 60)
    finally:
        await database.close()
    assert len({row.task for row in rows}) == len(rows) == LINES
    assert {row.state for row in rows} == {"completed"}


def _show(play: Play, times: tuple[float, float, float], shown: dict[str, Any]) -> None:
    """For people: `pytest -s`."""
    alone, began, ended = times
    took_s = ended - began
    print(
        f"\n{LINES} lines in {took_s:.0f} s ({LINES / took_s:.0f}/s), {len(play.kills)} kills: {shown['status']}"
    )
    for name, waits in (("alone", play.compared(alone, began)), ("beside it", play.compared(began, ended))):
        told = ", ".join(f"p{round(part * 100)} {share(waits, part)} ms" for part in (0.5, 0.95, 0.99))
        print(f"waits of the interactive user {name}: {told}, {len(waits)} calls")
    print(f"one service time is {SERVICE_S * 1000:.0f} ms")
    for pid, used in play.memory.items():
        half = len(used) // 2
        print(
            f"memory of {pid}: {len(used)} s, first half at most {max(used[: half or 1])} MiB, second {max(used[half:])}"
        )
