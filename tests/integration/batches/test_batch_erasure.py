"""A user is forgotten amid a batch: it ends, what runs of it is stopped, and nothing of it is left."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from sqlalchemy import select
from tests.integration.native.keys import key, secret
from tests.support.records import KEYS, everything
from tests.support.serving import until
from typer.testing import CliRunner

from fairlane.gateway.admin import erasure as erasure_calls
from fairlane.gateway.batches.leader import Leader
from fairlane.gateway.cli import erase
from fairlane.gateway.cli.main import app
from fairlane.gateway.database.tables import usage, webhook_deliveries
from fairlane.gateway.records.erasure import ERASED
from fairlane.workers.sdk import Context, Task

from . import crew as crew_module
from .crew import Caller, Crew, line, stage

pytestmark = pytest.mark.anyio
USER = "site/zebra-fish"


@pytest.fixture
async def staged(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[tuple[Caller, Caller, Crew]]:
    """An operator, and a user who may be forgotten."""
    keys = [key("site", delegating=True), key("ops", scopes=["admin"])]
    asked = "database_url" in request.fixturenames
    where = {"database_url": request.getfixturevalue("database_url")} if asked else {}
    async with stage(redis_url, tmp_path, slots=2, keys=keys, **where) as (caller, crew):
        zebra = caller.other(secret("site"), **{"X-Fairlane-User": "zebra-fish"})
        yield caller.other(secret("ops")), zebra, crew


async def forget(caller: Caller, *more: str, user: str = USER) -> Result:
    words = "user", "erase", user, "--yes", "--gateway", caller.served.url, *more
    return await asyncio.to_thread(
        CliRunner().invoke, app, list(words), env={"FAIRLANE_API_KEY": secret("ops")}
    )


def sums_of(told: Result) -> dict[str, Any]:
    """What the command printed as JSON, among what the gateway of this process says."""
    [text] = [text for text in told.stdout.splitlines() if text.startswith("{")]
    sums: dict[str, Any] = json.loads(text)
    return sums


def leading_of(caller: Caller) -> Leader:
    return next(part for part in caller.served.gateway._parts if isinstance(part, Leader))


async def nothing_names_them(caller: Caller) -> None:
    gateway = caller.served.gateway

    async def carried() -> bool:
        return not await gateway.link.command("XLEN", KEYS("outbox"))

    await until(carried, "the records to be in SQL")
    for table, rows in (await everything(gateway.database)).items():
        assert "zebra" not in repr(rows), table


@pytest.mark.usefixtures("database_url")
async def test_one_command_ends_their_batches_and_leaves_nothing(staged: tuple[Caller, Caller, Crew]) -> None:
    ops, zebra, crew = staged
    done = await zebra.batch([line(0)])
    await zebra.reaches(done["id"])
    crew.go.clear()
    made = await zebra.batch([line(1), *(line(number, model="patient") for number in range(2, 9))])
    await until(lambda: crew.running == 2, "lines to run")
    waiting = [await zebra.batch([line(number, model="patient")]) for number in range(10, 14)]
    bob = ops.other(secret("site"), **{"X-Fairlane-User": "bob"})
    others = await bob.batch([line(20, model="patient")])
    assert (await forget(ops, user="site/nobody")).stderr == ""
    told = await forget(ops)
    assert told.exit_code == 0, told.output
    assert "\n6 batches\n" in told.stdout
    await until(lambda: crew.running <= 1, "what runs of theirs to be stopped")
    for batch in (done, made, *waiting):
        assert (await zebra.http.get(f"/v1/batches/{batch['id']}")).status_code == 404
    assert (await zebra.http.get("/v1/files")).json()["data"] == []
    await nothing_names_them(ops)
    async with ops.served.gateway.database.reading() as connection:
        users = set(await connection.scalars(select(usage.c.user_name)))
    assert users == {ERASED}, "as whom what ran of them was recorded"
    again = await forget(ops, "--json")
    sums = sums_of(again)
    assert (again.stderr, sums.pop("more"), set(sums.values())) == ("", False, {0})
    crew.go.set()
    assert (await bob.reaches(others["id"]))["status"] == "completed"
    assert (await zebra.reaches((await zebra.batch([line(30)]))["id"]))["status"] == "completed", "it is new"


async def test_webhooks_of_all_users_are_not_told_the_name(staged: tuple[Caller, Caller, Crew]) -> None:
    ops, zebra, crew = staged
    site = ops.other(secret("site"))
    hook: dict[str, Any] = {"url": "https://receiver.invalid/", "everyUser": True}
    answer = await site.http.post("/api/webhooks", json=hook)
    assert answer.status_code == 201, answer.text
    crew.go.clear()
    made = await zebra.batch([line(1, model="patient")])
    await until(lambda: crew.running == 1, "its line to run")
    assert (await forget(ops)).exit_code == 0
    async with ops.served.gateway.database.reading() as connection:
        columns = webhook_deliveries.c
        found = (await connection.execute(select(columns.event, columns.object_id, columns.user_name))).all()
    assert [tuple(row) for row in found] == [("batch.cancelled", made["id"], ERASED)]


class Slow(Crew):
    """Lets go of `patient` when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = asyncio.Event()

    async def echo(self, task: Task, context: Context) -> AsyncIterator[Any]:
        try:
            async for piece in super().echo(task, context):
                yield piece
        finally:
            if task.payload["model"] == "patient":
                await self.let_go.wait()


