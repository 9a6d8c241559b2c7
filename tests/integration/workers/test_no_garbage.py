"""A task that has ended leaves nothing for the collector of cycles, however it ended and whoever asked for it.

At saturation the collector otherwise stops the event loop for tens of milliseconds, again and again.
"""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.garbage import PlainCaller, growth, thaw
from tests.support.rawworkers import RawWorker, until_workers, worker_v2
from tests.support.serving import DEADLINE_S, Served, serving, until

pytestmark = pytest.mark.anyio

FEW, MANY = 10, 50
BUSY = {"code": "UPSTREAM_ERROR", "retryable": True}


@pytest.fixture(scope="module", autouse=True)
def frozen() -> Iterator[None]:
    yield
    thaw()


@pytest.fixture
async def served(redis_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(redis_url, tmp_path, min_task_timeout_ms=1, chains=CHAINS) as served:
        yield served


class Worker:
    """Answers tasks as their payload says, in version 2."""

    def __init__(self, raw: RawWorker) -> None:
        self.raw = raw
        self.refused: set[str] = set()

    async def run(self) -> None:
        while True:
            frame = json.loads(await self.raw.ws.recv())
            if frame["type"] == "task":
                await self.answer(frame)
            elif frame["type"] == "cancel":
                await self.raw.answer(frame)

    async def answer(self, task: dict[str, Any]) -> None:
        raw, way = self.raw, json.dumps(task["payload"])
        await raw.ack(task)
        if "stay" in way:
            return
        if "retry" in way and task["taskId"] not in self.refused:
            self.refused.add(task["taskId"])
            await raw.answer(task, error="no", errorInfo=BUSY)
        elif "fail" in way:
            await raw.answer(task, error="no")
        elif "pieces" in way:
            await raw.chunk(task, "one ")
            await raw.chunk(task, "two", 2)
            await raw.answer(task, lastSeq=2, usage={"inputTokens": 1, "outputTokens": 2})
        elif "embed" in task["taskType"].lower():
            await raw.answer(task, {"data": [{"embedding": [0.5], "index": 0}], "model": "m"})
        else:
            await raw.answer(task, {"content": "all"})


@contextlib.asynccontextmanager
async def answering(served: Served, model: str = "m", slots: int = 64) -> AsyncIterator[RawWorker]:
    """A worker at work."""
    async with worker_v2(served.ws, model, slots=slots, instance=f"i-{model}") as raw:
        task = asyncio.create_task(Worker(raw).run())
        try:
            yield raw
        finally:
            task.cancel()
            await asyncio.wait([task])


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


async def native(caller: PlainCaller) -> None:
    status, _ = await caller.call("POST", "/api/openai", said("hello"))
    assert status == 200


async def response(caller: PlainCaller) -> None:
    """Which is kept."""
    status, told = await caller.call("POST", "/v1/responses", {"model": "m", "input": "pieces"})
    assert status == 200
    assert b'"store":true' in told


async def native_stream(caller: PlainCaller) -> None:
    status, body = await caller.call("POST", "/api/openai", said("pieces", stream=True))
    assert status == 200
    assert b"event: done" in body


async def chat_stream(caller: PlainCaller) -> None:
    status, body = await caller.call("POST", "/v1/chat/completions", said("pieces", stream=True))
    assert status == 200
    assert b"[DONE]" in body


async def failed(caller: PlainCaller) -> None:
    status, _ = await caller.call("POST", "/api/openai", said("fail"))
    assert status == 500


async def submitted(caller: PlainCaller, text: str) -> str:
    status, body = await caller.call("POST", "/api/openai", said(text, **{"async": True}))
    assert status == 202
    return str(json.loads(body)["taskId"])


async def reaches(caller: PlainCaller, task_id: str, state: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while json.loads((await caller.call("GET", f"/api/task/{task_id}"))[1])["status"] != state:
            await asyncio.sleep(0.01)


async def replayed(caller: PlainCaller) -> None:
    task_id = await submitted(caller, "pieces")
    for _ in range(2):
        status, body = await caller.call("GET", f"/api/task/{task_id}/events")
        assert status == 200
        assert b"event: done" in body


async def cancelled_by_call(caller: PlainCaller) -> None:
    task_id = await submitted(caller, "stay")
    await reaches(caller, task_id, "executing")
    status, _ = await caller.call("POST", f"/api/task/{task_id}/cancel")
    assert status == 200


def stages(last: str) -> dict[str, Any]:
    """Two parts side by side, and a stage behind them."""
    first = {
        "name": "each",
        "each": "list",
        "model": "m",
        "messages": [{"role": "user", "content": "{{ item }}"}],
    }
    second = {
        "name": "last",
        "model": "m",
        "messages": [{"role": "user", "content": last + " {{ stages.each.content }}"}],
    }
    return {"stages": [first, second]}


CHAINS = {last: stages(last) for last in ("all", "pieces", "fail")}


def chain_call(last: str) -> dict[str, Any]:
    return {"chain": last, "variables": {"list": ["a", "b"]}}


async def chain(caller: PlainCaller) -> None:
    status, _ = await caller.call("POST", "/api/tasks", chain_call("all") | {"async": False})
    assert status == 200


async def chain_stream(caller: PlainCaller) -> None:
    status, body = await caller.call("POST", "/api/tasks", chain_call("pieces") | {"stream": True})
    assert status == 200
    assert b"event: done" in body


async def failed_chain(caller: PlainCaller) -> None:
    status, body = await caller.call("POST", "/api/tasks", chain_call("fail") | {"async": False})
    assert status == 500
    assert json.loads(body)["failedStage"] == "last"


WAYS = [
    native,
    response,
    native_stream,
    chat_stream,
    failed,
    replayed,
    cancelled_by_call,
    chain,
    chain_stream,
    failed_chain,
]


async def quiet(served: Served) -> None:
    """Wait until nothing is under way."""
    gateway = served.gateway
    await until(
        lambda: not len(gateway.dispatcher.attempts) and not len(gateway.hub), "every task to be over"
    )
    await until(
        lambda: not len(gateway.dispatcher.background) and not gateway.link._pending,
        "the last reply of Redis",
    )
    for _ in range(5):
        await asyncio.sleep(0)


def report(left: Counter[str], tasks: int) -> str:
    return f"{left.total() / tasks:.1f} objects a task: " + ", ".join(
        f"{n} {t}" for t, n in left.most_common(25)
    )


def of_tasks(left: Counter[str]) -> list[str]:
    """The types that are ours, where connections end too: those of uvicorn and of the test's own worker are not."""
    return [
        name
        for name in left
        if name.startswith(("fairlane.queues", "fairlane.streaming", "fairlane.workers"))
    ]


async def left_by(served: Served, work: Callable[[int], Awaitable[None]]) -> Counter[str]:
    async def and_quiet(count: int) -> None:
        await work(count)
        await quiet(served)

    return await growth(and_quiet, FEW, MANY)


@pytest.mark.parametrize("way", WAYS)
async def test_an_ended_task_leaves_nothing_for_the_collector(
    served: Served, way: Callable[[PlainCaller], Awaitable[None]]
) -> None:
    caller = PlainCaller(served.url)
    status, _ = await caller.call("PATCH", "/api/admin/models/m", {"breaker_failures": 0})
    assert status == 200

    async def work(count: int) -> None:
        for _ in range(count):
            await way(caller)

    async with answering(served):
        await until_workers(served, 1)
        left = await left_by(served, work)
        caller.close()
    assert not left, report(left, MANY - FEW)


async def test_a_task_that_runs_out_of_time_leaves_nothing_for_the_collector(served: Served) -> None:
    callers = [PlainCaller(served.url) for _ in range(MANY)]

    async def work(count: int) -> None:
        body = said("stay", timeout=20)
        answers = await asyncio.gather(*(c.call("POST", "/api/openai", body) for c in callers[:count]))
        assert {status for status, _ in answers} == {500}

    async with answering(served):
        await until_workers(served, 1)
        await work(MANY)  # every connection is open now
        left = await left_by(served, work)
        for caller in callers:
            caller.close()
    assert not left, report(left, MANY - FEW)


async def test_callers_who_leave_leave_no_task_for_the_collector(served: Served) -> None:
    async def work(count: int) -> None:
        for _ in range(count):
            caller = PlainCaller(served.url)
            await caller.send("POST", "/api/openai", said("stay"))
            await until(lambda: len(served.gateway.dispatcher.attempts) > 0)
            caller.close()
            await quiet(served)

    async with answering(served):
        await until_workers(served, 1)
        left = await left_by(served, work)
    assert not of_tasks(left), report(left, MANY - FEW)


async def test_a_lost_worker_leaves_no_task_for_the_collector(served: Served) -> None:
    """One connection is lost each time, with any number of tasks: after output they end, before it they are tried again."""

    async def work(count: int) -> None:
        callers = [PlainCaller(served.url) for _ in range(4)]
        for turn in range(0, count, 4):
            async with worker_v2(served.ws, "m", slots=4, instance=f"lost {count}.{turn}") as raw:
                for caller in callers:
                    await caller.send("POST", "/api/openai", said("lost"))
                for _ in callers:
                    task = await raw.skip_to("task")
                    await raw.chunk(task, "seen")
                await until(
                    lambda: all(a.writer.has_output for a in served.gateway.dispatcher.attempts.values())
                )
                raw.ws.transport.abort()
                for caller in callers:
                    status, _ = await caller._answer()
                    assert status == 500
        for caller in callers:
            caller.close()

    left = await left_by(served, work)
    assert not of_tasks(left), report(left, MANY - FEW)
