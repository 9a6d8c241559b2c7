"""What lines of batches wait for: it is told, holds up no other lines, fails nothing, and is none of their caller's refusals."""

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.integration.native.keys import key, secret
from tests.support.serving import until

from fairlane.gateway.batches import feeding, held, leading, seats, standing
from fairlane.gateway.files import files

from .crew import Caller, file_of, line, stage, waits

pytestmark = pytest.mark.anyio


def refused(caller: Caller) -> float:
    return sum(caller.served.gateway.metrics.refused_tasks.values.values())


async def test_a_model_without_a_worker_is_told_and_holds_up_no_other_ones_lines(
    redis_url: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"models": {"echo": {}, "lonely": {}}, "batches": {"window": 3}}
    async with stage(redis_url, tmp_path, **settings) as (caller, crew):
        first = [line(number, model="lonely") for number in range(20)]
        made = await caller.batch([*first, *(line(number) for number in range(20, 25))])
        await until(lambda: len(crew.runs) == 5, "lines of the other model to run")
        told = await waits(caller, made["id"], "NO_WORKER")
        assert told["waitsFor"] == [{"code": "NO_WORKER", "models": ["lonely"]}]

        async def still() -> bool:
            return bool((await caller.show(made["id"]))["fairlane"]["stillSince"])

        await until(still, "it to stand still")
        [row] = (await caller.http.get("/api/admin/batches")).json()["batches"]
        assert row["waitsFor"] == told["waitsFor"]
        assert row["stillSince"] > row["createdAt"]
        assert (row["linesWaiting"], row["linesRunning"], row["counts"]["completed"]) == (0, 0, 5)
        assert refused(caller) == 0
        assert sum(caller.served.gateway.metrics.accepted_tasks.values.values()) == 5
        await caller.http.post(f"/v1/batches/{made['id']}/cancel")
        ended = await caller.reaches(made["id"])
        assert ended["request_counts"] == {"total": 25, "completed": 5, "failed": 0}
        assert ended["fairlane"]["waitsFor"] == []


async def test_lines_under_way_and_tokens_are_told(redis_url: str, tmp_path: Path) -> None:
    async with stage(redis_url, tmp_path, slots=2) as (caller, crew):
        crew.go.clear()
        made = await caller.batch([line(number, model="patient") for number in range(5)])

        async def under_way() -> bool:
            told = (await caller.show(made["id"]))["fairlane"]
            return (told["linesWaiting"], told["linesRunning"]) == (3, 2)

        await until(under_way, "two lines to run and three to wait", 20)
        crew.go.set()
        ended = await caller.reaches(made["id"])
        assert ended["usage"] == {
            "input_tokens": 15,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 10,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 25,
        }
        assert ended["fairlane"] == {"linesWaiting": 0, "linesRunning": 0, "waitsFor": [], "stillSince": None}


async def test_a_line_may_wait_for_longer_than_its_queue_lets_others(redis_url: str, tmp_path: Path) -> None:
    async with stage(redis_url, tmp_path, slots=1, queues={"free_batch": {"max_wait_ms": 100}}) as (
        caller,
        crew,
    ):
        crew.go.clear()
        made = await caller.batch([line(number, model="patient") for number in range(3)])
        body = {"model": "patient", "messages": [{"role": "user", "content": "later"}], "async": True}
        await until(lambda: crew.running == 1, "the first line to run")
        other = (await caller.http.post("/api/openai", json=body)).json()["taskId"]

        async def failed() -> bool:
            return bool((await caller.http.get(f"/api/task/{other}")).json()["status"] == "failed")

        await until(failed, "a task of the same queue to have waited for too long")
        crew.go.set()
        ended = await caller.reaches(made["id"])
        assert ended["request_counts"] == {"total": 3, "completed": 3, "failed": 0}


async def test_a_used_up_quota_is_waited_for(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeding, "MONEY_S", 1.0)
    keys = [key("app", quota={}), key("ops", admin=True)]
    prices = [{"model": "*", "input": 1000, "output": 1000}]
    async with stage(redis_url, tmp_path, keys=keys, prices=prices) as (caller, crew):
        app, ops = caller.other(secret("app")), caller.other(secret("ops"))

        async def grant(credits: str, grant_id: str) -> None:
            said = {"key": "app", "credits": credits, "id": grant_id}
            answer = await ops.http.post("/api/admin/quota/grants", json=said)
            assert answer.status_code == 201, answer.text

        await grant("0.1", "first")
        dear = line("dear", max_tokens=100_000)
        cheap = [line(number, max_tokens=4) for number in range(20)]
        made = await app.batch([dear, *cheap])
        await until(lambda: len(crew.runs) >= 1, "a line that can be paid to pass the one that cannot")
        told = await waits(app, made["id"], "INSUFFICIENT_QUOTA")
        assert told["waitsFor"] == [{"code": "INSUFFICIENT_QUOTA", "models": []}]
        assert refused(caller) == 0
        await grant("1000", "second")
        ended = await app.reaches(made["id"], deadline_s=30)
        assert ended["request_counts"] == {"total": 21, "completed": 21, "failed": 0}
        assert set(crew.runs.values()) == {1}


