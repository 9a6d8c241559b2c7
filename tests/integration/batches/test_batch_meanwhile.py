"""What changes while a batch runs: limits of its key, what it can pay with, files that expire."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from tests.integration.native.keys import key, secret
from tests.support.serving import until

from fairlane.gateway.batches import backlog
from fairlane.gateway.database.tables import files
from fairlane.gateway.files.disk import Disk
from fairlane.gateway.files.files import Files
from fairlane.gateway.files.settings import FilesSettings

from .crew import file_of, line, stage, waits

pytestmark = pytest.mark.anyio


async def test_limits_that_are_lowered_hold_for_what_has_not_begun_and_raised_ones_let_it_go_on(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "MAX_RETRY_S", 1.0)
    settings: dict[str, Any] = {"keys": [key("ops", scopes=["admin"])], "batches": {"window": 4}}
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
        async with caller.served.gateway.database.writing() as connection:
            brought = (
                shown["created_at"] - 31 * 24 * 3600
            ) * 1000  # the longest `files.ttl` was over a day ago
            await connection.execute(update(files).values(created=brought))
        await caller.create(file_id, completion_window="7d")
        kept_until = (await caller.http.get(f"/v1/files/{file_id}")).json()["expires_at"]
        assert kept_until == shown["created_at"] + 7 * 24 * 3600
