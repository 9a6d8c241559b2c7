"""Batches in trouble: replies of Redis are lost, lines do not end, files are taken away, a gateway stops in order."""

import asyncio
from pathlib import Path

import pytest
from tests.support.proxy import ReplyProxy
from tests.support.servers import Server
from tests.support.serving import http_client, serving, until

from .crew import CHAT, Caller, Crew, file_of, line, stage, waits, working

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


async def test_a_storage_that_is_away_is_waited_for_and_cancelling_does_not_wait(
    redis_url: str, tmp_path: Path
) -> None:
    async with stage(redis_url, tmp_path) as (caller, _):
        ids = [await caller.upload(file_of([line(number)])) for number in range(2)]
        [folder] = [mark.parent for mark in tmp_path.glob("**/fairlane-storage")]  # noqa: ASYNC240
        folder.rename(tmp_path / "away")
        cancelled, patient = [await caller.create(file_id) for file_id in ids]
        for batch in (cancelled, patient):
            await waits(caller, batch["id"], "STORAGE_UNAVAILABLE")
        await caller.http.post(f"/v1/batches/{cancelled['id']}/cancel")
        assert (await caller.reaches(cancelled["id"]))["status"] == "cancelled"
        assert (await caller.show(patient["id"]))["status"] == "validating"
        (tmp_path / "away").rename(folder)
        assert (await caller.reaches(patient["id"]))["request_counts"]["completed"] == 1


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
