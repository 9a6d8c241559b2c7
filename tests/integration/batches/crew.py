"""A gateway with a worker that notes what it runs, and what a caller does with batches there."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import httpx2
from tests.support.serving import DEADLINE_S, WORKER_TOKEN, Served, http_client, serving, until

from fairlane.workers.sdk import Context, Result, Task, TaskError, Usage, Worker

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
RESPONSES = "/v1/responses"
ENDED = ("completed", "failed", "expired", "cancelled")


class Crew:
    """What the models do, and have done."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        """How often each prompt was run."""
        self.running = 0
        self.most_running = 0
        self.go = asyncio.Event()
        """Lets tasks of `patient` end."""
        self.go.set()

    def worker(self, gateway: str, slots: int) -> Worker:
        worker = Worker("crew", gateway=gateway, token=WORKER_TOKEN, slots=slots)
        worker.handler(["echo", "patient"], ["openaiLike", "openaiCompletion"])(self.echo)
        worker.handler(["echo"], ["openaiEmbedding"])(self.embed)
        return worker

    async def echo(self, task: Task, _: Context) -> AsyncIterator[Any]:
        prompt = task.payload.get("prompt") or task.payload["messages"][-1]["content"]
        self.runs[prompt] += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if task.payload["model"] == "patient":
                await self.go.wait()
            if prompt.startswith("fail"):
                raise TaskError("CONTEXT_LENGTH", "too long")
            yield prompt.upper()
            yield Usage(3, 2)
        finally:
            self.running -= 1

    async def embed(self, task: Task, _: Context) -> AsyncIterator[Any]:
        self.runs[task.payload["input"]] += 1
        yield Usage(3, 0)
        yield Result([0.5, -0.25])


def line(number: int | str, url: str = CHAT, model: str = "echo", **body: Any) -> dict[str, Any]:
    """A line that asks for a prompt of its number."""
    said: dict[str, Any] = {
        CHAT: {"messages": [{"role": "user", "content": f"say {number}"}]},
        COMPLETIONS: {"prompt": f"say {number}"},
        EMBEDDINGS: {"input": f"say {number}"},
        RESPONSES: {"input": f"say {number}", "instructions": "Shout."},
    }[url]
    return {
        "custom_id": f"id-{number}",
        "method": "POST",
        "url": url,
        "body": {"model": model, **said, **body},
    }


def file_of(lines: Iterable[Any]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


class Caller:
    """One who makes batches."""

    def __init__(self, http: httpx2.AsyncClient, served: Served) -> None:
        self.http = http
        self.served = served
        self._others: list[Caller] = []

    def other(self, key_secret: str, **headers: str) -> "Caller":
        """Another one at the same gateway."""
        http = http_client(self.served.url, headers={"authorization": f"Bearer {key_secret}", **headers})
        self._others.append(Caller(http, self.served))
        return self._others[-1]

    async def close(self) -> None:
        for other in self._others:
            await other.close()
            await other.http.aclose()

    async def upload(self, data: bytes, purpose: str = "batch") -> str:
        answer = await self.http.post(
            "/v1/files", files={"file": ("lines.jsonl", data)}, data={"purpose": purpose}
        )
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    async def create(self, file_id: str, endpoint: str = CHAT, **more: Any) -> dict[str, Any]:
        body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h", **more}
        answer = await self.http.post("/v1/batches", json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def batch(self, lines: Iterable[Any], endpoint: str = CHAT, **more: Any) -> dict[str, Any]:
        return await self.create(await self.upload(file_of(lines)), endpoint, **more)

    async def show(self, batch_id: str) -> dict[str, Any]:
        answer = await self.http.get(f"/v1/batches/{batch_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def reaches(self, batch_id: str, *statuses: str, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
        """The batch once it has one of these statuses; by default once it has ended."""
        wanted = statuses or ENDED
        shown: dict[str, Any] = {}

        async def reached() -> bool:
            shown.clear()
            shown.update(await self.show(batch_id))
            return shown["status"] in wanted

        try:
            await until(reached, f"{batch_id} to be {wanted}", deadline_s)
        except AssertionError as error:
            raise AssertionError(f"{error}: {shown}") from None
        return shown

    async def records(self, file_id: str | None) -> list[dict[str, Any]]:
        """The lines of an output or error file."""
        if file_id is None:
            return []
        answer = await self.http.get(f"/v1/files/{file_id}/content")
        assert answer.status_code == 200, answer.text
        return [json.loads(text) for text in answer.content.split(b"\n") if text]


async def waits(caller: Caller, batch_id: str, code: str) -> dict[str, Any]:
    """What is told of the batch, once it waits for this."""
    shown: dict[str, Any] = {}

    async def told() -> bool:
        shown.update((await caller.show(batch_id))["fairlane"])
        return code in [one["code"] for one in shown["waitsFor"]]

    await until(told, f"{batch_id} to wait for {code}")
    return shown


@contextlib.asynccontextmanager
async def working(served: Served, crew: Crew, slots: int = 8) -> AsyncIterator[None]:
    """The crew works for a gateway."""
    stop = asyncio.Event()
    task = asyncio.create_task(crew.worker(served.url, slots).serve(stop, stop))
    try:
        yield
    finally:
        crew.go.set()
        stop.set()
        async with asyncio.timeout(DEADLINE_S):
            await task


@contextlib.asynccontextmanager
async def stage(
    redis_url: str, tmp_path: Path, slots: int = 8, **settings: Any
) -> AsyncIterator[tuple[Caller, Crew]]:
    """A gateway with the crew behind it."""
    crew = Crew()
    models = {"echo": {}, "patient": {}}
    async with (
        serving(redis_url, tmp_path, **{"models": models, **settings}) as served,
        working(served, crew, slots),
        http_client(served.url) as http,
    ):
        caller = Caller(http, served)
        try:
            yield caller, crew
        finally:
            await caller.close()
