"""Who gets the next task: several workers of one model, several models of one worker. Seen from the workers' sockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.rawworkers import Callers, RawWorker, callers_of, until_workers, worker_v1, worker_v2
from tests.support.serving import DEADLINE_S, Served, serving

pytestmark = pytest.mark.anyio


class Crew:
    """Workers that are listened to at the same time: `turn` tells which of them is given the next task."""

    def __init__(self, **workers: RawWorker) -> None:
        self.workers = workers
        self._tasks: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
        self._listening = [asyncio.create_task(self._listen(*named)) for named in workers.items()]

    async def _listen(self, name: str, worker: RawWorker) -> None:
        while True:
            await self._tasks.put((name, await worker.skip_to("task")))

    async def turn(self) -> tuple[str, dict[str, Any]]:
        """Who is given the next task, and the task."""
        async with asyncio.timeout(DEADLINE_S):
            return await self._tasks.get()

    async def do(self, count: int) -> list[str]:
        """Answer so many tasks, each as it comes; who got them."""
        turns = []
        for _ in range(count):
            name, task = await self.turn()
            turns.append(name)
            await self.workers[name].answer(task, name, lastSeq=0)
        return turns

    async def close(self) -> None:
        for task in self._listening:
            task.cancel()
        await asyncio.gather(*self._listening, return_exceptions=True)


@contextlib.asynccontextmanager
async def crew(served: Served, **fields: dict[str, Any]) -> AsyncIterator[Crew]:
    """Version 2 workers by name, connected in this order; each with fields of its `register`."""
    before = len(served.gateway.dispatcher.pool)
    async with contextlib.AsyncExitStack() as stack:
        workers = {}
        for number, (name, more) in enumerate(fields.items(), start=before + 1):
            models = more.pop("models", ["m"])
            workers[name] = await stack.enter_async_context(
                worker_v2(served.ws, *models, instance=name, **more)
            )
            await until_workers(served, number)
        crew = Crew(**workers)
        try:
            yield crew
        finally:
            await crew.close()


@pytest.fixture
async def narrow(redis_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    """A gateway whose model `m` runs one task at a time."""
    async with serving(redis_url, tmp_path, models={"m": {"concurrency": 1}}) as served:
        yield served


# ---- the least recently used of several workers ----------


async def test_tasks_that_come_one_by_one_go_round(served: Served, callers: Callers) -> None:
    async with crew(served, a={}, b={}, c={}) as workers:
        turns = []
        for _ in range(7):
            answer = callers.ask()
            turns += await workers.do(1)
            assert await answer.ok() == turns[-1]
        assert turns == [*"abcabca"]


async def test_the_task_that_comes_with_the_end_of_another_goes_round(narrow: Served) -> None:
    async with callers_of(narrow) as callers, crew(narrow, a={}, b={"slots": 2}, c={}) as workers:
        answers = [callers.ask(n=n) for n in range(7)]
        assert await workers.do(7) == [*"abcabca"]
        assert sorted([await answer.ok() for answer in answers]) == [*"aaabbcc"]


# ---- several models of one worker ----------


async def test_a_worker_is_shared_among_its_models_as_long_as_they_have_tasks(
    served: Served, callers: Callers
) -> None:
    async with crew(served, w={"models": ["x", "y", "z"]}) as workers:
        callers.ask("x")
        _, first = await workers.turn()
        for model, count in (("x", 6), ("y", 3), ("z", 1)):
            for _ in range(count):
                await callers.later(model)
        await workers.workers["w"].answer(first, 1, lastSeq=0)
        served_models = []
        for _ in range(10):
            _, task = await workers.turn()
            served_models.append(task["model"])
            await workers.workers["w"].answer(task, 1, lastSeq=0)
        assert set(served_models[:5]) == {"x", "y", "z"}, (
            served_models
        )  # y, y, y, z, x at worst: by their time
        assert sorted(served_models) == [*"xxxxxxyyyz"]


async def test_a_version_1_worker_takes_any_model_in_turn(served: Served, callers: Callers) -> None:
    async with worker_v1(served.ws) as worker:
        await until_workers(served, 1)
        callers.ask("first")
        first = await worker.expect("task")
        for _ in range(3):
            for model in ("x", "y"):
                await callers.later(model, name=model)
        await worker.answer(first, 1)
        names = []
        for _ in range(6):
            task = await worker.expect("task")
            names.append(task["payload"]["name"])
            await worker.answer(task, 1)
        assert set(names[:4]) == {"x", "y"}, names
        assert sorted(names) == [*"xxxyyy"]


async def test_a_wildcard_worker_beside_a_worker_of_one_model_leaves_no_model_waiting(
    served: Served, callers: Callers
) -> None:
    async with crew(served, only={"models": ["x"]}, any={"models": ["*"]}) as workers:
        callers.ask("x")
        callers.ask("x")
        held = dict([await workers.turn(), await workers.turn()])
        assert set(held) == {"only", "any"}
        for _ in range(4):
            await callers.later("x")
        await callers.later("y")
        await workers.workers["any"].answer(held["any"], 1, lastSeq=0)
        seen = []
        for _ in range(2):
            name, task = await workers.turn()
            seen.append((name, task["model"]))
            await workers.workers[name].answer(task, 1, lastSeq=0)
        assert ("any", "y") in seen
