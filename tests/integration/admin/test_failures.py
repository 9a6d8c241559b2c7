"""Failures that can be looked at later, and floods that can be cancelled."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import redis
from tests.integration.admin.operating import audit
from tests.integration.admin.test_commands import fairlane
from tests.support.ledger import KEYS
from tests.support.talk import Talk

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]


async def found(talk: Talk, **query: Any) -> list[dict[str, Any]]:
    answer = await talk.http.get("/api/admin/tasks", params=query)
    assert answer.status_code == 200, answer.text
    rows: list[dict[str, Any]] = answer.json()["tasks"]
    return rows


async def test_a_failure_can_be_looked_at_when_its_result_is_gone(gateway: Start, redis_url: str) -> None:
    store = redis.Redis.from_url(redis_url)
    async with gateway() as talk, talk.worker2(["m"]) as worker:
        failed = await talk.submit(model="m", metadata={"secret": "of the caller"})
        info = {"code": "UPSTREAM_ERROR", "retryable": False}
        await worker.answer(await worker.take(), error="The upstream answered 501", errorInfo=info)
        await talk.reaches(failed, "failed")
        quoting = await talk.submit(model="m")
        info = {"code": "BAD_REQUEST", "retryable": False}
        await worker.answer(await worker.take(), error='No such field: "my darling"', errorInfo=info)
        await talk.reaches(quoting, "failed")
        cancelled = await talk.submit(model="m")
        await talk.http.post(f"/api/task/{cancelled}/cancel")
        fine = await talk.submit(model="m")
        await worker.recv()  # the cancelled one
        for task_id in (failed, quoting, cancelled):
            store.delete(KEYS("task", id=task_id), KEYS("log", id=task_id))
        rows = await found(talk, state="failed")
        assert [(row["taskId"], row["code"], row["error"]) for row in rows] == [
            (quoting, "BAD_REQUEST", "No such field"),
            (failed, "UPSTREAM_ERROR", "The upstream answered 501"),
        ]
        assert [row["taskId"] for row in await found(talk, code="UPSTREAM_ERROR")] == [failed]
        assert [row["taskId"] for row in await found(talk, state="cancelled", model="m")] == [cancelled]
        assert await found(talk, state="failed", user="somebody else") == []
        page = (await talk.http.get(f"/api/admin/tasks/{failed}")).json()
        assert (page["error"], page["streamUrl"], page["metadata"]) == (
            "The upstream answered 501",
            None,
            None,
        )
        assert page["attempts"][0]["workerId"]
        assert (await talk.http.get(f"/api/task/{failed}")).status_code == 404, "its caller is told as before"
        for task_id in (failed, quoting, cancelled):
            assert 86_000_000 < store.pttl(KEYS("failure", id=task_id)) <= 86_400_000
        assert not store.exists(KEYS("failure", id=fine))


async def test_a_flood_is_cancelled_by_its_filter_and_written_down_once(gateway: Start) -> None:
    async with gateway() as talk, talk.worker2(["m", "n"]) as worker:
        running = await talk.submit(model="m")
        await worker.take()
        flood = [await talk.submit(model="m") for _ in range(70)]
        other = await talk.submit(model="n")
        answer = await talk.http.post("/api/admin/tasks/cancel")
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
        query = {"model": "m", "state": "queued", "limit": 60}
        answer = await talk.http.post("/api/admin/tasks/cancel", params=query)
        assert answer.json() == {"cancelled": 60, "more": True}
        done = await fairlane(talk, "cancel", "--model", "m", "--state", "queued")
        assert (done.returncode, done.stdout) == (0, "10 cancelled\n"), done.stderr
        assert {(await talk.poll(task_id))["status"] for task_id in flood} == {"cancelled"}
        assert (await talk.poll(other))["status"] == "queued"
        answer = await talk.http.post("/api/admin/tasks/cancel", params={"model": "m"})
        assert answer.json() == {"cancelled": 1, "more": False}
        assert (await talk.poll(running))["status"] == "cancelled"
        entries = (await audit(talk))["entries"]
        assert [entry["after"] for entry in entries] == [
            {"cancelled": 1, "more": False},
            {"cancelled": 10, "more": False},
            {"cancelled": 60, "more": True},
        ]
        assert entries[0]["before"] == {"model": "m"}
