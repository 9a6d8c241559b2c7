"""Workers that are nothing but a WebSocket and say what a test tells them to, callers beside them, and gateways to vex."""

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import websockets
from tests.support.serving import DEADLINE_S, Served, http_client, until
from tests.support.streams import EventReader, events
from websockets.asyncio.client import ClientConnection, connect

SUBPROTOCOL = "fairlane.worker.v2"
LARGE = {"maxMessageBytes": 64 << 20}
NOBODY = "00000000-0000-8000-8000-000000000000"


def fitting(task: dict[str, Any]) -> Any:
    """A result of the shape that the caller of a task expects."""
    return [[0.5]] if task["taskType"] == "openaiEmbedding" else {"content": "fine"}


class RawWorker:
    """One connection to `/ws`, on which nothing is done by itself. What it received is kept in `seen`.

    Version 1 or 2: a message about a task names its attempt if the task did, which those of version 2 do.
    """

    def __init__(self, ws: ClientConnection) -> None:
        self.ws = ws
        self.seen: list[dict[str, Any]] = []
        self.registered: dict[str, Any] = {}
        self.loads: Callable[[str | bytes], dict[str, Any]] = json.loads

    # ---- sending ----------

    async def send(self, type: str, **fields: Any) -> None:
        await self.text(json.dumps({"type": type, **fields}))

    async def text(self, text: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self.ws.send(text)

    async def register(self, *models: str, instance: str = "instance", **fields: Any) -> dict[str, Any]:
        """Register, and wait to be welcomed."""
        await self.send(
            "register",
            protocols=[2],
            instanceId=instance,
            models=list(models) or ["m"],
            **{"name": "raw", **fields},
        )
        self.registered = await self.expect("registered")
        return self.registered

    async def ack(self, task: dict[str, Any]) -> None:
        await self.send("taskAck", **key(task))

    async def chunk(self, task: dict[str, Any], text: str, seq: int = 1, **delta: Any) -> None:
        """One piece of text."""
        said = {"seq": seq, "deltas": [{"content": text, **delta}]} if "attempt" in task else {"delta": text}
        await self.send("taskChunk", **key(task), **said)

    async def answer(self, task: dict[str, Any], result: Any = None, **fields: Any) -> None:
        """The end of a task; `error` makes it a failure."""
        await self.send("taskResult", **key(task), result=result, **{"error": None, **fields})

    async def leave(self) -> None:
        """Break the connection off, without a closing handshake."""
        self.ws.transport.abort()
        await self.ws.wait_closed()

    # ---- receiving ----------

    async def recv(self, deadline_s: float | None = DEADLINE_S) -> dict[str, Any]:
        """The next frame; None as the deadline: however long it takes."""
        async with asyncio.timeout(deadline_s):
            frame = self.loads(await self.ws.recv())
        self.seen.append(frame)
        return frame

    async def expect(self, kind: str, **fields: Any) -> dict[str, Any]:
        """The next frame, which must be of this type and have these fields."""
        frame = await self.recv()
        assert frame["type"] == kind, frame
        assert {name: frame.get(name) for name in fields} == fields, frame
        return frame

    async def skip_to(self, kind: str) -> dict[str, Any]:
        """The next frame of a type; those before it are passed over (they are in `seen`)."""
        while True:
            frame = await self.recv()
            if frame["type"] == kind:
                return frame

    async def take(self) -> dict[str, Any]:
        """The next task, behind nothing but acknowledgements; version 2 acknowledges it."""
        task = await self.recv()
        while task["type"] == "resultAck":
            task = await self.recv()
        assert task["type"] == "task", task
        if "attempt" in task:
            await self.ack(task)
        return task

    async def nothing_more(self, *running: dict[str, Any]) -> None:
        """Prove that the gateway has sent nothing: a heartbeat's answer is the next frame that comes."""
        fence = {"taskId": NOBODY, "attempt": 1}
        await self.send("heartbeat", running=[*(key(task) for task in running), fence])
        await self.expect("cancel", taskId=NOBODY)

    async def idle(self, seconds: float = 0.2) -> bool:
        """Whether no frame came for so long: for what must not happen. Version 2 has `nothing_more`."""
        try:
            await self.recv(seconds)
        except TimeoutError:
            return True
        return False

    async def closed(self) -> int:
        """The code with which the gateway closes; frames before that are in `seen`."""
        while True:
            try:
                await self.recv()
            except websockets.ConnectionClosed as closed:
                return closed.rcvd.code if closed.rcvd else 1006


class Later(int):
    """Equals every number that is larger: of attempts nothing else is promised."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and other > int(self)

    __hash__ = int.__hash__


def after(task: dict[str, Any]) -> Later:
    """The attempt of a task that is given again: any behind this one."""
    return Later(task["attempt"])


def key(task: dict[str, Any]) -> dict[str, Any]:
    """How a message names its task."""
    return {name: task[name] for name in ("taskId", "attempt") if name in task}


def bearer(token: str | None) -> dict[str, str]:
    """How a worker or a caller presents a token, if it has one."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}


@contextlib.asynccontextmanager
async def worker_v1(url: str, token: str | None = None, **options: Any) -> AsyncIterator[RawWorker]:
    """A version 1 worker: connected is enough. `options` of the connection."""
    options = {"proxy": None, "close_timeout": 1, "max_size": None, **options}
    async with connect(url, additional_headers=bearer(token), **options) as ws:
        yield RawWorker(ws)


@contextlib.asynccontextmanager
async def worker_v2(
    url: str, *models: str, register: bool = True, token: str | None = None, **fields: Any
) -> AsyncIterator[RawWorker]:
    """A version 2 worker, registered for `models`."""
    async with worker_v1(url, token, subprotocols=[websockets.Subprotocol(SUBPROTOCOL)]) as worker:
        if register:
            await worker.register(*models, **fields)
        yield worker


# ---- callers ----------


class Answer:
    """A call under way."""

    def __init__(self, task: "asyncio.Task[httpx2.Response]") -> None:
        self._task = task

    async def response(self) -> httpx2.Response:
        async with asyncio.timeout(DEADLINE_S):
            return await self._task

    async def ok(self) -> Any:
        """The body, of an answer that must be good."""
        response = await self.response()
        assert response.status_code == 200, response.text
        return response.json()

    async def error(self, code: str, status: int = 500) -> dict[str, Any]:
        """The body, of an answer that must be this failure."""
        response = await self.response()
        body: dict[str, Any] = response.json()
        assert (response.status_code, body.get("code")) == (status, code), body
        return body


class Callers:
    """Callers of one gateway; whatever they still wait for ends with them."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client
        self._tasks: set[asyncio.Task[Any]] = set()
        self._streams = contextlib.AsyncExitStack()

    def _start(self, work: Any) -> "asyncio.Task[Any]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        return task

    def ask(self, model: str = "m", **body: Any) -> Answer:
        """A sync call."""
        return Answer(self._start(self.client.post("/api/openai", json={"model": model, **body})))

    def run(self, task_type: str, model: str = "m", **body: Any) -> Answer:
        """A sync call of another task type."""
        return Answer(
            self._start(
                self.client.post(
                    "/api/tasks", json={"type": task_type, "model": model, "payload": {}, **body}
                )
            )
        )

    async def later(self, model: str = "m", **body: Any) -> str:
        """An async call: the id of its task."""
        response = await self.client.post("/api/openai", json={"model": model, "async": True, **body})
        assert response.status_code == 202, response.text
        return str(response.json()["taskId"])

    async def status(self, task_id: str) -> dict[str, Any]:
        body: dict[str, Any] = (await self.client.get(f"/api/task/{task_id}")).json()
        return body

    async def until_status(self, task_id: str, status: str) -> dict[str, Any]:
        """Wait until a task has come so far."""

        async def reached() -> bool:
            return bool((await self.status(task_id))["status"] == status)

        await until(reached, f"{task_id} to be {status}")
        return await self.status(task_id)

    async def watch(self, model: str = "m", **body: Any) -> EventReader:
        """A streaming call."""
        return await self._open("POST", "/api/openai", json={"model": model, "stream": True, **body})

    async def follow(self, task_id: str) -> EventReader:
        """Read a task's events from the start."""
        return await self._open("GET", f"/api/task/{task_id}/events")

    async def _open(self, method: str, path: str, **request: Any) -> EventReader:
        return await self._streams.enter_async_context(events(self.client, method, path, **request))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._streams.aclose()


@contextlib.asynccontextmanager
async def callers_of(served: Served, **headers: str) -> AsyncIterator[Callers]:
    """Callers of a gateway."""
    async with http_client(served.url, headers=headers) as client:
        callers = Callers(client)
        try:
            yield callers
        finally:
            await callers.close()


@contextlib.asynccontextmanager
async def bystander(served: Served, callers: Callers) -> AsyncIterator[None]:
    """Another worker's stream, begun before and ended after the block: what happens inside must not be seen in it."""
    async with worker_v2(served.ws, "beside", instance="bystander") as worker:
        watch = await callers.watch("beside")
        task = await worker.skip_to("task")
        await worker.ack(task)
        await worker.chunk(task, "before, ")
        await watch.until_text("before, ")
        yield
        await worker.nothing_more(task)
        await worker.chunk(task, "after", 2)
        await watch.until_text("before, after")
        await worker.answer(task, None, lastSeq=2)
        await worker.expect("resultAck", status="accepted")
        assert (await watch.until_event("done"))["taskId"] == task["taskId"]
        assert not watch.named("error")


# ---- gateways ----------


def tune(served: Served, **changes: Any) -> None:
    """Shorten what takes long: fields of DispatchSettings and SessionSettings, and `stop_grace_ms`."""
    gateway = served.gateway
    stop_grace_ms = changes.pop("stop_grace_ms", None)
    if stop_grace_ms is not None:
        gateway.scheduler.limits = dataclasses.replace(gateway.scheduler.limits, stop_grace_ms=stop_grace_ms)
    for name in [
        field.name for field in dataclasses.fields(gateway.dispatcher.settings) if field.name in changes
    ]:
        setattr(gateway.dispatcher.settings, name, changes.pop(name))
    gateway.workers.settings = dataclasses.replace(gateway.workers.settings, **changes)


async def until_workers(served: Served, count: int) -> None:
    """Wait until so many workers are connected to this replica, and all replicas know what they offer."""
    gateway = served.gateway
    await until(lambda: len(gateway.dispatcher.pool) == count, f"{count} workers")

    async def offered() -> bool:
        if not gateway.link.up:
            return True
        for model in gateway.dispatcher.pool.models():
            if (
                await gateway.link.command("ZSCORE", gateway.keys("offers", model=model), gateway.replica)
                is None
            ):
                return False
        return True

    await until(offered, "their models to be offered")