async def test_a_row_of_lines_that_cannot_be_paid_holds_up_no_cheaper_ones_behind_it(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeding, "MONEY_S", 0.1)
    monkeypatch.setattr(held, "LEAST_REST_S", 0.1)
    keys = [key("app", quota={}), key("ops", admin=True)]
    prices = [{"model": "*", "input": 1000, "output": 1000}]
    async with stage(redis_url, tmp_path, keys=keys, prices=prices) as (caller, crew):
        app, ops = caller.other(secret("app")), caller.other(secret("ops"))
        said = {"key": "app", "credits": "0.1", "id": "first"}
        assert (await ops.http.post("/api/admin/quota/grants", json=said)).status_code == 201
        dear = [line(f"dear {number}", max_tokens=100_000) for number in range(5 * feeding.UNPAID_IN_A_ROW)]
        made = await app.batch([*dear, line("cheap", max_tokens=4)])
        await until(lambda: [*crew.runs] == ["say cheap"], "the line that can be paid to run")
        await waits(app, made["id"], "INSUFFICIENT_QUOTA")


async def test_a_cancel_behind_a_takeover_ends_what_runs_without_the_file(
    redis_url: str, tmp_path: Path
) -> None:
    async with stage(redis_url, tmp_path, slots=3) as (caller, crew):
        crew.go.clear()
        made = await caller.batch([line(number, model="patient") for number in range(6)])
        await until(lambda: crew.running == 3, "lines to run")
        [folder] = [mark.parent for mark in tmp_path.glob("**/fairlane-storage")]  # noqa: ASYNC240
        folder.rename(tmp_path / "away")
        await caller.http.post(f"/v1/batches/{made['id']}/cancel")
        led_here = next(part for part in caller.served.gateway._parts if hasattr(part, "hurry"))
        led_here._tasks[made["id"]].cancel()  # it is taken up anew, and knows of no line
        await until(lambda: crew.running == 0, "what runs to be stopped")
        assert (await caller.show(made["id"]))["status"] == "cancelling"
        (tmp_path / "away").rename(folder)
        ended = await caller.reaches(made["id"], deadline_s=30)
        assert ended["status"] == "cancelled"
        assert ended["request_counts"]["completed"] == 0
        assert len(await caller.records(ended["error_file_id"])) == 6


async def test_those_that_stand_still_are_told_once_however_often_they_change_seats(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leading, "MOST", 1)
    monkeypatch.setattr(seats, "TURN_S", 0.1)
    monkeypatch.setattr(leading, "LOOK_S", 0.2)
    monkeypatch.setattr(standing, "TOLD_AFTER_S", 0.0)
    turns: list[str] = []
    rests = leading.Leading._give_back

    def noted(self: leading.Leading, batch_id: str) -> Any:
        turns.append(batch_id)
        return rests(self, batch_id)

    monkeypatch.setattr(leading.Leading, "_give_back", noted)
    with capture_logs() as logs:

        def told() -> list[str]:
            return sorted(one["batch"] for one in logs if one["event"] == "batch stands still")

        async with stage(redis_url, tmp_path, models={"echo": {}, "lonely": {}}) as (caller, _):
            made = [(await caller.batch([line(1, model="lonely")]))["id"] for _ in range(2)]
            await until(lambda: set(told()) == set(made), "each to be told")
            turns.clear()
            await until(lambda: all(turns.count(one) >= 2 for one in made), "each to have led twice more")
    assert told() == sorted(made)


async def test_one_that_waits_for_its_file_gives_up_its_seat(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leading, "MOST", 1)
    monkeypatch.setattr(seats, "TURN_S", 0.5)
    monkeypatch.setattr(files, "LOOK_AGAIN_S", 0.1)
    async with stage(redis_url, tmp_path) as (caller, _):
        ids = [await caller.upload(file_of([line(number)])) for number in range(2)]
        [folder] = [mark.parent for mark in tmp_path.glob("**/fairlane-storage")]  # noqa: ASYNC240
        folder.rename(tmp_path / "away")
        made = [(await caller.create(file_id))["id"] for file_id in ids]
        for batch_id in made:
            await waits(caller, batch_id, "STORAGE_UNAVAILABLE")
        (tmp_path / "away").rename(folder)
        for batch_id in made:
            assert (await caller.reaches(batch_id))["status"] == "completed"
