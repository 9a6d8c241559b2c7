"""A task comes back to a replica, or to a worker, that still runs an earlier attempt of it: its lease had lapsed meanwhile."""

import json
from typing import Any

import pytest
from tests.support.rawworkers import Callers, bystander, until_workers, worker_v1, worker_v2
from tests.support.serving import Served, until
from tests.support.stored import set_in_record

pytestmark = pytest.mark.anyio


async def lapse(served: Served, elsewhere: Served, task: dict[str, Any]) -> None:
    """Let the lease of a running task run out, as if its replica had not renewed it, and another replica sweep."""
    keys, link, task_id = served.gateway.keys, served.gateway.link, task["taskId"]
    (attempt,) = [a for a in served.gateway.dispatcher.attempts.values() if a.grant.task_id == task_id]
    await until(lambda: attempt.renewed_at > 0, "the renewal that says that it has begun")
    await set_in_record(served.gateway, task_id, lease=1)
    await link.command("ZADD", keys("due"), 1, task_id)
    await elsewhere.gateway.scheduler.sweep()


def frame_of(task: dict[str, Any], kind: str, **fields: Any) -> str:
    return json.dumps({"type": kind, "taskId": task["taskId"], "attempt": task["attempt"], **fields})


async def test_a_worker_that_gets_a_task_again_is_told_to_stop_the_first_attempt(
    served: Served, second: Served, callers: Callers
) -> None:
    async with bystander(served, callers), worker_v2(served.ws, slots=4) as worker:
        answer, beside = callers.ask(), await callers.watch()
        tasks = [await worker.expect("task"), await worker.expect("task")]
        other = next(task for task in tasks if task["taskId"] == beside.task_id)
        first = next(task for task in tasks if task is not other)
        for task in tasks:
            await worker.ack(task)
        await worker.chunk(other, "begun, ")
        await beside.until_text("begun, ")
        await lapse(served, second, first)
        await worker.expect("cancel", taskId=first["taskId"], attempt=first["attempt"], reason="superseded")
        again = await worker.expect("task", taskId=first["taskId"])
        assert again["attempt"] != first["attempt"]
        await worker.ack(again)

        for seq in range(1, 61):  # it had much to say; nothing of it counts, and nothing of it is a fault
            await worker.text(frame_of(first, "taskChunk", seq=seq, deltas=[{"content": "old"}]))
        await worker.nothing_more(first, again, other)
        (state,) = [
            w
            for w in served.gateway.dispatcher.offers.presence()
            if w["workerId"] == worker.registered["workerId"]
        ]
        assert state["running"] == 3  # the first one's slot is not free before its worker has stopped
        await worker.answer(first, "old", lastSeq=60)
        await worker.expect("resultAck", taskId=first["taskId"], attempt=first["attempt"], status="stale")

        await worker.answer(again, "new", lastSeq=0)
        await worker.expect("resultAck", attempt=again["attempt"], status="accepted")
        assert await answer.ok() == "new"
        await worker.chunk(other, "ended", 2)
        await worker.answer(other, lastSeq=2)
        assert (await beside.until_event("done"))["result"]["content"] == "begun, ended"


async def test_a_worker_that_has_a_free_mate_does_not_get_its_task_again(
    served: Served, second: Served, callers: Callers
) -> None:
    async with worker_v2(served.ws, slots=2) as worker:
        answer = callers.ask()
        first = await worker.expect("task")
        await worker.ack(first)
        async with worker_v2(served.ws, instance="mate") as mate:
            await until_workers(served, 2)
            await lapse(served, second, first)
            await worker.expect("cancel", attempt=first["attempt"], reason="superseded")
            again = await mate.expect("task", taskId=first["taskId"])
            await worker.answer(first, "old", lastSeq=0)
            await worker.expect("resultAck", status="stale")
            await mate.answer(again, "new", lastSeq=0)
            assert await answer.ok() == "new"


async def test_a_superseded_attempt_whose_worker_goes_frees_its_slot_and_costs_nobody_else_anything(
    served: Served, second: Served, callers: Callers
) -> None:
    async with worker_v2(served.ws, slots=2) as worker:
        answer = callers.ask()
        first = await worker.expect("task")
        await worker.ack(first)
        async with worker_v2(served.ws, instance="mate") as mate:
            await until_workers(served, 2)
            await lapse(served, second, first)
            again = await mate.expect("task", taskId=first["taskId"])
            await worker.ws.close()
            await until_workers(served, 1)
            await mate.answer(again, "new", lastSeq=0)
            assert await answer.ok() == "new"
        await until(lambda: not len(served.gateway.dispatcher.attempts), "every attempt to be over")


async def test_a_version_1_worker_gets_no_task_that_it_still_runs(
    served: Served, second: Served, callers: Callers
) -> None:
    """Its frames carry no attempt: the new one goes to another worker, and its own late answer counts for nobody."""
    async with worker_v1(served.ws) as worker:
        answer = callers.ask()
        first = await worker.expect("task")
        async with worker_v1(served.ws) as mate:
            await until_workers(served, 2)
            await lapse(served, second, first)
            again = await mate.expect("task", taskId=first["taskId"])
            for _ in range(60):
                await worker.send("taskChunk", taskId=first["taskId"], delta="old")
            await worker.answer(first, "old")
            await mate.answer(again, "new")
            assert await answer.ok() == "new"
            after = [callers.ask(), callers.ask()]  # both slots are free again
            given = [(free, await free.expect("task")) for free in (worker, mate)]
            for free, task in given:
                await free.answer(task, "after")
            assert [await a.ok() for a in after] == ["after", "after"]


async def test_a_lone_version_1_worker_gets_its_task_again_when_it_has_answered(
    served: Served, second: Served, callers: Callers
) -> None:
    async with worker_v1(served.ws) as worker:
        answer = callers.ask()
        first = await worker.expect("task")
        await lapse(served, second, first)
        await worker.send("taskChunk", taskId=first["taskId"], delta="old")
        await worker.answer(first, "old")
        await worker.expect("task", taskId=first["taskId"])
        await worker.answer(first, "new")
        assert await answer.ok() == "new"
