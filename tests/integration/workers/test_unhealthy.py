"""Workers that only fail, or say that they cannot work: others do their work, and their tasks pay nothing for it."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.rawworkers import Callers, RawWorker, until_workers, worker_v2
from tests.support.serving import DEADLINE_S, Served, until

from fairlane.queues.tasks import State
from fairlane.workers.adapters import PROVIDERS, watch
from fairlane.workers.sdk import Worker
from fairlane.workers.server import health

pytestmark = pytest.mark.anyio
DOWN = {"code": "UPSTREAM_ERROR", "retryable": True}


@pytest.fixture(autouse=True)
def _no_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was found out rests until the test is over."""
    monkeypatch.setattr(health, "BACKOFF_S", 1000.0)
    monkeypatch.setattr(health, "MAX_BACKOFF_S", 1000.0)


async def serve(worker: RawWorker, error: str = "", **info: Any) -> None:
    """Answer whatever comes, or fail it."""
    while True:
        frame = await worker.skip_to("task")
        if error:
            await worker.answer(frame, None, lastSeq=0, error=error, **({"errorInfo": info} if info else {}))
        else:
            await worker.answer(frame, "good", lastSeq=0)


@contextlib.asynccontextmanager
async def serving_all(*workers: Any) -> AsyncIterator[None]:
    """What `serve` does, beside the block."""
    tasks = [asyncio.create_task(work) for work in workers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def tasks_seen(worker: RawWorker) -> int:
    return sum(frame["type"] == "task" for frame in worker.seen)


async def rows(callers: Callers) -> dict[str, Any]:
    """Ailments by instance, as operators see them."""
    state = (await callers.client.get("/api/admin/overview")).json()
    return {row["workerId"]: row["unhealthy"] for row in state["workers"]}


async def test_an_always_failing_worker_beside_a_good_one_gets_a_few_tasks_and_costs_them_nothing(
    served: Served, callers: Callers
) -> None:
    async with (
        worker_v2(served.ws, instance="bad", slots=4) as bad,
        worker_v2(served.ws, instance="good", slots=1) as good,
        serving_all(serve(bad, "down", **DOWN), serve(good)),
    ):
        answers = [callers.ask(n=n) for n in range(60)]
        assert [await answer.ok() for answer in answers] == ["good"] * 60
        assert tasks_seen(bad) <= 8  # what it had at once when it was found out
        assert await rows(callers) == {bad.registered["workerId"]: "down", good.registered["workerId"]: None}
        metrics = (await callers.client.get("/metrics")).text
        assert 'fairlane_workers{status="unhealthy"} 1.0' in metrics
        assert 'fairlane_workers{status="ready"} 1.0' in metrics


async def test_after_a_rest_it_gets_one_task_and_is_well_again_when_that_is_done(
    served: Served, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "BACKOFF_S", 0.01)
    async with (
        worker_v2(served.ws, instance="bad", slots=4) as bad,
        worker_v2(served.ws, instance="good", slots=1) as good,
    ):
        pool = served.gateway.dispatcher.pool
        worker = pool.get(bad.registered["workerId"])
        assert worker is not None
        for _ in range(3):
            served.gateway.dispatcher.health.ended(worker, "m", State.FAILED, "UPSTREAM_ERROR", "down")
        assert worker.failure_reason == "down"
        await until(lambda: worker.cap == 1, "its rest to be over")
        answers = [callers.ask(n=n) for n in range(4)]
        first = await bad.expect("task")
        held = await good.expect("task")
        await bad.nothing_more(first)  # three slots are free, and two tasks wait
        await bad.answer(first, "better", lastSeq=0)
        await bad.expect("resultAck", status="accepted")
        others = [await bad.skip_to("task"), await bad.skip_to("task")]
        assert worker.cap is None
        for task in others:
            await bad.answer(task, "better", lastSeq=0)
        await good.answer(held, "good", lastSeq=0)
        assert sorted([await answer.ok() for answer in answers]) == ["better"] * 3 + ["good"]
        assert not any((await rows(callers)).values())


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "at another replica"])
async def test_who_says_that_it_cannot_work_gets_nothing_while_another_is_well(
    served: Served, second: Served, callers: Callers, elsewhere: bool
) -> None:
    async with (
        worker_v2((second if elsewhere else served).ws, instance="good", slots=2) as good,
        worker_v2(served.ws, instance="ill", slots=8, unhealthy="connection refused") as ill,
        serving_all(serve(good)),
    ):
        await until_workers(second, int(elsewhere))
        worker = served.gateway.dispatcher.pool.get(ill.registered["workerId"])
        assert worker is not None
        answers = [callers.ask(n=n) for n in range(20)]
        assert [await answer.ok() for answer in answers] == ["good"] * 20
        await ill.nothing_more()
        await ill.send(
            "register", protocols=[2], instanceId="ill", name="raw", models=["m"], slots=8
        )  # well again
        await until(lambda: worker.cap is None, "it to be well")


