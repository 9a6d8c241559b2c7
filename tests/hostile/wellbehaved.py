"""Who behaves well beside the attackers: callers whose answers must all be right, and workers whose connections must last."""

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2
from tests.hostile.cast import (
    ANY_WORKER,
    CANARY,
    GOOD,
    GOOD_WORKER,
    OTHER_GOOD,
    PLAIN_WORKER,
    RAW,
    SLOW,
    STREAMING,
    secret,
)
from tests.support.serving import http_client
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

PAUSE_S = 0.1
PATIENCE_S = 30.0
"""Longer than any task may take."""
SLOTS = 16


# ---- workers ----------


def _said(payload: Any) -> str:
    """The last message of a payload: what an echoing worker answers."""
    try:
        content = payload["messages"][-1]["content"]
    except (KeyError, IndexError, TypeError):
        return "nothing"
    return content if isinstance(content, str) else json.dumps(content)


def _answer(task: dict[str, Any]) -> dict[str, Any]:
    if task["taskType"] == "openaiEmbedding":
        return {
            "object": "list",
            "data": [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}],
            "model": "m",
        }
    return {"content": _said(task["payload"])}


class Worker:
    """A worker that answers what it was asked. `lost`: how its connection ended, which it must not."""

    def __init__(self, url: str, token: str, model: str | None) -> None:
        self._url, self._token, self._model = url, token, model
        self._connection: ClientConnection
        self._life: list[asyncio.Task[None]] = []
        self._running: dict[str, int] = {}
        self.answered = 0
        self.lost = ""

    async def start(self) -> None:
        """Connect, and be registered."""
        protocols: Any = ["fairlane.worker.v2"] if self._model else None
        head = {"Authorization": f"Bearer {secret(self._token)}"}
        self._connection = await connect(
            self._url,
            proxy=None,
            subprotocols=protocols,
            additional_headers=head,
            max_size=None,
            close_timeout=1,
        )
        if self._model:
            name = f"good-{self._model}"
            models = [self._model]
            await self._send(
                type="register", protocols=[2], instanceId=name, name=name, models=models, slots=SLOTS
            )
            assert json.loads(await self._connection.recv())["type"] == "registered"
            self._life.append(asyncio.create_task(self._beat()))
        self._life.append(asyncio.create_task(self._work()))

    async def close(self) -> None:
        for task in self._life:
            task.cancel()
        await asyncio.gather(*self._life, return_exceptions=True)
        await self._connection.close()

    async def _send(self, **message: Any) -> None:
        await self._connection.send(json.dumps(message))

    async def _beat(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                await asyncio.sleep(5)
                running = [{"taskId": task, "attempt": attempt} for task, attempt in self._running.items()]
                await self._send(type="heartbeat", running=running)

    async def _work(self) -> None:
        try:
            async for text in self._connection:
                message = json.loads(text)
                if message["type"] == "task":
                    await self._run(message)
            self.lost = "closed"
        except asyncio.CancelledError:
            raise
        except (
            Exception
        ) as error:  # closed, or given a task that a plain worker cannot read: it ends either way
            self.lost = repr(error)[:200]

    async def _run(self, task: dict[str, Any]) -> None:
        key = {"taskId": task["taskId"]}
        if self._model:
            key["attempt"] = task["attempt"]
            self._running[task["taskId"]] = task["attempt"]
            await self._send(type="taskAck", **key)
            seq = 0
            if task["stream"]:
                for seq, word in enumerate(_said(task["payload"]).split(" "), 1):
                    await self._send(type="taskChunk", **key, seq=seq, deltas=[{"content": word + " "}])
            result = None if task["stream"] else _answer(task)
            await self._send(type="taskResult", **key, lastSeq=seq, result=result, error=None)
            del self._running[task["taskId"]]
        else:
            await self._send(type="taskResult", **key, result=_answer(task), error=None)
        self.answered += 1


@contextlib.asynccontextmanager
async def workers(url: str) -> AsyncIterator[list[Worker]]:
    """Good workers of both versions: of their own models, and one of version 1 for any model."""
    version_1 = [Worker(url, token, None) for token in (PLAIN_WORKER, ANY_WORKER) for _ in range(4)]
    made = [*version_1, Worker(url, GOOD_WORKER, RAW)]
    async with contextlib.AsyncExitStack() as stack:
        for worker in made:
            await worker.start()
            stack.push_async_callback(worker.close)
        yield made


# ---- callers ----------


class Callers:
    """Call again and again, in every way; what is not as it should be is kept in `wrong`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._tasks: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self.seconds: dict[str, list[float]] = {}
        """How long the calls took, by kind."""
        self.wrong: list[str] = []
        self.health: list[float] = []

    @property
    def calls(self) -> int:
        return sum(map(len, self.seconds.values()))

    def forget(self) -> None:
        """Count from now on."""
        self.seconds.clear()
        self.health.clear()

    def start(self) -> None:
        ways: tuple[Callable[[httpx2.AsyncClient], Awaitable[str]], ...]
        ways = (self._sync, self._chat_stream, self._native_stream, self._later)
        for number, way in enumerate(ways):
            key = (GOOD, OTHER_GOOD)[number % 2]
            self._tasks.append(asyncio.create_task(self._again(way, key)))
        self._tasks.append(asyncio.create_task(self._look()))

    async def stop(self) -> None:
        """Let what is under way come to its end."""
        self._stop.set()
        await asyncio.gather(*self._tasks)

    async def _again(self, way: Callable[[httpx2.AsyncClient], Awaitable[str]], key: str) -> None:
        name = way.__name__.strip("_")
        head = {"Authorization": f"Bearer {secret(key)}"}
        async with http_client(self._url, timeout=PATIENCE_S, headers=head) as http:
            while not self._stop.is_set():
                began = time.monotonic()
                try:
                    async with asyncio.timeout(PATIENCE_S):
                        wrong = await way(http)
                except (httpx2.HTTPError, TimeoutError, ValueError, KeyError) as error:
                    wrong = repr(error)
                if wrong:
                    self.wrong.append(f"{name}: {wrong[:200]}")
                else:
                    self.seconds.setdefault(name, []).append(time.monotonic() - began)
                await asyncio.sleep(PAUSE_S)

    async def _look(self) -> None:
        """Ask for the gateway's health, as a balancer does."""
        async with http_client(self._url, timeout=PATIENCE_S) as http:
            while not self._stop.is_set():
                began = time.monotonic()
                try:
                    good = (await http.get("/readyz")).status_code == 200
                except httpx2.HTTPError:
                    good = False
                if not good:
                    self.wrong.append("health: not ready")
                self.health.append(time.monotonic() - began)
                await asyncio.sleep(PAUSE_S)

    # ---- ways to call ----------

    @staticmethod
    def _text() -> str:
        return f"{CANARY.decode()}{uuid.uuid4().hex} and some words more"

    async def _sync(self, http: httpx2.AsyncClient) -> str:
        text = self._text()
        body = {"model": STREAMING, "messages": [{"role": "user", "content": text}]}
        answer = await http.post("/v1/chat/completions", json=body)
        if answer.status_code != 200:
            return f"{answer.status_code} {answer.text}"
        said = answer.json()["choices"][0]["message"]["content"]
        return "" if said == text else f"asked {text!r}, was told {said!r}"

    async def _chat_stream(self, http: httpx2.AsyncClient) -> str:
        text, said, whole = self._text(), "", False
        body = {"model": STREAMING, "stream": True, "messages": [{"role": "user", "content": text}]}
        async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                return f"{answer.status_code} {(await answer.aread()).decode()}"
            async for line in answer.aiter_lines():
                if line == "data: [DONE]":
                    whole = True
                elif line.startswith("data: "):
                    for choice in json.loads(line[6:])["choices"]:
                        said += choice["delta"].get("content") or ""
        return "" if whole and said == text else f"asked {text!r}, read {said!r}, whole: {whole}"

    async def _native_stream(self, http: httpx2.AsyncClient) -> str:
        """Read a little, leave, come back, read the rest: together it is the result."""
        body = {"model": SLOW, "stream": True, "messages": [{"role": "user", "content": self._text()}]}
        async with http.stream("POST", "/api/openai", json=body) as answer:
            first, cursor = await _read(answer, 4)
            task = answer.headers.get("x-task-id", "")
        if not cursor:
            return f"the stream began with {first}"
        rest: list[tuple[str, dict[str, Any]]] = []
        if not first or first[-1][0] != "done":
            async with http.stream(
                "GET", f"/api/task/{task}/events", headers={"Last-Event-ID": cursor}
            ) as answer:
                if answer.status_code != 200:
                    return f"{answer.status_code} on coming back"
                rest, _ = await _read(answer, 1000)
        said = _joined([*first, *rest])
        status = (await http.get(f"/api/task/{task}")).json()
        if "result" not in status:
            return f"read to the end, and the poll says {status}"
        result = status["result"]
        told = result["content"] if "content" in result else result["choices"][0]["message"]["content"]
        name, last = (rest or first)[-1]
        if name == "done" and not said:  # a worker of version 1 streams nothing
            said = str(last["result"]["content"])
        return "" if told == said and said else f"read {said!r}, the result is {told!r}"

    async def _later(self, http: httpx2.AsyncClient) -> str:
        text = self._text()
        body = {"model": RAW, "async": True, "messages": [{"role": "user", "content": text}]}
        answer = await http.post("/api/openai", json=body)
        if answer.status_code != 202:
            return f"{answer.status_code} {answer.text}"
        task = answer.json()["taskId"]
        while True:
            status = (await http.get(f"/api/task/{task}")).json()
            if status["status"] not in ("queued", "executing"):
                break
            await asyncio.sleep(0.05)
        return "" if status.get("result") == {"content": text} else f"asked {text!r}, was told {status}"


def _joined(events: list[tuple[str, dict[str, Any]]]) -> str:
    """The text of a stream's chunks."""
    return "".join(data["delta"] for name, data in events if name == "chunk" and data["kind"] == "text")


async def _read(answer: httpx2.Response, most: int) -> tuple[list[tuple[str, dict[str, Any]]], str]:
    """So many logged events of a native stream at most, and the id of the last."""
    events, name, cursor = [], "", ""
    if answer.status_code != 200:
        return [
            ("refused", {"status": answer.status_code, "body": (await answer.aread()).decode()[:200]})
        ], ""
    async for line in answer.aiter_lines():
        if line.startswith("id: "):
            cursor = line[4:]
        elif line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            events.append((name, json.loads(line[6:])))
            if len(events) >= most or name in ("done", "error", "cancelled"):
                break
    return events, cursor
