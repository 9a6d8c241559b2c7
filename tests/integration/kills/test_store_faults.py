"""Redis stops, forgets its scripts, or comes back empty: clear answers at once, and what runs goes on where it can."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from msgspec import msgpack
from structlog.testing import capture_logs
from tests.integration.metrics.scraping import scrape
from tests.support.ledger import KEYS, ended_once, nothing_left, tasks_in
from tests.support.rawworkers import RawWorker
from tests.support.servers import Server
from tests.support.serving import until
from tests.support.streams import RawStream, joined_text
from tests.support.talk import Talk, talking

import fairlane.gateway.store.configuration

pytestmark = pytest.mark.anyio

CHAT = {"model": "m", "name": "m", "messages": [{"role": "user", "content": "x"}]}


@pytest.fixture
async def talk(own_redis: Server, tmp_path: Path) -> AsyncIterator[Talk]:
    async with talking(own_redis.url, tmp_path, stream_flush_interval_ms=0, stream_flush_size=1) as talk:
        yield talk


@pytest.fixture
def store(own_redis: Server) -> Any:
    with own_redis.client() as client:
        yield client


def refused(answer: httpx2.Response) -> None:
    """A clear answer: what is wrong, and when to try again."""
    assert answer.status_code == 503, answer.text
    assert answer.json()["error"] == "Store unavailable"
    assert 1 <= int(answer.headers["retry-after"]) <= 60


async def test_while_redis_is_stopped_new_calls_are_rejected_and_streams_wait(
    talk: Talk, own_redis: Server, store: Any
) -> None:
    """Ten seconds, as long as two thirds of a lease."""
    async with talk.worker() as worker, talk.worker() as second:
        task_id = await talk.submit()
        task = await worker.take()
        held_id = await talk.submit()
        held = await second.take()
        async with await RawStream.open(talk.served.url, f"/api/task/{task_id}/events") as stream:
            frames = await stream.take(1)
            await worker.chunk(task, "before ")
            frames += await stream.take(1)
            own_redis.freeze()
            try:
                for number in range(5):
                    await worker.chunk(task, f"{number} ")
                    refused(await talk.http.post("/api/openai", json={"messages": []}))
                    refused(await talk.http.post("/api/openai", json={"stream": True}))
                    refused(await talk.http.post("/api/openai", json={"async": True}))
                    refused(await talk.http.get(f"/api/task/{held_id}"))
                    assert (await talk.http.get("/livez")).status_code == 200
                    ready = await talk.http.get("/readyz")
                    assert ready.status_code == 503
                    await asyncio.sleep(2)
                await second.answer(held, "finished while Redis was stopped")
            finally:
                own_redis.thaw()
            await worker.chunk(task, "after")
            await worker.answer(task)
            frames += await stream.log()
        assert joined_text(frames) == "before 0 1 2 3 4 after"
        assert frames[-1].event == "done"
        body = await talk.reaches(held_id, "completed", "failed")
        assert body["result"] == "finished while Redis was stopped"
        for free in (worker, second):
            talk.later(answer_all(free))  # a task may have begun before its withdrawal came
        await nothing_left(store)
        for task_id in tasks_in(store):
            ended_once(store, task_id)
        assert (await talk.sync()).json() == "ok"


async def answer_all(worker: RawWorker) -> None:
    while True:
        await worker.answer(await worker.take(), "ok")


async def test_all_clients_get_an_error_when_redis_returns_empty(talk: Talk, own_redis: Server) -> None:
    """Nobody hangs: not who waits in the queue, not who reads a stream, not the worker with the lost task."""
    async with talk.worker() as worker:
        running = talk.sync()
        task = await worker.take()
        waiting = talk.sync()
        later = await talk.submit()
        await talk.waiting(2)
        async with await RawStream.open(talk.served.url, f"/api/task/{later}/events") as stream:
            with capture_logs() as lines:
                own_redis.stop()
                own_redis.start()
                await asyncio.wait((running, waiting))
            told = [
                line["log_level"] for line in lines if line["event"].startswith("Redis has come back empty")
            ]
            assert told == ["error"]
            for call in (running, waiting):
                answer = await call
                assert answer.status_code == 500, answer.text
                assert answer.json()["code"] == "STORE_LOST"
                assert answer.json()["error"] == "The store lost this task"
            names = []
            while (frame := await stream.frame()) is not None:
                names.append(frame.event)
            assert names[-3:] == ["gap", "restart", "bye"]
        gone = await talk.http.get(f"/api/task/{later}")
        assert (gone.status_code, gone.json()["error"]) == (404, "Task not found or expired")
        await worker.chunk(task, "of a lost task")
        await worker.answer(task, "of a lost task")
        fresh = talk.sync()
        await worker.answer(await worker.take(), "fresh")
        assert (await fresh).json() == "fresh"


async def test_a_store_that_is_emptied_under_a_live_connection_is_configured_again(
    own_redis: Server, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By each replica; and so is each call that is lost with it: in the log, the metrics and the history."""
    monkeypatch.setattr(fairlane.gateway.store.configuration, "COMPARE_S", 0.05)
    limits: dict[str, Any] = {"models": {"m": {"concurrency": 3}}, "stream_flush_interval_ms": 0}
    async with (
        talking(own_redis.url, tmp_path, **limits) as talk,
        talking(own_redis.url, tmp_path, **limits) as other,
        talk.worker2(["m"]) as worker,
    ):
        running = talk.later(talk.http.post("/v1/chat/completions", json={**CHAT, "stream": True}))
        task = await worker.expect("task")
        await worker.ack(task)
        await worker.chunk(task, "a", seq=1)
        changed = await talk.http.patch("/api/admin/models/m", json={"concurrency": 2})
        assert changed.status_code == 200, changed.text
        calls = [
            talk.later(talk.http.post(path, json={**CHAT, **more}))
            for path, more in (
                ("/v1/chat/completions", {}),
                ("/v1/chat/completions", {"stream": True}),
                ("/api/openai", {"stream": True}),
            )
        ]
        await talk.waiting(3)
        with capture_logs() as lines:
            store.flushall()
            answers = await asyncio.gather(running, *calls)
            emptied = "Redis has come back empty"
            await until(lambda: len([line for line in lines if line["event"].startswith(emptied)]) == 2)
            # a call's line may follow its answer
            await until(lambda: len([line for line in lines if line["event"] == "task failed"]) >= 4)
        requests = {answer.headers["x-request-id"] for answer in answers}
        lost = [line for line in lines if line["event"] == "task failed"]
        assert {line["code"] for line in lost} == {"STORE_LOST"}
        assert {line["request_id"] for line in lost} == requests
        assert len(lost) == 4
        told = await scrape(talk.http)
        assert told.value("fairlane_tasks_ended_total", model="m", code="STORE_LOST") == 4
        for at in (talk, other):
            assert (await scrape(at.http)).value("fairlane_redis_emptied_total") == 1
        assert msgpack.decode(store.hget(KEYS("model", model="m"), "settings"))["concurrency"] == 3
        secrets = {at.served.gateway.tasks.links.tickets.issue("t", 1) for at in (talk, other)}
        assert len(secrets) == 1


async def test_a_posted_stream_whose_task_is_lost_ends_with_an_error(talk: Talk, own_redis: Server) -> None:
    async with (
        talk.worker() as worker,
        await RawStream.open(talk.served.url, "/api/openai", body={"stream": True}) as stream,
    ):
        await worker.chunk(await worker.take(), "x")
        frames = await stream.take(2)
        assert joined_text(frames) == "x"
        own_redis.stop()
        own_redis.start()
        farewell = [frame for frame in [await stream.frame() for _ in range(3)] if frame]
        assert [frame.event for frame in farewell] == ["gap", "restart", "bye"]
        bye = farewell[-1]
        assert bye.data["reconnectMs"] > 0


async def test_a_gateway_waits_for_a_redis_that_is_not_there_yet(own_redis: Server, tmp_path: Path) -> None:
    own_redis.freeze()

    async def open_later() -> None:
        async with talking(own_redis.url, tmp_path) as talk:
            assert (await talk.http.get("/readyz")).status_code == 200

    opening = asyncio.create_task(open_later())
    try:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(opening), 1.5)
        assert not opening.done()
    finally:
        own_redis.thaw()
    await opening
