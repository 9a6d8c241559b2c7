"""Limits are changed while the gateways run: on every replica at once, until they are taken back."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.support.talk import Talk

from .operating import at_once, audit, change

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]


async def test_a_raised_limit_starts_tasks_at_another_replica_at_once(here: Talk, there: Talk) -> None:
    await change(here, "model", "m", concurrency=1)
    async with there.worker2(["m"], slots=4) as worker:
        for _ in range(4):
            await here.submit(model="m")
        [first] = await at_once(worker, 1)
        await change(here, "model", "m", concurrency=3)
        await at_once(worker, 2)
        await change(there, "model", "m", concurrency=None)
        await worker.take()
        await worker.answer(first, {})


async def test_the_line_of_all_names_that_nobody_knows_has_a_limit_of_its_own(
    here: Talk, there: Talk
) -> None:
    await change(here, "model", "*", concurrency=2)
    async with there.worker2(["*"], slots=4) as worker:
        tasks = [await here.submit(model=f"invented {n}") for n in range(4)]
        running = await at_once(worker, 2)
        assert [task["model"] for task in running] == ["invented 0", "invented 1"]
        assert await worker.idle()
        state = (await here.http.get("/api/admin/overview")).json()
        (line,) = (row for row in state["models"] if row["running"])
        assert (line["model"], line["running"], line["waiting"], line["slots"]) == ("*", 2, 2, 4)
        assert {row["model"] for row in state["tasks"]} == {f"invented {n}" for n in range(4)}
        found = (await here.http.get("/api/admin/tasks?model=invented 3")).json()["tasks"]
        assert [task["taskId"] for task in found] == tasks[3:]
        await change(here, "model", "*", concurrency=None)
        await at_once(worker, 2)


async def test_a_paused_queue_keeps_its_tasks_and_starts_them_when_it_is_resumed(
    here: Talk, there: Talk
) -> None:
    async with there.worker2(["m"], slots=3) as worker:
        running = await here.submit(model="m")
        task = await worker.take()
        await change(here, "queue", "free_batch", paused=True)
        waiting = await here.submit(model="m")
        stream = here.sync(model="m")
        await worker.answer(await worker.take(), {"passes": True})
        assert (await stream).json() == {"passes": True}
        await worker.answer(task, {})
        await here.reaches(running, "completed")
        assert [(await worker.recv())["type"] for _ in range(2)] == ["resultAck", "resultAck"]
        assert await worker.idle()
        assert (await here.poll(waiting))["status"] == "queued"
        answer = await change(there, "queue", "free_batch", paused=False)
        assert answer["changed"] == {"paused": {"before": True, "after": False}}
        assert (await worker.take())["taskId"] == waiting


async def test_a_change_is_answered_with_what_holds_now(here: Talk, there: Talk) -> None:
    first = await change(here, "queue", "paid_stream", weight=4, reserved=2)
    assert first["queue"] == "paid_stream"
    assert first["overrides"] == {"weight": 4, "reserved": 2}
    assert first["changed"] == {"weight": {"before": 8, "after": 4}, "reserved": {"before": 0, "after": 2}}
    second = await change(there, "queue", "paid_stream", weight=None, max_running=3)
    assert second["values"] == {
        "weight": 8,
        "max_length": 1000,
        "max_wait": None,
        "max_running": 3,
        "reserved": 2,
        "admission": "fixed",
        "paused": False,
    }
    assert second["overrides"] == {"reserved": 2, "max_running": 3}
    nothing = await change(here, "queue", "paid_stream")
    assert (nothing["values"], nothing["changed"]) == (second["values"], {})
    model = await change(here, "model", "org/model:7b", cost="requests", tokens_per_minute=10**9)
    assert model["model"] == "org/model:7b"
    assert (model["values"]["cost"], model["values"]["tokens_per_minute"]) == ("requests", 10**9)
    assert len((await audit(here))["entries"]) == 3


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"),
    [
        ("queues/paid_stream", {"wieght": 1}, 400, "'wieght' is no setting of a queue; did you mean weight?"),
        ("queues/paid_stream", [], 400, "The body must be a JSON object"),
        ("queues/vip", {"weight": 1}, 404, "There is no queue 'vip'; there are paid_stream, paid_batch"),
        ("models/m", {"concurrency": 1.5}, 400, "concurrency should be a valid integer"),
        ("models/" + "m" * 201, {"concurrency": 1}, 400, "model must be a name of 1 to 200 characters"),
    ],
)
async def test_a_change_that_makes_no_sense_changes_nothing(
    shared_gateway: Start, path: str, body: Any, status: int, sentence: str
) -> None:
    async with shared_gateway() as talk:
        answer = await talk.http.patch(f"/api/admin/{path}", json=body)
        assert answer.status_code == status, answer.text
        assert answer.json()["error"].startswith(sentence)
        assert await audit(talk) == {"entries": [], "next": None}
        assert (await change(talk, "queue", "paid_stream"))["overrides"] == {}


JSON = {"Content-Type": "application/json"}


async def test_changes_at_the_same_time_are_all_made(here: Talk, there: Talk) -> None:
    talks = [here, there] * 10
    await asyncio.gather(
        *(change(talk, "model", "m", concurrency=number + 1) for number, talk in enumerate(talks)),
        *(change(talk, "queue", "paid_stream", paused=number % 2 == 0) for number, talk in enumerate(talks)),
    )
    entries = (await audit(here))["entries"]
    assert len(entries) == 40
    chain = [entry for entry in reversed(entries) if entry["target"] == "model m"]
    held = None
    for entry in chain:
        assert entry["before"] == {"concurrency": held}
        held = entry["after"]["concurrency"]
    assert (await change(there, "model", "m"))["values"]["concurrency"] == held
