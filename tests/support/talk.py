"""Speaks to a gateway as the outside world does: HTTP by httpx, workers by raw WebSocket frames, events as raw SSE."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
from pydantic import TypeAdapter
from tests.support.serving import DEADLINE_S, WORKER_TOKEN, Served, http_client, serving, until
from websockets.asyncio.client import ClientConnection, connect

from fairlane.gateway.api.events import NativeEvent

T = TypeVar("T")
V2 = "fairlane.worker.v2"
SCHEMA: TypeAdapter[Any] = TypeAdapter(NativeEvent)


# ---- workers ----------


def fitting(task: dict[str, Any]) -> Any:
    """A result of the shape that the caller of a task expects."""
    return [[0.5]] if task["taskType"] == "openaiEmbedding" else {"content": "fine"}


class RawWorker:
    """A worker's end of the WebSocket: frames as dicts, nothing done by itself."""

    def __init__(self, connection: ClientConnection, version: int) -> None:
        self._connection = connection
        self._version = version

    async def frame(self) -> dict[str, Any]:
        """The next frame of the gateway, within the deadline."""
        async with asyncio.timeout(DEADLINE_S):
            frame: dict[str, Any] = json.loads(await self._connection.recv())
        return frame

    async def take(self) -> dict[str, Any]:
        """The next task; version 2 acknowledges it."""
        frame = await self.frame()
        while frame["type"] == "resultAck":
            frame = await self.frame()
        assert frame["type"] == "task", frame
        if self._version == 2:
            await self.send({"type": "taskAck", "taskId": frame["taskId"], "attempt": frame["attempt"]})
        return frame

    async def next_task(self) -> dict[str, Any]:
        """The next task, however long it takes."""
        task: dict[str, Any] = json.loads(await self._connection.recv())
        return task

    async def send(self, frame: dict[str, Any] | str) -> None:
        await self._connection.send(frame if isinstance(frame, str) else json.dumps(frame))

    async def chunk(self, task: dict[str, Any], delta: str, seq: int = 1) -> None:
        """One piece of text."""
        if self._version == 1:
            await self.send({"type": "taskChunk", "taskId": task["taskId"], "delta": delta})
        else:
            head = {"type": "taskChunk", "taskId": task["taskId"], "attempt": task["attempt"], "seq": seq}
            await self.send({**head, "deltas": [{"content": delta}]})

    async def answer(self, task: dict[str, Any], result: Any = None, **more: Any) -> None:
        """The end of a task; `error` in `more` makes it a failure."""
        frame = {"type": "taskResult", "taskId": task["taskId"], "result": result, **more}
        if self._version == 2:
            frame["attempt"] = task["attempt"]
        await self.send(frame)

    async def idle(self, seconds: float = 0.2) -> bool:
        """Whether no frame came for so long: for what must not happen."""
        try:
            async with asyncio.timeout(seconds):
                await self._connection.recv()
        except TimeoutError:
            return True
        return False

    async def leave(self) -> None:
        """Break the connection off, without a closing handshake."""
        self._connection.transport.abort()
        await self._connection.wait_closed()


# ---- events ----------


@dataclass(frozen=True)
class Sse:
    """One server-sent event; `id` None when it has none."""

    id: str | None
    event: str
    data: dict[str, Any]
    raw: str


def parse_sse(text: str) -> list[Sse]:
    """Every event in a complete native stream, each as the schemas promise; comments are skipped."""
    return [event for block in text.split("\n\n") if (event := _block(block)) is not None]


def _block(block: str) -> Sse | None:
    fields: dict[str, str] = {}
    lines = [line for line in block.split("\n") if line and not line.startswith(":")]
    for line in lines:
        name, _, value = line.partition(": ")
        assert name not in fields, f"{name} twice in one event: {block!r}"
        fields[name] = value
    if "data" not in fields:
        return None
    event = Sse(fields.get("id"), fields.get("event", "message"), json.loads(fields["data"]), block)
    head = {} if event.id is None else {"id": event.id}
    SCHEMA.validate_json(json.dumps({**head, "event": event.event, "data": event.data}))
    return event


