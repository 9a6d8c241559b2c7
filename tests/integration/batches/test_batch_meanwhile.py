"""What changes while a batch runs: limits of its key, what it can pay with, files that expire."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from tests.integration.native.keys import key, secret
from tests.support.serving import until

from fairlane.gateway.batches import backlog, runner
from fairlane.gateway.database.tables import files
from fairlane.gateway.files.disk import Disk
from fairlane.gateway.files.files import Files
from fairlane.gateway.settings import FilesSettings

from .crew import file_of, line, stage, waits

pytestmark = pytest.mark.anyio


async def test_limits_that_are_lowered_hold_for_what_has_not_begun_and_raised_ones_let_it_go_on(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "MAX_RETRY_S", 1.0)
    settings: dict[str, Any] = {"keys": [key("ops", admin=True)], "batches": {"window": 4}}
    async with stage(redis_url, tmp_path, **settings) as (caller, crew):
        ops = caller.other(secret("ops"))
        answer = await ops.http.post("/api/admin/keys", json={"id": "app"})
        assert answer.status_code == 201, answer.text
        app = caller.other(answer.json()["secret"])

        async def limit(**limits: int) -> None:
            answer = await ops.http.patch("/api/admin/keys/app", json={"limits": limits})
            assert answer.status_code == 200, answer.text

        crew.go.clear()
        made = await app.batch([line(number, model="patient") for number in range(12)])
        await until(lambda: crew.running == 4, "the first lines to run")
        await limit(requests_per_day=1)
        crew.go.set()
        await waits(app, made["id"], "RATE_LIMITED")
        ran = len(crew.runs)
        assert ran < 12
        await limit(requests_per_day=1000)
        ended = await app.reaches(made["id"], deadline_s=30)
        assert ended["request_counts"] == {"total": 12, "completed": 12, "failed": 0}
        assert set(crew.runs.values()) == {1}


async def test_what_is_used_up_amid_a_batch_is_waited_for(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "QUOTA_RETRY_S", 0.2)
    monkeypatch.setattr(backlog, "MIN_RETRY_S", 0.2)
    keys = [key("app", quota={}), key("ops", admin=True)]
    prices = [{"model": "*", "input": 1000, "output": 1000}]
    async with stage(redis_url, tmp_path, keys=keys, prices=prices) as (caller, crew):
        app, ops = caller.other(secret("app")), caller.other(secret("ops"))

        async def grant(credits: str, grant_id: str) -> None:
            said = {"key": "app", "credits": credits, "id": grant_id}
            assert (await ops.http.post("/api/admin/quota/grants", json=said)).status_code == 201

        async def balance() -> float:
            (row,) = (await ops.http.get("/api/admin/quota")).json()["rows"]
            return float(row["balance"])

        await grant("0.1", "first")
        made = await app.batch([line(number, max_tokens=4) for number in range(60)])
        await waits(app, made["id"], "INSUFFICIENT_QUOTA")
        assert 0 < len(crew.runs) < 60
        assert await balance() >= 0
        await grant("1000", "second")
        ended = await app.reaches(made["id"], deadline_s=30)
        assert ended["request_counts"] == {"total": 60, "completed": 60, "failed": 0}
        assert set(crew.runs.values()) == {1}


async def test_a_file_does_not_expire_while_its_batch_runs(redis_url: str, tmp_path: Path) -> None:
    async with stage(redis_url, tmp_path) as (caller, crew):
        form = {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
        data = file_of([line(1, model="patient")])
        answer = await caller.http.post("/v1/files", files={"file": ("a.jsonl", data)}, data=form)
        file_id = answer.json()["id"]
        crew.go.clear()
        made = await caller.create(file_id)
        shown = (await caller.http.get(f"/v1/files/{file_id}")).json()
        assert shown["expires_at"] == made["expires_at"] + 24 * 3600
        later = (made["expires_at"] + 3600) * 1000
        kept = next(tmp_path.glob("**/fairlane-storage")).parent  # noqa: ASYNC240
        sweep = Files(caller.served.gateway.database, Disk(kept), FilesSettings, lambda: later)
        assert not await sweep.sweep()
        assert (await caller.http.get(f"/v1/files/{file_id}")).status_code == 200
        crew.go.set()
        assert (await caller.reaches(made["id"]))["request_counts"]["completed"] == 1
        await caller.create(file_id, completion_window="1h")
        assert (await caller.http.get(f"/v1/files/{file_id}")).json()["expires_at"] == shown["expires_at"]


async def test_batch_after_batch_keeps_no_file_for_ever(redis_url: str, tmp_path: Path) -> None:
    hour = 3600
    settings: dict[str, Any] = {
        "files": {"ttl_ms": hour * 1000},
        "batches": {"max_window_ms": 2 * hour * 1000},
    }
    async with stage(redis_url, tmp_path, **settings) as (caller, crew):
        crew.go.clear()
        file_id = await caller.upload(file_of([line(1, model="patient")]))

        async def shown() -> dict[str, Any]:
            told: dict[str, Any] = (await caller.http.get(f"/v1/files/{file_id}")).json()
            return told

        brought = await shown()
        assert brought["expires_at"] == brought["created_at"] + hour
        made = await caller.create(file_id, completion_window="2h")
        assert (await shown())["expires_at"] == made["expires_at"] + 24 * hour
        soon = (brought["created_at"] + hour) * 1000
        async with caller.served.gateway.database.writing() as connection:  # four hours go by
            created = files.c.created - 4 * hour * 1000
            await connection.execute(update(files).values(created=created, due=soon, expires=soon))
        await caller.create(file_id, completion_window="2h")
        told = await shown()
        assert told["expires_at"] == told["created_at"] + (1 + 2 + 24) * hour