async def test_a_task_that_its_worker_has_not_let_go_is_waited_for(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew_module, "Crew", Slow)
    keys = [key("site", delegating=True), key("ops", scopes=["admin"])]
    async with stage(redis_url, tmp_path, slots=2, keys=keys) as (caller, crew):
        assert isinstance(crew, Slow)
        try:
            zebra = caller.other(secret("site"), **{"X-Fairlane-User": "zebra-fish"})
            ops = caller.other(secret("ops"))
            crew.go.clear()
            await zebra.batch([line(number, model="patient") for number in range(5)])
            await until(lambda: crew.running == 2, "lines to run")
            with monkeypatch.context() as patched:
                patched.setattr(erasure_calls, "WAIT_S", 1.0)
                patched.setattr(erase, "MAX_WAITS", 2)
                told = await forget(ops, "--json")
            sums = sums_of(told)
            assert (told.exit_code, sums["more"], sums["unended"], sums["stopping"]) == (1, True, 0, 2)
            assert "2 tasks" in told.stderr
            crew.let_go.set()
            told = await forget(ops, "--json")
            assert (told.exit_code, sums_of(told)["results"]) == (0, 2), told.output
            tasks = (await ops.http.get("/api/admin/tasks", params={"user": USER})).json()
            assert tasks["tasks"] == []
            await nothing_names_them(ops)
        finally:
            crew.let_go.set()


@pytest.mark.parametrize("files", [1, 0])
async def test_batches_that_do_not_end_are_told_and_the_command_says_that_there_is_more(
    staged: tuple[Caller, Caller, Crew], monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    monkeypatch.setattr(erasure_calls, "WAIT_S", 0.0)
    monkeypatch.setattr(erase, "MAX_WAITS", 2)
    ops, zebra, crew = staged
    crew.go.clear()
    made = await zebra.batch([line(1, model="patient")])
    await until(lambda: crew.running == 1, "its line to run")
    await leading_of(ops).close()  # nobody leads it
    if not files:  # and of the user there is nothing else
        assert (await zebra.http.delete(f"/v1/files/{made['input_file_id']}")).status_code == 200
    told = await forget(ops, "--json")
    assert told.exit_code == 1
    sums = sums_of(told)
    assert (sums["more"], sums["unended"], sums["files"], sums["batches"]) == (True, 1, files, 0)
    assert (await zebra.show(made["id"]))["status"] == "cancelling"
    audit = (await ops.http.get("/api/admin/audit", params={"action": "erase"})).json()["entries"]
    assert len(audit) == 1, "that of the call that cancelled it, and not of each that only waited"
    leading_of(ops).start()
    monkeypatch.setattr(erase, "MAX_WAITS", 1000)
    told = await forget(ops)
    assert (told.exit_code, "\n1 batches\n" in told.stdout) == (0, True), told.output
    await nothing_names_them(ops)
