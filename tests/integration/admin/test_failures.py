"""Failures that can be looked at later, and floods that can be cancelled."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.integration.admin.operating import audit
from tests.integration.admin.test_commands import fairlane
from tests.support.talk import Talk

from fairlane.queues.errors import StoreUnavailable

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]


async def found(talk: Talk, **query: Any) -> list[dict[str, Any]]:
    answer = await talk.http.get("/api/admin/tasks", params=query)
    assert answer.status_code == 200, answer.text
    rows: list[dict[str, Any]] = answer.json()["tasks"]
    return rows


async def test_a_flood_is_cancelled_by_its_filter_and_written_down_once(gateway: Start) -> None:
    async with gateway() as talk, talk.worker2(["m", "n"]) as worker:
        running = await talk.submit(model="m")
        await worker.take()
        flood = [await talk.submit(model="m") for _ in range(70)]
        other = await talk.submit(model="n")
        answer = await talk.http.post("/api/admin/tasks/cancel")
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
        for wrong in ("text", "stat"):  # as filters they would have left some out
            answer = await talk.http.post("/api/admin/tasks/cancel", params={"model": "m", wrong: "x"})
            assert (answer.status_code, f"no parameter {wrong}" in answer.json()["error"]) == (400, True)
        query = {"model": "m", "status": "queued", "limit": 60}
        answer = await talk.http.post("/api/admin/tasks/cancel", params=query)
        assert answer.json() == {"cancelled": 60, "more": True}
        done = await fairlane(talk, "task", "cancel", "--model", "m", "--status", "queued")
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


async def test_a_bulk_cancel_that_the_store_interrupts_is_written_down_as_far_as_it_came(
    gateway: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway() as talk, talk.worker2(["m"], slots=1) as worker:
        flood = [await talk.submit(model="m")]
        await worker.take()
        flood += [await talk.submit(model="m") for _ in range(59)]
        cancel, ended = talk.served.gateway.operator.cancel, 0
        real = type(cancel).end

        async def end(self: Any, task_id: str, by: Any) -> bool:
            nonlocal ended
            ended += 1
            if ended > 55:
                raise StoreUnavailable("no answer", sent=True)
            return await real(self, task_id, by)

        monkeypatch.setattr(type(cancel), "end", end)
        answer = await talk.http.post("/api/admin/tasks/cancel", params={"model": "m"})
        assert answer.status_code == 503
        states = [(await talk.poll(task_id))["status"] for task_id in flood]
        [entry] = (await audit(talk))["entries"]
        assert entry["after"] == {"cancelled": states.count("cancelled"), "more": True}
        assert states.count("cancelled") == 55


async def test_a_task_is_found_by_the_id_of_its_request(gateway: Start) -> None:
    async with gateway() as talk, talk.worker2(["m"]) as worker:
        named = {"x-request-id": "Order-77"}
        body = {"model": "m", "async": True}
        failed = (await talk.http.post("/api/openai", json=body, headers=named)).json()["taskId"]
        await worker.answer(await worker.take(), error="It broke")
        await talk.reaches(failed, "failed")
        waiting = (await talk.http.post("/api/openai", json=body, headers=named)).json()["taskId"]
        assert [row["taskId"] for row in await found(talk, text="order-7", status="failed")] == [failed]
        assert [row["taskId"] for row in await found(talk, text="order-7")] == [waiting, failed]
