"""`fairlane batches`, as an operator runs it beside a gateway that works."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest
from tests.support.prepared import command

from .crew import Caller, line, stage

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def fairlane(caller: Caller, *arguments: str) -> str:
    """What the command prints, with the address of the gateway in its environment."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLANE_")}
    env = {**clean, "FAIRLANE_GATEWAY": caller.served.url, "COLUMNS": "220"}
    done = await asyncio.to_thread(
        subprocess.run, command(*arguments), capture_output=True, text=True, timeout=60, check=False, env=env
    )
    return done.stdout + done.stderr


async def test_batches_are_listed_and_cancelled(redis_url: str, tmp_path: Path) -> None:
    async with stage(redis_url, tmp_path) as (caller, crew):
        assert "no batch that matches" in await fairlane(caller, "batches")
        crew.go.clear()
        done = await caller.batch([line(1), line(2)])
        await caller.reaches(done["id"])
        runs = await caller.batch([line(1, model="patient")])
        await caller.reaches(runs["id"], "in_progress")
        listed = (await fairlane(caller, "batches")).splitlines()
        assert [row.split()[0] for row in listed[1:]] == [runs["id"], done["id"]], listed
        assert listed[2].split()[1:8] == [
            *("anonymous", "completed", "/v1/chat/completions", "echo", "2", "2", "0")
        ]
        unended = await fairlane(caller, "batches", "list", "--state", "unended", "--limit", "1")
        assert done["id"] not in unended
        paged = await fairlane(caller, "batches", "list", "--limit", "1")
        assert f"--after {runs['id']}" in paged
        assert f"{runs['id']}: cancelling" in await fairlane(caller, "batches", "cancel", runs["id"])
        assert (await caller.reaches(runs["id"]))["status"] == "cancelled"
        assert "There is no batch" in await fairlane(caller, "batches", "cancel", "batch_none")
