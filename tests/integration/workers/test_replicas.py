"""Several gateways on one Redis, and a gateway that goes: what its workers and their tasks see of it."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.support.processes import gateway_process
from tests.support.rawworkers import Callers, after, callers_of, key, until_workers, worker_v1, worker_v2
from tests.support.serving import Served, serving, until

from fairlane.gateway.connections.workers import OneWrite

pytestmark = pytest.mark.anyio


async def test_a_task_submitted_at_one_gateway_runs_on_a_worker_of_the_other(
    served: Served, second: Served, elsewhere: Callers
) -> None:
    async with worker_v2(served.ws) as worker:
        await until_workers(served, 1)
        watch = await elsewhere.watch()
        task = await worker.expect("task", stream=True)
        await worker.chunk(task, "across")
        await watch.until_text("across")
        await worker.send("taskProgress", **key(task), pct=50)
        assert (await watch.until_event("progress"))["pct"] == 50
        await worker.answer(task, None, lastSeq=1)
        await watch.until_event("done")


async def test_when_a_worker_is_welcomed_the_other_gateways_know_what_it_offers(
    served: Served, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, found, flush = served.gateway, list[Any](), OneWrite.flush

    def look(write: OneWrite) -> None:
        if any(b'"registered"' in frame for frame in write._held):
            with redis.Redis.from_url(redis_url) as store:
                found.append(store.zscore(gateway.keys("offers", model="m"), gateway.replica))
        flush(write)

    monkeypatch.setattr(OneWrite, "flush", look)
    async with worker_v2(served.ws):
        [holds_until] = found
        assert holds_until is not None


async def test_a_cancel_at_the_other_gateway_reaches_the_worker(
    served: Served, second: Served, callers: Callers, elsewhere: Callers
) -> None:
    async with worker_v2(served.ws) as worker:
        task_id = await callers.later()
        task = await worker.expect("task")
        await worker.ack(task)
        await elsewhere.client.post(f"/api/task/{task_id}/cancel")
        await worker.expect("cancel", reason="client", **key(task))


async def test_a_caller_who_leaves_the_other_gateway_reaches_the_worker(
    served: Served, second: Served, elsewhere: Callers
) -> None:
    async with worker_v2(served.ws) as worker:
        await until_workers(served, 1)
        elsewhere.ask()
        task = await worker.expect("task")
        await worker.ack(task)
        await elsewhere.close()
        await worker.expect("cancel", reason="client", **key(task))


async def test_a_worker_lost_at_one_gateway_is_replaced_by_one_of_the_other(
    served: Served, second: Served, elsewhere: Callers
) -> None:
    async with worker_v2(served.ws, instance="a") as first, worker_v2(second.ws, instance="b") as other:
        await until_workers(served, 1)
        await until_workers(second, 1)
        answers = [elsewhere.ask(n=n) for n in range(2)]
        tasks = await asyncio.gather(first.expect("task"), other.expect("task"))
        await first.ack(tasks[0])
        await other.answer(tasks[1], tasks[1]["payload"]["n"], lastSeq=0)
        first.ws.transport.abort()
        again = await other.skip_to("task")
        assert (again["taskId"], after(tasks[0])) == (tasks[0]["taskId"], again["attempt"])
        await other.answer(again, again["payload"]["n"], lastSeq=0)
        assert sorted([await answer.ok() for answer in answers]) == [0, 1]


async def test_a_failure_that_may_pass_is_tried_at_the_other_gateway(
    served: Served, second: Served, callers: Callers
) -> None:
    async with worker_v2(served.ws, instance="a") as first:
        answer = callers.ask()
        task = await first.expect("task")
        async with worker_v2(second.ws, instance="b") as other:
            await until_workers(second, 1)
            await other.nothing_more()
            busy = {"code": "MODEL_TOO_BUSY", "retryable": True}
            await first.answer(task, None, lastSeq=0, error="busy", errorInfo=busy)
            again = await other.expect("task", taskId=task["taskId"], attempt=after(task))
            await other.answer(again, "good", lastSeq=0)
            assert await answer.ok() == "good"


async def test_a_type_that_only_the_other_gateways_worker_takes_is_brought_there(
    served: Served, second: Served, callers: Callers
) -> None:
    async with (
        worker_v2(served.ws, instance="a", taskTypes=["a"]) as only_a,
        worker_v2(second.ws, instance="b", taskTypes=["b"]) as only_b,
    ):
        await until_workers(served, 1)
        await until_workers(second, 1)
        await only_b.nothing_more()
        answer = callers.run("b", timeout=14_000)
        task = await only_b.expect("task", taskType="b")
        await only_b.answer(task, "b", lastSeq=0)
        assert await answer.ok() == "b"
        await only_a.nothing_more()


# ---- a gateway that goes ----------


async def test_draining_is_told_to_workers_and_running_tasks_finish(redis_url: str, tmp_path: Path) -> None:
    async with (
        serving(redis_url, tmp_path, drain_ms=15_000) as served,
        callers_of(served) as callers,
        worker_v2(served.ws, slots=3) as worker,
        worker_v1(served.ws) as old,
    ):
        watch = await callers.watch()
        task = await worker.expect("task")
        await worker.chunk(task, "begun, ")
        await watch.until_text("begun, ")
        draining = asyncio.create_task(served.gateway.drain())
        drain = await worker.expect("drain", reconnect=True)
        assert drain["graceMs"] >= 15_000
        await worker.chunk(task, "finished", 2)
        await worker.answer(task, None, lastSeq=2)
        await worker.expect("resultAck", status="accepted")
        await watch.until_event("done")
        assert watch.text == "begun, finished"
        assert await worker.closed() == 1012
        assert await old.closed() == 1012
        await draining
        assert not old.seen


async def test_sigterm_lets_running_streams_finish(redis_url: str, tmp_path: Path) -> None:
    async with gateway_process(tmp_path, redis_url, drain_ms=15_000) as gateway:
        served = Served(None, gateway.url, gateway.ws)  # type: ignore[arg-type]
        async with callers_of(served) as callers, worker_v2(gateway.ws) as worker:
            watch = await callers.watch()
            task = await worker.expect("task")
            await worker.chunk(task, "before, ")
            await watch.until_text("before, ")
            gateway.signal(signal.SIGTERM)
            await worker.expect("drain", reconnect=True)

            async def not_ready() -> bool:
                return (await callers.client.get("/readyz")).status_code == 503

            await until(not_ready, "the gateway to say that it is not ready")
            await worker.chunk(task, "after", 2)
            await worker.answer(task, None, lastSeq=2)
            await worker.expect("resultAck", status="accepted")
            await watch.until_event("done")
            assert watch.text == "before, after"
            assert await worker.closed() == 1012
        assert await gateway.ended() == 0
