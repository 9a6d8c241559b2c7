"""A task that its worker does not survive costs each other client at most one answer, however the worker fails and returns."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import websockets
from tests.support.rawworkers import Callers, RawWorker, key, tune, until_workers, worker_v2
from tests.support.serving import Served, until

from fairlane.workers.server.pool.suspects import MAX_SUSPECTS

pytestmark = pytest.mark.anyio

Act = Callable[[RawWorker, dict[str, Any]], Awaitable[None]]


async def dies(worker: RawWorker, task: dict[str, Any]) -> None:
    await worker.leave()


async def dies_when_it_has_begun(worker: RawWorker, task: dict[str, Any]) -> None:
    await worker.ack(task)
    await worker.leave()


async def dies_later(worker: RawWorker, task: dict[str, Any]) -> None:
    await worker.ack(task)
    asyncio.get_running_loop().call_later(0.7, worker.ws.transport.abort)


async def closes(worker: RawWorker, task: dict[str, Any]) -> None:
    await worker.ws.close(1011, "cannot read this")


async def closes_when_it_has_begun(worker: RawWorker, task: dict[str, Any]) -> None:
    await worker.ack(task)
    await worker.ws.close(1000)


async def hangs(worker: RawWorker, task: dict[str, Any]) -> None:
    await worker.closed()


async def rejects_late(worker: RawWorker, task: dict[str, Any]) -> None:
    await worker.ack(task)
    await worker.send("taskReject", **key(task), reason="capacity")


class Strangers:
    """Workers written by strangers: each serves all that it gets at a time, and does `act` on a task that says "poison".

    They acknowledge tasks in the order in which they read them, so the first one without an acknowledgement is the cause.
    """

    def __init__(self, act: Act) -> None:
        self._act = act
        self._streams: set[asyncio.Task[None]] = set()
        self.poisoned: list[str] = []
        """The instances that got the poison."""

    async def connect(self, served: Served, instances: Iterator[object]) -> None:
        for instance in map(str, instances):
            with contextlib.suppress(websockets.ConnectionClosed, OSError):
                async with worker_v2(served.ws, instance=instance, slots=4) as worker:
                    while True:
                        frame = await worker.recv(None)
                        if frame["type"] != "task":
                            continue
                        if "poison" in json.dumps(frame["payload"]):
                            self.poisoned.append(instance)
                            await self._act(worker, frame)
                        else:
                            await worker.ack(frame)
                            self._streams.add(asyncio.create_task(self._stream(worker, frame)))

    async def _stream(self, worker: RawWorker, task: dict[str, Any]) -> None:
        with contextlib.suppress(websockets.ConnectionClosed):
            for seq in range(1, 4):
                await worker.chunk(task, f"{seq}", seq)
                await asyncio.sleep(0.1)
            await worker.answer(task, None, lastSeq=3)


CLIENTS = MAX_SUSPECTS - 1
"""On a busy machine none of their tasks may have output yet when a worker dies. With more, the older poison is no suspect."""


class Clients:
    """Clients that stream one answer after the other."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers
        self.answers = [0] * CLIENTS
        self.failures = [0] * CLIENTS

    async def stream(self, number: int) -> None:
        while True:
            watch = await self._callers.watch()
            while not (watch.named("done") or watch.named("error")):
                await watch.next()
            (self.failures if watch.named("error") else self.answers)[number] += 1


@contextlib.asynccontextmanager
async def running(*work: Awaitable[None]) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


ACTS = [dies, dies_when_it_has_begun, dies_later, closes, closes_when_it_has_begun, hangs, rejects_late]


@pytest.mark.parametrize("comes_back", ["as the same", "as another"])
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
@pytest.mark.parametrize("gateways", [1, 2])
async def test_no_task_ends_those_of_another_client_twice(
    served: Served, second: Served, callers: Callers, act: Act, comes_back: str, gateways: int
) -> None:
    homes = [served, second][:gateways]
    for home in homes:
        tune(home, ack_ms=300, no_worker_grace_ms=10_000, **({"dead_after_ms": 1000} if act is hangs else {}))
    numbers = itertools.count()
    strangers, clients = Strangers(act), Clients(callers)
    async with running(
        *(
            strangers.connect(home, itertools.repeat(str(number)) if comes_back == "as the same" else numbers)
            for number, home in enumerate(homes)
        )
    ):
        for home in homes:
            await until_workers(home, 1)
        async with running(*(clients.stream(number) for number in range(CLIENTS))):
            await until(lambda: min(clients.answers) > 0, "answers")
            failed = await callers.ask(text="poison").response()
            assert failed.json()["code"] in ("WORKER_LOST", "NO_WORKER"), failed.text
            before = list(clients.answers)
            await until(lambda: all(a > b + 1 for a, b in zip(clients.answers, before, strict=True)), "more")
    assert max(clients.failures) <= 1, (clients.failures, failed.text)
    assert len(strangers.poisoned) <= 2, strangers.poisoned
    if act in (closes, rejects_late):
        assert len(set(strangers.poisoned)) == len(strangers.poisoned), (
            "it was given to the same worker again"
        )


@pytest.mark.parametrize("limit", [None, 3 << 20])
async def test_a_task_that_is_too_large_for_every_worker_fails_immediately(
    served: Served, callers: Callers, limit: int | None
) -> None:
    said = {} if limit is None else {"limits": {"maxMessageBytes": limit}}
    async with worker_v2(served.ws, **said) as worker:
        largest = callers.ask(text="x" * ((limit or 1 << 20) - 1000))
        await worker.answer(await worker.take(), 1, lastSeq=0)
        assert await largest.ok() == 1
        body = await callers.ask(text="x" * (limit or 1 << 20)).error("NO_WORKER")
        assert str(limit or 1 << 20) in body["error"]
        await worker.skip_to("resultAck")
        await worker.nothing_more()


async def test_a_large_task_goes_to_the_worker_that_takes_it(
    served: Served, second: Served, callers: Callers
) -> None:
    async with worker_v2(served.ws, instance="small") as small:
        async with worker_v2(second.ws, instance="large", limits={"maxMessageBytes": 8 << 20}) as large:
            await until_workers(second, 1)
            answer = callers.ask(text="x" * (2 << 20))
            await large.answer(await large.take(), "there", lastSeq=0)
            assert await answer.ok() == "there"
        await small.nothing_more()


async def test_a_suspect_leaves_a_worker_that_is_never_idle_to_the_others(
    served: Served, callers: Callers
) -> None:
    async with worker_v2(served.ws, instance="busy", slots=4) as busy:
        stream = callers.ask(text="long")
        running = await busy.take()
        async with worker_v2(served.ws, instance="lost") as lost:
            suspect = callers.ask(text="suspect")
            await lost.take()
            await lost.leave()
        await until_workers(served, 1)
        innocent = callers.ask(text="innocent")
        task = await busy.take()
        assert "innocent" in json.dumps(task["payload"])
        await busy.answer(task, "done", lastSeq=0)
        await busy.answer(running, "done", lastSeq=0)
        assert await innocent.ok() == await stream.ok() == "done"
        await busy.answer(await busy.take(), "alone", lastSeq=0)
        assert await suspect.ok() == "alone"
