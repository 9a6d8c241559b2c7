"""Whoever leads a batch dies behind each thing that it does, one after the other, and another one goes on: each line has one
answer, was run once, and stands in one file."""

import asyncio
import dataclasses
import inspect
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fairlane.gateway.batches import leader as module
from fairlane.gateway.batches.context import Tools
from fairlane.gateway.batches.leader import Leader

from .crew import Caller, line, stage

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
LINES = 7
EACH = 1
"""Behind each so manyth call somebody dies."""


OF_THE_LIVING = ("unended", "take", "renew", "release")
"""Calls that are not a leader's."""


class Died(Exception):
    """Stands for the death of whoever leads: nothing that he knew is known any more."""


class Death:
    """Comes behind the call of this number; 0: not at all."""

    def __init__(self) -> None:
        self.at = 0
        self.calls = 0

    def behind(self) -> None:
        self.calls += 1
        if self.calls == self.at:
            raise Died


class Mortal:
    """Does what the tool does that it stands for, and notes each call."""

    def __init__(self, tool: Any, death: Death) -> None:
        self._tool = tool
        self._death = death

    async def __call__(self, *arguments: Any, **named: Any) -> Any:
        result = await self._tool(*arguments, **named)
        self._death.behind()
        return result

    def __getattr__(self, name: str) -> Any:
        does = getattr(self._tool, name)
        if inspect.isasyncgenfunction(does):

            async def parts(*arguments: Any, **named: Any) -> AsyncIterator[Any]:
                async for part in does(*arguments, **named):
                    yield part
                self._death.behind()

            return parts
        if not inspect.iscoroutinefunction(does):
            return does

        async def call(*arguments: Any, **named: Any) -> Any:
            result = await does(*arguments, **named)
            if name not in OF_THE_LIVING:
                self._death.behind()
            return result

        return call


def mortal(caller: Caller, death: Death) -> None:
    """Let whoever leads batches at this gateway be mortal."""
    leader = caller.served.gateway.part(Leader)
    tools = leader._tools
    names = ("submit", "cancel", "scheduler", "results", "files", "store")
    leader._tools = dataclasses.replace(
        tools, **{name: Mortal(getattr(tools, name), death) for name in names}
    )
    assert isinstance(leader._tools, Tools)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who goes on does so at once."""
    monkeypatch.setattr(module, "REST_S", 0.0)
    monkeypatch.setattr(module, "LOOK_S", 0.05)


async def outputs(caller: Caller) -> list[str]:
    listed = (await caller.http.get("/v1/files", params={"purpose": "batch_output"})).json()["data"]
    return [file["id"] for file in listed]


async def test_a_batch_is_cut_behind_each_call(redis_url: str, tmp_path: Path, hasty: None) -> None:
    async with stage(redis_url, tmp_path, batches={"window": 3}) as (caller, crew):
        death = Death()
        mortal(caller, death)
        lines = [line(number, n=500) if number == 2 else line(number) for number in range(LINES)]
        at, dead = 0, 0
        while not at or death.calls >= at:  # until it ends before anybody dies
            at += EACH
            death.at, death.calls = at, 0
            crew.runs.clear()
            before = set(await outputs(caller))
            made = await caller.batch(lines)
            ended = await caller.reaches(made["id"])
            assert ended["status"] == "completed", at
            assert ended["request_counts"] == {"total": LINES, "completed": LINES - 1, "failed": 1}, at
            records = await caller.records(ended["output_file_id"])
            wanted = [f"id-{number}" for number in range(LINES) if number != 2]
            assert [record["custom_id"] for record in records] == wanted, at
            errors = await caller.records(ended["error_file_id"])
            assert [record["custom_id"] for record in errors] == ["id-2"], at
            assert set(crew.runs.values()) == {1}, at
            written = set(await outputs(caller)) - before
            assert written == {ended["output_file_id"], ended["error_file_id"]}, at
            dead += death.calls >= at
        assert dead > 20


async def test_a_cancelled_batch_is_cut_behind_each_call(redis_url: str, tmp_path: Path, hasty: None) -> None:
    async with stage(redis_url, tmp_path, slots=2, batches={"window": 4}) as (caller, crew):
        death = Death()
        mortal(caller, death)
        lines = [line(number, model="echo" if number < 2 else "patient") for number in range(LINES)]
        at, dead = 0, 0
        while not at or death.calls >= at:
            at += EACH
            death.at, death.calls = 0, 0
            crew.runs.clear()
            crew.go.clear()
            made = await caller.batch(lines)
            async with asyncio.timeout(15):
                while (await caller.show(made["id"]))["request_counts"]["completed"] < 2:
                    await asyncio.sleep(0.02)
            death.at, death.calls = at, 0
            await caller.http.post(f"/v1/batches/{made['id']}/cancel")
            ended = await caller.reaches(made["id"])
            assert ended["status"] == "cancelled", at
            assert ended["request_counts"] == {"total": LINES, "completed": 2, "failed": 0}, at
            records = await caller.records(ended["output_file_id"])
            assert [record["custom_id"] for record in records] == ["id-0", "id-1"], at
            errors = await caller.records(ended["error_file_id"])
            wanted = [f"id-{number}" for number in range(2, LINES)]
            assert [record["custom_id"] for record in errors] == wanted, at
            state = (await caller.http.get("/api/admin/overview")).json()["counts"]
            assert state["queued"] == 0, at
            dead += death.calls >= at
        assert dead > 5


async def test_a_store_that_forgets_everything_is_told_again(
    redis_url: str, tmp_path: Path, hasty: None
) -> None:
    async with stage(redis_url, tmp_path, slots=2) as (caller, crew):
        crew.go.clear()
        made = await caller.batch([line(number, model="patient") for number in range(10)])
        async with asyncio.timeout(15):
            while crew.running < 2:
                await asyncio.sleep(0.02)
        await caller.served.gateway.link.command("FLUSHALL")
        crew.go.set()
        ended = await caller.reaches(made["id"], deadline_s=60)
        assert ended["request_counts"] == {"total": 10, "completed": 10, "failed": 0}
        assert len(await caller.records(ended["output_file_id"])) == 10