async def test_where_nobody_else_is_well_it_works_on_so_that_callers_learn_why(
    served: Served, callers: Callers
) -> None:
    unbroken = await callers.client.patch("/api/admin/models/m", json={"breaker_failures": 0})
    assert unbroken.status_code == 200
    async with worker_v2(served.ws, slots=4, unhealthy="connection refused") as ill:
        async with serving_all(serve(ill, "connection refused", **DOWN)):
            answers = [callers.ask(n=n) for n in range(8)]
            for answer in answers:
                assert (await answer.error("UPSTREAM_ERROR"))["error"] == "connection refused"
        assert tasks_seen(ill) == 24  # three tries each


# ---- with real upstreams ----


class Upstream:
    """A model server that answers everything, while `port` is open."""

    def __init__(self) -> None:
        self.chats = 0
        self.server: asyncio.Server | None = None
        self.port = 0

    async def open(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self.server is not None:
            self.server.close()
            await self.server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length or 0))
            chat = head.startswith(b"post")
            self.chats += chat
            message = {"role": "assistant", "content": "hi"}
            body = json.dumps({"choices": [{"index": 0, "message": message}]} if chat else {"data": []})
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
                % (len(body), body.encode())
            )
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def adapted(served: Served, name: str, port: int) -> AsyncIterator[None]:
    """A worker with the OpenAI adapter."""
    worker = Worker(name, gateway=served.url, slots=4)
    PROVIDERS["openai"].adapter(base_url=f"http://127.0.0.1:{port}/v1", models=["m"]).attach(worker)
    stop = asyncio.Event()
    working = asyncio.create_task(worker.serve(stop, stop))
    try:
        yield
    finally:
        stop.set()
        async with asyncio.timeout(DEADLINE_S):
            await working


async def names(callers: Callers) -> dict[str, Any]:
    state = (await callers.client.get("/api/admin/overview")).json()
    return {row["name"]: row["unhealthy"] for row in state["workers"]}


async def test_a_dead_upstream_takes_no_task_and_comes_back_by_itself(
    served: Served, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = random.Random(1)
    monkeypatch.setattr(watch.Backoff, "after", lambda *_: pauses.uniform(0.01, 0.05))
    good, dead = Upstream(), Upstream()
    await good.open()
    await dead.open()
    await dead.close()  # its port is free now
    try:
        async with adapted(served, "dead", dead.port), adapted(served, "good", good.port):
            await until_workers(served, 2)
            shown = (await names(callers))["dead"]
            assert shown.startswith(f"http://127.0.0.1:{dead.port}/v1/models: The upstream cannot be reached")
            answers = [callers.ask(messages=[]) for _ in range(40)]
            for answer in answers:
                assert (await answer.ok())["choices"][0]["message"]["content"] == "hi"
            assert good.chats == 40
            await dead.open()

            async def well() -> bool:
                return (await names(callers))["dead"] is None

            await until(well, "the upstream to be found again")
            await asyncio.gather(*(callers.ask(messages=[]).ok() for _ in range(16)))
            assert dead.chats > 0
    finally:
        await good.close()
        await dead.close()
