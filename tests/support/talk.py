"""A gateway in this process, and somebody who speaks with it as the outside world does."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from tests.support.rawworkers import LARGE, RawWorker, bearer, worker_v1, worker_v2
from tests.support.serving import WORKER_TOKEN, Served, http_client, serving, until
from tests.support.streams import EventReader, events

from fairlane.queues.errors import StoreError

T = TypeVar("T")
_NUMBERS = itertools.count(1)


@dataclass
class Talk:
    """A gateway in this process, and someone who speaks with it."""

    served: Served
    http: httpx2.AsyncClient
    _tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    def later(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run it beside the test; it is ended with the test."""
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task

    def client(self, key: str | None = None, **headers: str) -> httpx2.AsyncClient:
        """Another caller."""
        return http_client(self.served.url, headers={**headers, **bearer(key)})

    @contextlib.asynccontextmanager
    async def worker(self, token: str | None = WORKER_TOKEN) -> AsyncIterator[RawWorker]:
        """A version 1 worker. It comes behind those that the gateway knows already."""
        pool = self.served.gateway.dispatcher.pool
        known = {worker.id for worker in pool}
        async with worker_v1(self.served.ws, token) as worker:
            await until(lambda: any(worker.id not in known for worker in pool), "the worker to be known")
            await self._told()
            yield worker

    @contextlib.asynccontextmanager
    async def worker2(self, models: list[str], slots: int = 1, **more: Any) -> AsyncIterator[RawWorker]:
        """A registered version 2 worker, another one than those before."""
        more = {"instance": f"raw-{next(_NUMBERS)}", "slots": slots, "limits": LARGE, **more}
        async with worker_v2(self.served.ws, *models, token=WORKER_TOKEN, **more) as worker:
            await self._told()
            yield worker

    async def _told(self) -> None:
        """Return when the store knows what this gateway has told it until now: other gateways rely on it."""
        with contextlib.suppress(StoreError):  # some tests want it away
            await self.served.gateway.link.command("PING")

    def events(self, url: str, **request: Any) -> AbstractAsyncContextManager[EventReader]:
        """An open event stream by GET, or by POST where `json` is given."""
        return events(self.http, "POST" if "json" in request else "GET", url, **request)

    def sync(self, **body: Any) -> asyncio.Task[httpx2.Response]:
        """A sync call, under way."""
        return self.later(self.http.post("/api/openai", json={"messages": [], **body}))

    async def warm(self, worker: RawWorker, model: str = "default") -> None:
        """Run a task, so that from now on a submit finds the worker's slot free and is granted at once."""
        call = self.sync(model=model)
        await worker.answer(await worker.take(), {})
        assert (await call).status_code == 200

    async def submit(self, **body: Any) -> str:
        """An async task's id."""
        answer = await self.http.post("/api/openai", json={"messages": [], "async": True, **body})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["taskId"])

    async def poll(self, task_id: str) -> dict[str, Any]:
        answer = await self.http.get(f"/api/task/{task_id}")
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    async def reaches(self, task_id: str, *states: str) -> dict[str, Any]:
        """What a poll says once the task is in one of `states`."""
        body: dict[str, Any] = {}

        async def reached() -> bool:
            body.clear()
            body.update(await self.poll(task_id))
            return body["status"] in states

        await until(reached, f"{task_id} to be {states}")
        return body

    async def state(self) -> dict[str, Any]:
        """What an operator sees."""
        answer = await self.http.get("/api/admin/overview")
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    async def row(self, task_id: str) -> dict[str, Any]:
        """What an operator sees of a task."""
        answer = await self.http.get(f"/api/admin/tasks/{task_id}")
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    async def waiting(self, number: int) -> None:
        """Return when so many tasks wait."""
        await self._counted(number, lambda state: state["counts"]["queued"], "tasks to wait")

    async def replicas(self, number: int) -> None:
        """Return when so many replicas live."""
        await self._counted(number, lambda state: len(state["replicas"]), "replicas")

    async def workers(self, number: int) -> None:
        """Return when so many workers are connected."""
        await self._counted(number, lambda state: len(state["workers"]), "workers")

    async def _counted(self, number: int, count: Callable[[dict[str, Any]], int], what: str) -> None:
        async def reached() -> bool:
            return count(await self.state()) == number

        await until(reached, f"{number} {what}")


@contextlib.asynccontextmanager
async def talking(redis_url: str | list[str], tmp_path: Path, **settings: Any) -> AsyncIterator[Talk]:
    """A gateway with these settings, and a caller of it."""
    async with serving(redis_url, tmp_path, **settings) as served, caller_of(served) as talk:
        yield talk


@contextlib.asynccontextmanager
async def caller_of(served: Served) -> AsyncIterator[Talk]:
    """A caller of a gateway that runs already. What it still does at the end is ended."""
    async with http_client(served.url) as http:
        talk = Talk(served, http)
        try:
            yield talk
        finally:
            for task in talk._tasks:
                task.cancel()
            await asyncio.gather(*talk._tasks, return_exceptions=True)


async def end_all(*replicas: Served) -> None:
    """Return when no worker, no call and no task is left of the tests until now. Tasks that have not ended are cancelled."""
    gateways = [served.gateway for served in replicas]
    one = gateways[0]

    async def ended() -> bool:
        tasks = await one.link.command("ZRANGE", one.keys("due"), 0, -1)
        for task in tasks:
            await one.tasks.cancel.end(task.decode(), "admin")
        return not tasks

    await until(
        lambda: not any(len(gateway.dispatcher.pool) for gateway in gateways), "the workers to be gone"
    )
    await until(lambda: not any(len(gateway.calls) for gateway in gateways), "the calls to be over")
    await until(ended, "the tasks to end")