class SseReader:
    """Reads an open stream event by event."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._texts = response.aiter_text()
        self._rest = ""

    async def next(self) -> Sse:
        """The next event, within the deadline. EOFError when the stream has ended."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                block, end, rest = self._rest.partition("\n\n")
                if end:
                    self._rest = rest
                    if (event := _block(block)) is not None:
                        return event
                    continue
                try:
                    self._rest += await anext(self._texts)
                except StopAsyncIteration:
                    raise EOFError from None

    async def until(self, name: str) -> list[Sse]:
        """The events up to and with the first one called `name`."""
        events = [await self.next()]
        while events[-1].event != name:
            events.append(await self.next())
        return events

    async def rest(self) -> list[Sse]:
        """All events to the end of the stream."""
        events = []
        with contextlib.suppress(EOFError):
            while True:
                events.append(await self.next())
        return events


# ---- gateway ----------


@dataclass
class Talk:
    """A gateway in this process, and someone who speaks with it."""

    served: Served
    http: httpx.AsyncClient
    _tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    def later(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run it beside the test; it is ended with the test."""
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task

    def client(self, key: str | None = None, **headers: str) -> httpx.AsyncClient:
        """Another caller."""
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        return http_client(self.served.url, headers=headers or None)

    @contextlib.asynccontextmanager
    async def worker(self, token: str | None = WORKER_TOKEN) -> AsyncIterator[RawWorker]:
        """A version 1 worker: connecting is enough. It comes behind those that the gateway knows already."""
        headers = _bearer(token)
        pool = self.served.gateway.dispatcher.pool
        known = {worker.id for worker in pool}
        async with connect(
            self.served.ws, additional_headers=headers, proxy=None, max_size=None
        ) as connection:
            await until(lambda: any(worker.id not in known for worker in pool), "the worker to be known")
            yield RawWorker(connection, 1)

    @contextlib.asynccontextmanager
    async def worker2(self, models: list[str], slots: int = 1, **more: Any) -> AsyncIterator[RawWorker]:
        """A registered version 2 worker."""
        async with connect(
            self.served.ws,
            subprotocols=[V2],  # type: ignore[list-item]
            additional_headers=_bearer(WORKER_TOKEN),
            proxy=None,
            max_size=None,
        ) as connection:
            worker = RawWorker(connection, 2)
            head = {"type": "register", "protocols": [2], "instanceId": f"i{id(connection)}", "name": "raw"}
            await worker.send({**head, "models": models, "slots": slots, **more})
            assert (await worker.frame())["type"] == "registered"
            yield worker

    @contextlib.asynccontextmanager
    async def events(self, url: str, **request: Any) -> AsyncIterator[SseReader]:
        """An open event stream by GET, or by POST where `json` is given."""
        method = "POST" if "json" in request else "GET"
        async with self.http.stream(method, url, **request) as response:
            assert response.status_code == 200, await response.aread()
            assert response.headers["content-type"].startswith("text/event-stream")
            yield SseReader(response)

    def sync(self, **body: Any) -> asyncio.Task[httpx.Response]:
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
        async with asyncio.timeout(DEADLINE_S):
            while True:
                body = await self.poll(task_id)
                if body["status"] in states:
                    return body
                await asyncio.sleep(0.02)

    async def state(self) -> dict[str, Any]:
        """What an operator sees."""
        answer = await self.http.get("/api/admin/state")
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    async def waiting(self, number: int) -> None:
        """Return when so many tasks wait."""
        async with asyncio.timeout(DEADLINE_S):
            while (await self.state())["counts"]["queued"] != number:
                await asyncio.sleep(0.02)

    async def replicas(self, number: int) -> None:
        """Return when so many replicas live."""
        async with asyncio.timeout(DEADLINE_S):
            while len((await self.state())["replicas"]) != number:
                await asyncio.sleep(0.02)

    async def workers(self, number: int) -> None:
        """Return when so many workers are connected."""
        async with asyncio.timeout(DEADLINE_S):
            while len((await self.state())["workers"]) != number:
                await asyncio.sleep(0.02)


def _bearer(token: str | None) -> dict[str, str] | None:
    return {"Authorization": f"Bearer {token}"} if token else None


@contextlib.asynccontextmanager
async def talking(redis_url: str, tmp_path: Path, **settings: Any) -> AsyncIterator[Talk]:
    """A gateway with these settings, and a caller of it."""
    async with serving(redis_url, tmp_path, **settings) as served, http_client(served.url) as http:
        talk = Talk(served, http)
        try:
            yield talk
        finally:
            for task in talk._tasks:
                task.cancel()
            await asyncio.gather(*talk._tasks, return_exceptions=True)
