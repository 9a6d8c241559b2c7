"""Who has nothing but the log finds each task that failed, and the request that brought it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.support.rawworkers import Callers, callers_of, worker_v2
from tests.support.serving import Served, serving, until

import fairlane.gateway.shutdown
from fairlane.gateway.runtime import Gateway
from fairlane.gateway.settings import Settings

pytestmark = pytest.mark.anyio


@pytest.fixture
async def served(redis_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(redis_url, tmp_path, min_task_timeout_ms=100) as served:
        yield served


@pytest.fixture
async def callers(served: Served) -> AsyncIterator[Callers]:
    async with callers_of(served) as callers:
        yield callers


async def test_a_worker_s_failure_is_told_with_request_user_and_worker(
    served: Served, callers: Callers
) -> None:
    with capture_logs() as logs:
        async with worker_v2(served.ws) as worker:
            answer = callers.ask()
            task = await worker.expect("task")
            info = {"code": "UPSTREAM_ERROR", "retryable": False}
            await worker.answer(task, error="The upstream answered 501: no", errorInfo=info, lastSeq=0)
            response = await answer.response()
            line = await _line(logs)
            assert line["task_id"] == task["taskId"]
            assert line["request_id"] == response.headers["x-request-id"]
            assert (line["code"], line["error"]) == ("UPSTREAM_ERROR", "The upstream answered 501")
            assert (line["model"], line["attempt"]) == ("m", 1)
            assert line["user"]
            assert line["worker_id"] == worker.registered["workerId"]


@pytest.mark.parametrize(
    ("code", "retryable"), [("UPSTREAM_ERROR", True), ("UPSTREAM_AUTH", False), ("X_OWN", False)]
)
async def test_a_prompt_that_an_upstream_quotes_is_read_by_its_caller_alone(
    served: Served, callers: Callers, code: str, retryable: bool
) -> None:
    quote = "The upstream answered 500: template failed on input Patient Ann Beck has syphilis since May"
    shown = "The upstream answered 500"
    unbroken = await callers.client.patch("/api/admin/models/m", json={"breaker_failures": 0})
    assert unbroken.status_code == 200
    with capture_logs() as logs:
        async with worker_v2(served.ws) as worker:
            for _ in range(3):
                answer = callers.ask()
                for _ in range(3 if retryable else 1):
                    task = await worker.skip_to("task")
                    info = {"code": code, "retryable": retryable}
                    await worker.answer(task, error=quote, errorInfo=info, lastSeq=0)
                assert (await answer.response()).json()["error"] == quote
            state = (await callers.client.get("/api/admin/overview")).json()
            found = (await callers.client.get("/api/admin/tasks?status=failed")).json()
            await until(lambda: sum(line["event"] == "task failed" for line in logs) == 3, "the lines")
    assert [row["unhealthy"] for row in state["workers"]] == [shown]
    assert len(found["tasks"]) == 3
    assert "Ann" not in str((logs, state, found))
    assert str(logs).count(shown) == 4  # why the worker is unhealthy, too


async def test_a_task_that_waits_until_its_time_is_over_is_told_too(served: Served, callers: Callers) -> None:
    with capture_logs() as logs:
        async with worker_v2(served.ws) as worker:
            busy = callers.ask()
            task = await worker.expect("task")
            await worker.ack(task)
            answer = callers.ask(timeout=100)
            response = await answer.response()
            line = await _line(logs)
            assert (line["code"], line["request_id"]) == ("TOTAL_TIMEOUT", response.headers["x-request-id"])
            assert line["error"] == "Task timeout"
            await worker.answer(task, 1, lastSeq=0)
            await busy.ok()


async def test_a_gateway_without_redis_says_so_before_it_gives_up(tmp_path: Path) -> None:
    url = "redis://:hunter2@127.0.0.1:1/0"
    settings = Settings(port=0, data_dir=tmp_path, redis_url=url)
    with capture_logs() as logs:
        start = Gateway(settings, [url])
        starting = asyncio.create_task(start.start())
        line = await _line(logs, "no connection to Redis yet")
        assert not starting.done()
        assert (line["address"], "connecting to" in line["reason"]) == ("127.0.0.1:1", True)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await start.stop()
    assert "hunter2" not in str(logs)


async def _line(logs: list[Any], event: str = "task failed") -> Any:
    def failed() -> list[Any]:
        return [line for line in logs if line["event"] == event]

    await until(lambda: len(failed()) == 1, "the line")
    return failed()[0]


async def test_a_gateway_that_drains_says_what_it_waits_for(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fairlane.gateway.shutdown, "LOG_S", 0.1)
    async with (
        serving(redis_url, tmp_path, drain_ms=400) as served,
        callers_of(served) as callers,
        worker_v2(served.ws) as worker,
    ):
        task_id = await callers.later()
        await worker.ack(await worker.expect("task"))
        with capture_logs() as logs:
            await served.gateway.drain()
        told = [line for line in logs if line.get("left_s") is not None]
        assert [line["event"] for line in (told[0], told[1], told[-1])] == [
            "the gateway drains",
            "the gateway still drains",
            "the time to drain is over: what still runs is stopped",
        ]
        assert {(line["tasks"], line["task_id"]) for line in told} == {(1, task_id)}
        (back,) = [line for line in logs if line["event"] == "task requeued"]
        assert back["reason"] == "gateway stops"
