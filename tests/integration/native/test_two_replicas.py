"""Two gateways on one Redis: the caller at one, the worker at the other."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest
from tests.support.ids import numbered
from tests.support.talk import Talk

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[tuple[Talk, Talk]]]


@pytest.fixture
async def both(shared_replicas: Start) -> AsyncIterator[tuple[Talk, Talk]]:
    async with shared_replicas() as replicas:
        yield replicas


@pytest.fixture
def here(both: tuple[Talk, Talk]) -> Talk:
    """Where the caller is."""
    return both[0]


@pytest.fixture
def there(both: tuple[Talk, Talk]) -> Talk:
    """Where the worker is."""
    return both[1]


@pytest.mark.parametrize("size", [1, 200_000])
async def test_a_result_reaches_a_sync_caller_elsewhere(here: Talk, there: Talk, size: int) -> None:
    async with there.worker() as worker:
        call = here.sync(name="across")
        task = await worker.take()
        assert task["payload"]["name"] == "across"
        await worker.answer(task, {"x": "y" * size})
        assert (await call).json() == {"x": "y" * size}


async def test_progress_reaches_a_reader_elsewhere_who_joins_later(here: Talk, there: Talk) -> None:
    async with there.worker2(["m"]) as worker:
        task_id = await there.submit(model="m", mode="stream")
        task = await worker.take()
        key = {"taskId": task["taskId"], "attempt": task["attempt"]}
        await worker.send("taskProgress", **key, pct=10)
        url = f"/api/task/{task_id}/events"
        async with there.events(url) as near:
            await near.until("progress")
            async with here.events(url) as far:
                assert [(e.event, e.data.get("pct")) for e in await far.until("progress")] == [
                    ("start", None),
                    ("progress", 10),
                ]
                await worker.chunk(task, "text that is in no hurry")
                await worker.send("taskProgress", **key, pct=50, note="half")
                for reader in (near, far):
                    chunk, progress = await reader.until("progress")
                    assert chunk.data["delta"] == "text that is in no hurry"
                    assert (progress.data["pct"], progress.data["note"]) == (50, "half")
                async with here.events(url) as last:
                    assert (await last.until("progress"))[-1].data["pct"] == 50
                await worker.answer(task, {})
                assert (await far.rest())[-1].event == "done"


async def test_progress_of_an_earlier_attempt_is_shown_to_nobody(here: Talk, there: Talk) -> None:
    async with there.worker2(["m"]) as first:
        task_id = await there.submit(model="m", mode="stream")
        task = await first.take()
        url = f"/api/task/{task_id}/events"
        head = {"taskId": task["taskId"], "attempt": task["attempt"]}
        async with there.events(url) as near:
            await first.send("taskProgress", **head, pct=90)
            await near.until("progress")
            await first.leave()
            async with there.worker2(["m"]) as second:
                again = await second.take()
                await near.until("start")
                async with here.events(url) as far, there.events(url) as beside:
                    for reader in (far, beside):
                        assert [e.event for e in await reader.until("start")] == ["start"]
                        assert (await reader.next()).data["attempt"] == 2
                    await second.send("taskProgress", **{**head, "attempt": again["attempt"]}, pct=5)
                    for reader in (far, beside):
                        assert (await reader.next()).data["pct"] == 5


async def test_cancelling_here_stops_the_worker_there(here: Talk, there: Talk) -> None:
    async with there.worker2(["m"]) as worker:
        call = there.sync(model="m")
        task = await worker.take()
        answer = await here.http.post(f"/api/task/{task['taskId']}/cancel")
        assert answer.json() == {"taskId": task["taskId"], "status": "cancelled"}
        frame = await worker.recv()
        assert (frame["type"], frame["taskId"]) == ("cancel", task["taskId"])
        assert (await call).status_code == 499


async def test_leaving_here_stops_the_worker_there(here: Talk, there: Talk) -> None:
    async with there.worker2(["m"]) as worker:
        call = here.sync(model="m")
        task = await worker.take()
        call.cancel()
        await asyncio.wait([call])
        frame = await worker.recv()
        assert (frame["type"], frame["reason"]) == ("cancel", "client")
        assert (await there.poll(task["taskId"]))["status"] == "cancelled"


async def test_a_worker_lost_there_lets_the_caller_here_go_on_with_another(here: Talk, there: Talk) -> None:
    async with there.worker() as first:
        async with here.events("/api/openai", json={"stream": True}) as reader:
            task = await first.take()
            async with here.worker() as second:
                await first.leave()
                again = await second.take()
                assert again == task
                await second.chunk(again, "done here")
                await second.answer(again, None)
                logged = [event for event in await reader.rest() if event.id]
        assert [event.event for event in logged] == ["start", "start", "chunk", "done"]
        assert numbered(str(event.id) for event in logged) == ["1-1", "2-2", "2-3", "2-4"]
        assert [event.data["attempt"] for event in logged if event.event == "start"] == [1, 2]
        assert logged[-1].data["result"]["content"] == "done here"
