"""Where a task stands while it waits, and how long it waited and ran when it is done."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.support.talk import Talk

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
CHAT: dict[str, Any] = {"model": "m", "messages": []}


def took(headers: Any) -> tuple[int, int]:
    """How long an answer says that its task waited and ran, ms."""
    return int(headers["x-fairlane-waited-ms"]), int(headers["x-fairlane-ran-ms"])


@pytest.mark.parametrize("path", ["/api/openai", "/v1/chat/completions"])
async def test_a_sync_answer_tells_how_long_its_task_waited_and_ran(shared_gateway: Start, path: str) -> None:
    async with shared_gateway() as talk, talk.worker2(["m"]) as worker:
        blocking = await talk.submit(model="m")
        first = await worker.take()
        call = talk.later(talk.http.post(path, json=CHAT))
        await talk.waiting(1)
        queued = (await talk.state())["now"]
        await worker.answer(first, {})
        task = await worker.take()
        await worker.answer(task, {"role": "assistant", "content": "x"})
        answer = await call
        assert answer.status_code == 200
        record = next(row for row in (await talk.state())["tasks"] if row["taskId"] == task["taskId"])
        waited, ran = took(answer.headers)
        assert waited == record["startedAt"] - record["enqueuedAt"]
        assert ran >= 0
        assert record["enqueuedAt"] <= queued <= record["startedAt"]
        await talk.reaches(blocking, "completed")


async def test_a_task_that_never_ran_waited_all_its_time(gateway: Start) -> None:
    async with gateway(queues={"free_stream": {"max_wait_ms": 300}}) as talk, talk.worker2(["m"]) as worker:
        await talk.submit(model="m")
        await worker.take()
        answer = await talk.sync(model="m")
        assert answer.json()["code"] == "QUEUE_TIMEOUT"
        waited, ran = took(answer.headers)
        assert waited >= 300
        assert ran == 0


async def test_the_bounds_of_the_wait_are_told_in_every_reading(gateway: Start) -> None:
    async with gateway() as talk, talk.worker2(["m"]) as worker:
        await talk.submit(model="m")
        await worker.answer(await worker.take(), {})
        await talk.submit(model="m")
        await worker.take()
        await talk.submit(model="m")
        accepted = (await talk.http.post("/api/openai", json={"model": "m", "async": True})).json()
        polled = await talk.poll(accepted["taskId"])
        async with talk.events(f"/api/task/{accepted['taskId']}/events") as reader:
            told = (await reader.until("queued"))[-1].data
        for place in (accepted, polled, told):
            assert place["position"] == 2
            assert (
                0 <= place["estimatedWaitLowMs"] <= place["estimatedWaitMs"] <= place["estimatedWaitHighMs"]
            )
        body = {**CHAT, "stream": True}
        async with talk.http.stream("POST", "/v1/chat/completions", json=body, headers=BATCH) as stream:
            await talk.waiting(3)
            await talk.http.post(f"/api/task/{accepted['taskId']}/cancel", json={})
            line = ""
            async for line in stream.aiter_lines():
                if line.startswith("data: "):
                    break
            assert '"queuePosition":2' in line
            assert all(f'"estimatedWait{name}Ms":' in line for name in ("", "Low", "High"))


BATCH = {"X-Fairlane-Mode": "batch"}


async def test_a_new_position_is_told_and_the_same_one_is_not_told_again(gateway: Start) -> None:
    async with gateway() as talk, talk.worker2(["m"]) as worker:
        await talk.submit(model="m")
        running = await worker.take()
        ahead = await talk.submit(model="m")
        waiting = await talk.submit(model="m")
        async with talk.events(f"/api/task/{waiting}/events") as reader:
            assert (await reader.next()).data["position"] == 2
            await talk.http.post(f"/api/task/{ahead}/cancel", json={})
            positions = [(await reader.next()).data["position"]]
            await worker.answer(running, {})
            seen = await reader.until("start")
            positions += [event.data["position"] for event in seen if event.event == "queued"]
        assert positions[0] == 1
        assert set(positions) == {1}
