"""Batches in trouble: replies of Redis are lost, lines do not end, files are taken away, a gateway stops in order."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.support.proxy import ReplyProxy
from tests.support.servers import Server
from tests.support.serving import http_client, serving, until

from fairlane.gateway.batches import led, standing, work
from fairlane.gateway.batches.batch import Batch
from fairlane.gateway.batches.held import Held
from fairlane.gateway.batches.leading import Leading
from fairlane.gateway.batches.led import AT_ONCE
from fairlane.gateway.batches.outcomes import Outcome
from fairlane.gateway.batches.store import BatchStore
from fairlane.gateway.batches.work import KEPT_AT_ONCE
from fairlane.gateway.files import files

from .crew import CHAT, Caller, Crew, file_of, line, stage, working

pytestmark = pytest.mark.anyio


@pytest.mark.slow
async def test_replies_of_the_store_are_lost_and_no_line_runs_twice(
    redis_server: Server, redis_url: str, tmp_path: Path
) -> None:
    async with ReplyProxy(redis_server.socket_path, lambda n: n > 100 and n % 83 == 0) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0"
        async with stage(url, tmp_path, redis_timeout_ms=3000, lease_ms=4000) as (caller, crew):
            made = await caller.batch([line(number) for number in range(60)])
            ended = await caller.reaches(made["id"], deadline_s=60)
            assert ended["request_counts"] == {"total": 60, "completed": 60, "failed": 0}
            records = await caller.records(ended["output_file_id"])
            assert [record["custom_id"] for record in records] == [f"id-{n}" for n in range(60)]
            assert set(crew.runs.values()) == {1}
        assert proxy.dropped > 2


async def test_a_line_without_an_end_is_refused_with_its_number(redis_url: str, tmp_path: Path) -> None:
    async with stage(redis_url, tmp_path, max_body_bytes=65_536) as (caller, crew):
        for rest in (b"x" * (40 << 20), json.dumps(line(2, pad="y" * 80_000)).encode()):
            made = await caller.create(await caller.upload(file_of([line(1)]) + rest))
            ended = await caller.reaches(made["id"])
            assert ended["status"] == "failed"
            [error] = ended["errors"]["data"]
            assert (error["code"], error["line"]) == ("line_too_long", 2)
        assert not crew.runs


async def test_long_lines_are_answered_too(redis_url: str, tmp_path: Path) -> None:
    async with stage(redis_url, tmp_path) as (caller, _):
        said = [{"role": "user", "content": "z" * (1 << 20)}]
        made = await caller.batch([line(number, messages=said) for number in range(12)])
        ended = await caller.reaches(made["id"], deadline_s=60)
        assert ended["request_counts"] == {"total": 12, "completed": 12, "failed": 0}
        for record in await caller.records(ended["output_file_id"]):
            assert len(record["response"]["body"]["choices"][0]["message"]["content"]) == 1 << 20


async def test_a_file_that_is_taken_away_ends_its_batch(redis_url: str, tmp_path: Path) -> None:
    async with stage(redis_url, tmp_path, slots=1, batches={"window": 2}) as (caller, crew):
        crew.go.clear()
        many = [line(number, model="patient", pad="p" * 20_000) for number in range(200)]
        made = await caller.batch(many)
        await caller.reaches(made["id"], "in_progress")
        await until(lambda: crew.running == 1, "a line to run")
        assert (await caller.http.delete(f"/v1/files/{made['input_file_id']}")).status_code == 200
        crew.go.set()
        ended = await caller.reaches(made["id"], deadline_s=60)
        assert ended["status"] == "failed"
        assert [error["code"] for error in ended["errors"]["data"]] == ["file_not_found"]
        counts = ended["request_counts"]
        assert 0 < counts["completed"] < 200
        assert len(await caller.records(ended["output_file_id"])) == counts["completed"]


async def test_lines_that_are_all_refused_are_written_a_part_at_a_time(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    keep = BatchStore.keep

    async def noted(
        store: BatchStore, batch: Batch, outcomes: Sequence[Outcome], *place: int, **values: Any
    ) -> Batch:
        written.append(len(outcomes))
        return await keep(store, batch, outcomes, *place, **values)

    monkeypatch.setattr(BatchStore, "keep", noted)
    async with stage(redis_url, tmp_path) as (caller, crew):
        made = await caller.batch([line(number, n=500) for number in range(1500)])
        ended = await caller.reaches(made["id"], deadline_s=60)
        assert ended["request_counts"] == {"total": 1500, "completed": 0, "failed": 1500}
        assert len(await caller.records(ended["error_file_id"])) == 1500
        assert max(written) < KEPT_AT_ONCE + AT_ONCE
        assert not crew.runs


async def test_a_batch_ends_whose_file_and_tasks_are_both_gone(redis_url: str, tmp_path: Path) -> None:
    async with stage(redis_url, tmp_path, slots=1, batches={"window": 3}) as (caller, crew):
        crew.go.clear()
        made = await caller.batch([line(number, model="patient") for number in range(3)])
        async with asyncio.timeout(15):
            while crew.running < 1:
                await asyncio.sleep(0.02)
        assert (await caller.http.delete(f"/v1/files/{made['input_file_id']}")).status_code == 200
        await caller.served.gateway.link.command("FLUSHALL")
        crew.go.set()
        ended = await caller.reaches(made["id"], deadline_s=60)
        assert ended["request_counts"] == {"total": 3, "completed": 0, "failed": 3}
        for record in await caller.records(ended["error_file_id"]):
            assert record["response"]["body"]["error"]["code"] == "FILE_NOT_FOUND"


async def test_of_lines_that_the_store_has_lost_few_are_held_at_a_time(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "HELD_BYTES", 0)
    held, add = list[int](), Held.add

    def noted(lines: Held, *args: Any, **options: Any) -> None:
        add(lines, *args, **options)
        held.append(len(lines))

    async with stage(redis_url, tmp_path, slots=1) as (caller, crew):
        crew.go.clear()
        made = await caller.batch([line(number, model="patient") for number in range(8)])
        await until(lambda: crew.running == 1, "a line to run")
        monkeypatch.setattr(Held, "add", noted)
        await caller.served.gateway.link.command("FLUSHALL")
        crew.go.set()
        ended = await caller.reaches(made["id"], deadline_s=60)
        assert ended["request_counts"] == {"total": 8, "completed": 8, "failed": 0}
        assert len(held) >= 7
        assert max(held) == 1


async def test_a_line_that_became_too_long_ends_its_batch(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(redis_url, tmp_path, slots=1) as (caller, _):
        longest = iter([1 << 20])  # when the file is looked at
        monkeypatch.setattr(led, "longest_line", lambda _: next(longest, 4096))
        made = await caller.batch([line(1), line(2, pad="p" * 80_000), line(3)])
        ended = await caller.reaches(made["id"], deadline_s=60)
        assert ended["status"] == "failed"
        [error] = ended["errors"]["data"]
        assert (error["code"], error["line"]) == ("line_too_long", 2)


async def test_a_storage_that_is_away_is_waited_for_and_cancelling_does_not_wait(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LOOK_AGAIN_S", 0.1)
    monkeypatch.setattr(standing, "TOLD_AFTER_S", 0.5)
    with capture_logs() as logs:
        async with stage(redis_url, tmp_path) as (caller, _):
            ids = [await caller.upload(file_of([line(number)])) for number in range(2)]
            [folder] = [mark.parent for mark in tmp_path.glob("**/fairlane-storage")]  # noqa: ASYNC240
            folder.rename(tmp_path / "away")
            cancelled, waits = [await caller.create(file_id) for file_id in ids]
            told = {cancelled["id"], waits["id"]}
            await until(
                lambda: told == {one["batch"] for one in logs if one["event"] == "batch stands still"},
                "the log to tell it of both",
            )
            await caller.http.post(f"/v1/batches/{cancelled['id']}/cancel")
            assert (await caller.reaches(cancelled["id"]))["status"] == "cancelled"
            assert (await caller.show(waits["id"]))["status"] == "validating"
            (tmp_path / "away").rename(folder)
            assert (await caller.reaches(waits["id"]))["request_counts"]["completed"] == 1
    whys = [one["why"] for one in logs if one["event"] == "batch stands still"]
    assert all(why == ["STORAGE_UNAVAILABLE"] for why in whys)
    assert [one["batch"] for one in logs if one["event"] == "batch goes on"] == [waits["id"]]
    events = [one["event"] for one in logs]
    assert events.count("files are not served here") == events.count("files are served here again") == 1


async def test_of_a_storage_that_is_back_is_told_when_the_files_of_answers_are_written(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LOOK_AGAIN_S", 0.1)
    monkeypatch.setattr(files, "HOLDS_S", 0.0)
    monkeypatch.setattr(standing, "TOLD_AFTER_S", 0.5)
    with capture_logs() as logs:

        def told(event: str) -> list[str]:
            return [one["batch"] for one in logs if one["event"] == event]

        async with stage(redis_url, tmp_path) as (caller, crew):
            crew.go.clear()
            made = await caller.batch([line(1, model="patient")])
            await until(lambda: crew.running == 1, "its line to run")
            [folder] = [mark.parent for mark in tmp_path.glob("**/fairlane-storage")]  # noqa: ASYNC240
            folder.rename(tmp_path / "away")
            crew.go.set()
            await until(lambda: told("batch stands still"), "the log to tell it")
            (tmp_path / "away").rename(folder)
            assert (await caller.reaches(made["id"]))["status"] == "completed"
    assert told("batch goes on") == [made["id"]]


async def test_a_replica_that_has_not_the_files_leaves_a_batch_to_one_that_has(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "TOLD_AFTER_S", 1e9)
    settings = {"models": {"echo": {}}, "database_url": f"sqlite:///{tmp_path}/shared.db"}
    right, wrong = ({"storage": str(tmp_path / name)} for name in ("right", "wrong"))
    async with serving(redis_url, tmp_path, files=right, **settings) as there, http_client(there.url) as http:
        file_id = await Caller(http, there).upload(file_of([line(1)]))
    crew = Crew()
    with capture_logs() as logs:
        async with (
            serving(redis_url, tmp_path, files=wrong, **settings) as here,
            http_client(here.url) as http,
        ):
            caller = Caller(http, here)
            made = await caller.create(file_id)
            await until(lambda: "files are not served here" in [one["event"] for one in logs], "it to be led")
            async with serving(redis_url, tmp_path, files=right, **settings) as there, working(there, crew):
                assert (await caller.show(made["id"]))["status"] == "validating"
                monkeypatch.setattr(standing, "TOLD_AFTER_S", 0.0)
                ended = await caller.reaches(made["id"])
    assert ended["request_counts"] == {"total": 1, "completed": 1, "failed": 0}


async def test_a_batch_without_a_worker_is_told_to_stand_still(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "TOLD_AFTER_S", 0.5)
    with capture_logs() as logs:
        async with stage(redis_url, tmp_path, models={"echo": {}, "lonely": {}}) as (caller, _):
            made = await caller.batch([line(1, model="lonely")])
            await until(lambda: "batch stands still" in [one["event"] for one in logs], "the log to tell it")
    [still] = [one for one in logs if one["event"] == "batch stands still"]
    assert (still["batch"], still["why"], still["models"]) == (made["id"], ["NO_WORKER"], ["lonely"])


async def test_who_leads_a_batch_next_tells_that_it_stands_still(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "TOLD_AFTER_S", 1e9)
    with capture_logs() as logs:

        def told() -> list[str]:
            return [one["batch"] for one in logs if one["event"] == "batch stands still"]

        async with stage(redis_url, tmp_path, models={"echo": {}, "lonely": {}}) as (caller, _):
            made = await caller.batch([line(1, model="lonely")])

            async def still() -> bool:
                return bool((await caller.show(made["id"]))["fairlane"]["stillSince"])

            await until(still, "it to stand still")
            leading = next(part for part in caller.served.gateway._parts if isinstance(part, Leading))
            for times in (1, 2):
                monkeypatch.setattr(standing, "TOLD_AFTER_S", 0.0)
                leading._tasks[made["id"]].cancel()  # when it was to be told, nobody led it
                await until(lambda times=times: len(told()) == times, "the next one to tell it")
    assert told() == [made["id"]] * 2


@pytest.mark.slow
async def test_a_gateway_that_stops_in_order_hands_its_batches_over_at_once(
    redis_url: str, tmp_path: Path
) -> None:
    settings = {"redis_url": redis_url, "models": {"echo": {}, "patient": {}}, "lease_ms": 120_000}
    crew = Crew()
    crew.go.clear()
    async with serving(tmp_path=tmp_path, **settings) as first, http_client(first.url) as http:
        caller = Caller(http, first)
        async with working(first, crew, 2):
            made = await caller.batch([line(number, model="patient") for number in range(20)])
            async with asyncio.timeout(15):
                while crew.running < 2:
                    await asyncio.sleep(0.02)
            async with serving(tmp_path=tmp_path, **settings) as second, http_client(second.url) as other:
                crew_there = Crew()
                async with working(second, crew_there, 2):
                    first.gateway.health.serving = False
                    await first.gateway.drain()  # with `lease_ms` to go
                    crew.go.set()
                    ended = await Caller(other, second).reaches(made["id"], deadline_s=60)
        assert ended["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
        again = [prompt for prompt, count in (crew.runs + crew_there.runs).items() if count > 1]
        assert len(again) <= 2, "what the first one ran when its time was over goes back to its queue"
        assert ended["endpoint"] == CHAT
